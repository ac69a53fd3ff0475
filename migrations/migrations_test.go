package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/migrations"

	"github.com/google/uuid"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// server is a Postgres without anything of ours.
func server(t *testing.T) (*devstack.Postgres, *pgx.Conn) {
	t.Helper()
	pg := testenv.Postgres(t, devstack.PostgresOptions{})
	conn, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return pg, conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Several migrators at once, of several databases of one cluster: they take turns, and nobody
// trips over the roles, which belong to the cluster.
func TestUpManyAtOnce(t *testing.T) {
	t.Parallel()
	pg, conn := server(t)
	exec(t, conn, `CREATE DATABASE a`)
	exec(t, conn, `CREATE DATABASE b`)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b", "a", "b", "a"} {
		wg.Go(func() {
			if err := migrations.Up(context.Background(), pg.URL(name), migrations.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	db, err := sql.Open("pgx", pg.URL("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	applied, known, err := migrations.Current(t.Context(), db)
	if err != nil || applied != known || known == 0 {
		t.Errorf("applied %d, known %d, %v", applied, known, err)
	}
}

// An owner who may not create roles is told what an administrator must do, and goes on after.
func TestUpWithoutCreateRole(t *testing.T) {
	t.Parallel()
	pg, conn := server(t)
	exec(t, conn, `CREATE ROLE plain LOGIN`)
	exec(t, conn, `CREATE DATABASE plain OWNER plain`)
	u, err := url.Parse(pg.URLAs("plain", "plain"))
	if err != nil {
		t.Fatal(err)
	}
	options := migrations.Options{ServiceRole: `odd "role`}
	err = migrations.Up(t.Context(), u.String(), options)
	var missing *migrations.MissingRoleError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), missing.SQL()) {
		t.Fatalf("without the right to create roles: %v", err)
	}
	exec(t, conn, missing.SQL())
	if err := migrations.Up(t.Context(), u.String(), options); err != nil {
		t.Fatal(err)
	}
}

// Every function is closed to PUBLIC, and those that run as their owner have a search_path that
// nobody else can put tables into.
func TestFunctionsAreClosed(t *testing.T) {
	t.Parallel()
	conn := testenv.Database(t).Connect(t)
	rows, err := conn.Query(t.Context(), `SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = 'artifactd' AND (has_function_privilege('public', p.oid, 'EXECUTE')
			OR (p.prosecdef AND NOT coalesce('search_path=artifactd, pg_temp' = ANY (p.proconfig), false)))`)
	if err != nil {
		t.Fatal(err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range open {
		t.Errorf("%s is open to PUBLIC or has no safe search_path", f)
	}
}

// The key that the collector deletes is the key that the service writes.
func TestKeysAreMadeAlike(t *testing.T) {
	t.Parallel()
	conn := testenv.Database(t).Connect(t)
	exec(t, conn, `UPDATE artifactd.installation SET key_prefix = 'some/prefix/'`)
	id, digest := uuid.New(), artifacts.DigestOf([]byte("x"))
	if _, err := conn.Exec(t.Context(), `INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, writable_until)
		VALUES ($1, 1, $1, $2, 1, 'x', now())`, id, digest[:]); err != nil {
		t.Fatal(err)
	}
	var key string
	exec(t, conn, `SELECT artifactd.bury_artifacts(array_agg(artifact_id), 'test', 0) FROM artifactd.artifact`)
	if err := conn.QueryRow(t.Context(), `SELECT object_key FROM artifactd.deletion`).Scan(&key); err != nil {
		t.Fatal(err)
	}
	if want := (artifacts.Layout{Prefix: "some/prefix/"}).ArtifactKey(digest, id); key != want {
		t.Errorf("the ledger has %s, the service wrote %s", key, want)
	}
}
