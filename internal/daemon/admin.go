package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/migrations"
	"github.com/artifactd/artifactd/pointer"
)

// Admin is direct access to an installation's database, for what must work before anybody has an
// access token: making one.
type Admin struct {
	*pointer.Catalogue
	pool *pgxpool.Pool
}

// OpenAdmin connects to the database of an installation. Close it.
func OpenAdmin(ctx context.Context, databaseURL string) (*Admin, error) {
	if databaseURL == "" {
		return nil, fmt.Errorf("--database-url (%s) is required: access tokens are made in the database itself", EnvName("database-url"))
	}
	pool, err := openPool(ctx, Config{DatabaseURL: databaseURL, DatabaseConns: 2})
	if err != nil {
		return nil, err
	}
	if err := checkSchema(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	catalogue, err := pointer.New(pool, pointer.Options{})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &Admin{Catalogue: catalogue, pool: pool}, nil
}

// Close ends the connections.
func (a *Admin) Close() { a.pool.Close() }

// duplicateObject is Postgres's SQLSTATE for a role that exists.
const duplicateObject = "42710"

// EnsureLogin makes a role that may log in and has the service's rights, unless it exists. The
// connection must be the owner's.
func EnsureLogin(ctx context.Context, ownerURL, login string) (err error) {
	conn, err := pgx.Connect(ctx, ownerURL)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, "CREATE ROLE "+pgx.Identifier{login}.Sanitize()+" LOGIN IN ROLE "+pgx.Identifier{migrations.DefaultServiceRole}.Sanitize())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == duplicateObject {
		return nil
	}
	return err
}
