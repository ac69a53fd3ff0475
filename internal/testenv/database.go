package testenv

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/migrations"
)

const (
	// serviceLogin is the login role of the service in tests.
	serviceLogin = "artifactd_test_service"
	// template is the migrated database that tests' databases are cloned from.
	template = "artifactd_template"
	// maxConnections is enough for a few dozen tests in parallel, with a pool each.
	maxConnections = 300
	// cleanupTimeout bounds what a test's cleanup does.
	cleanupTimeout = 2 * time.Minute
)

// DB is a migrated database of one test.
type DB struct {
	Name string
	// URL is for the owner of everything, a superuser.
	URL string
	// ServiceURL is for a login role with the rights of the service and no others.
	ServiceURL string
	// Postgres is the server. The one of Database is shared: no test may stop it.
	Postgres *devstack.Postgres
}

// Connect opens a connection as the owner, closed when the test ends.
func (db *DB) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, db.URL)
}

// ConnectService opens a connection as the service, closed when the test ends.
func (db *DB) ConnectService(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, db.ServiceURL)
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test may have broken it
	return conn
}

// cluster is the Postgres of this test process, with its template database.
type cluster struct{ postgres *devstack.Postgres }

// Database makes a fresh, migrated database for the test, on a server that all tests of the
// process share, and drops it when the test ends.
func Database(t testing.TB) *DB {
	t.Helper()
	c := process.postgres.get(t, startCluster)
	name := randomName("test_")
	err := asOwner(t.Context(), c.postgres, func(conn *pgx.Conn) error {
		_, err := conn.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template)
		return err
	})
	if err != nil {
		t.Fatalf("testenv: clone the template database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		err := asOwner(ctx, c.postgres, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
			return err
		})
		if err != nil {
			t.Errorf("testenv: drop the test's database: %v", err)
		}
	})
	return newDB(c.postgres, name)
}

// DatabaseOn makes a migrated database on a server of the test's own, which see [Postgres].
func DatabaseOn(t testing.TB, pg *devstack.Postgres) *DB {
	t.Helper()
	name := randomName("test_")
	if err := createMigrated(t.Context(), pg, name); err != nil {
		t.Fatal(err)
	}
	return newDB(pg, name)
}

func newDB(pg *devstack.Postgres, name string) *DB {
	return &DB{Name: name, URL: pg.URL(name), ServiceURL: pg.URLAs(serviceLogin, name), Postgres: pg}
}

// Postgres starts a server for this test alone, one that it may kill and start again with the
// same options. DataDir and FsyncOff are filled in when DataDir is empty. It is stopped when the
// test ends.
func Postgres(t testing.TB, o devstack.PostgresOptions) *devstack.Postgres {
	t.Helper()
	if o.DataDir == "" {
		dir, err := process.folder("postgres")
		if err != nil {
			t.Fatal(err)
		}
		o.DataDir, o.FsyncOff = dir, true
	}
	pg, err := devstack.StartPostgres(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := pg.Stop(ctx); err != nil {
			t.Errorf("testenv: stop the test's Postgres: %v", err)
		}
	})
	return pg
}

func startCluster(ctx context.Context) (*cluster, error) {
	dir, err := process.folder("postgres")
	if err != nil {
		return nil, err
	}
	pg, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{
		DataDir: dir, FsyncOff: true, MaxConnections: maxConnections,
	})
	if err != nil {
		return nil, err
	}
	process.atExit(pg.Stop)
	if err := createMigrated(ctx, pg, template); err != nil {
		return nil, err
	}
	err = asOwner(ctx, pg, func(conn *pgx.Conn) error {
		// A database that somebody is connected to cannot be cloned.
		_, err := conn.Exec(ctx, "ALTER DATABASE "+template+" ALLOW_CONNECTIONS false")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("testenv: close the template database: %w", err)
	}
	return &cluster{postgres: pg}, nil
}

// createMigrated makes a database with the schema, and the service's login role.
func createMigrated(ctx context.Context, pg *devstack.Postgres, name string) error {
	if err := pg.CreateDatabase(ctx, name); err != nil {
		return fmt.Errorf("testenv: create database %s: %w", name, err)
	}
	if err := migrations.Up(ctx, pg.URL(name), migrations.Options{}); err != nil {
		return fmt.Errorf("testenv: %w", err)
	}
	return asOwner(ctx, pg, func(conn *pgx.Conn) error {
		var there bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", serviceLogin).Scan(&there)
		if err != nil || there {
			return err
		}
		_, err = conn.Exec(ctx, "CREATE ROLE "+serviceLogin+" LOGIN IN ROLE "+migrations.DefaultServiceRole)
		return err
	})
}

// asOwner runs f on a connection to the server's own database.
func asOwner(ctx context.Context, pg *devstack.Postgres, f func(*pgx.Conn) error) (err error) {
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return f(conn)
}
