package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose runs on
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// DefaultServiceRole is the role that the service's own login role is a member of.
const DefaultServiceRole = "artifactd_service"

// versionTable is where goose remembers what is applied.
const versionTable = "artifactd.schema_version"

// Options of [Up].
type Options struct {
	// ServiceRole is granted the functions and reading; empty means DefaultServiceRole. It is
	// created when it does not exist and the caller may create roles.
	ServiceRole string
	Logger      *slog.Logger
}

// Up brings the database at databaseURL to this binary's schema. Several callers at once take
// turns. It must run as the role that shall own the schema. It is safe to run again, and after a
// crash at any point: each file is one transaction.
func Up(ctx context.Context, databaseURL string, opts Options) error {
	if opts.ServiceRole == "" {
		opts.ServiceRole = DefaultServiceRole
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return fmt.Errorf("database URL: %w", err)
	}
	defer db.Close()
	if err := makeSchema(ctx, db); err != nil {
		return err
	}
	provider, err := newProvider(db, opts.Logger)
	if err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	for _, r := range results {
		opts.Logger.Info("applied migration", "file", r.Source.Path, "took", r.Duration)
	}
	return grantService(ctx, db, opts.ServiceRole)
}

// Current reports whether the database has exactly this binary's schema: the highest version
// applied there and the highest one known here.
func Current(ctx context.Context, db *sql.DB) (applied, known int64, err error) {
	provider, err := newProvider(db, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, 0, err
	}
	sources := provider.ListSources()
	known = sources[len(sources)-1].Version
	var have sql.NullInt64
	err = db.QueryRowContext(ctx, `SELECT max(version_id) FROM artifactd.schema_version WHERE is_applied`).Scan(&have)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return 0, known, nil // no table or no schema: nothing is applied
	}
	return have.Int64, known, err
}

func newProvider(db *sql.DB, logger *slog.Logger) (*goose.Provider, error) {
	store, err := database.NewStore(database.DialectPostgres, versionTable)
	if err != nil {
		return nil, err
	}
	// The locker polls every five seconds unless told otherwise; a second migrator should not
	// make anybody wait that long.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 120))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider("", db, files, goose.WithStore(store), goose.WithSessionLocker(locker), goose.WithSlog(logger))
}

// makeSchema comes before goose, whose own table lives in the schema. Two of these at once may
// collide on the catalogue even with IF NOT EXISTS; the loser's schema is there all the same.
func makeSchema(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS artifactd`)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "23505" || pgErr.Code == "42P06") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create schema artifactd: %w", err)
	}
	return nil
}

// grantsSQL gives the service role what it needs and takes everything from everybody else. It
// runs after every migration, so that a new function is never left executable by PUBLIC.
const grantsSQL = `
DO $grants$
DECLARE
    service text := current_setting('artifactd.service_role');
    f regprocedure;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = service) THEN
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', service);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- roles belong to the cluster: another database's migration made it meanwhile
        END;
    END IF;
    REVOKE ALL ON SCHEMA artifactd FROM PUBLIC;
    REVOKE ALL ON ALL TABLES IN SCHEMA artifactd FROM PUBLIC;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA artifactd FROM PUBLIC;
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA artifactd FROM %I', service);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA artifactd FROM %I', service);
    EXECUTE format('GRANT USAGE ON SCHEMA artifactd TO %I', service);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA artifactd TO %I', service);
    -- The functions that decide run as their owner; pure ones stand in the service's own queries;
    -- what else they are made of is not called from outside.
    FOR f IN SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
              WHERE n.nspname = 'artifactd' AND (p.prosecdef OR p.provolatile = 'i') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, service);
    END LOOP;
END $grants$`

// grantService is one transaction under a lock of its own: two of these at once would trip over
// each other's changes to the same catalogue rows.
func grantService(ctx context.Context, db *sql.DB, role string) (err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('artifactd grants', 0)),
		set_config('artifactd.service_role', $1, true)`, role); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, grantsSQL); err != nil {
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "42501" {
			return &MissingRoleError{Role: role}
		}
		return fmt.Errorf("grant rights to role %q: %w", role, err)
	}
	return tx.Commit()
}

// MissingRoleError says that the service's role does not exist and that the migrating role may
// not create it. Everything else is migrated; once an administrator has run SQL, migrating again
// goes on from there.
type MissingRoleError struct{ Role string }

// SQL is what an administrator has to run.
func (e *MissingRoleError) SQL() string {
	return "CREATE ROLE " + pgx.Identifier{e.Role}.Sanitize() + " NOLOGIN;"
}

func (e *MissingRoleError) Error() string {
	return fmt.Sprintf("role %q does not exist and this role may not create it; as an administrator run\n\n\t%s\n\nand migrate again", e.Role, e.SQL())
}
