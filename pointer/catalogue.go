package pointer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

// Options of a [Catalogue]. The zero value of each means its default.
type Options struct {
	// UploadTTL is how long an upload URL handed out by [Catalogue.Stage] works. Default 1 h.
	UploadTTL time.Duration
	// ResumeGrace is how long the uploads of a dead generation can be adopted by a later one of
	// the same pointer. Default 1 h. A courtesy, not safety.
	ResumeGrace time.Duration
	// DecisionTimeout bounds one deciding call to the database, locks included. Default 15 s.
	DecisionTimeout time.Duration
	// Confirm names the epoch in which writes may be acknowledged at this moment, as the bucket
	// confirmed it, or says why none may. It must answer at once. Nil means that nobody has to
	// confirm anything.
	Confirm func() (epoch int64, err error)
	Logger  *slog.Logger
}

// Defaults of [Options].
const (
	DefaultUploadTTL       = time.Hour
	DefaultResumeGrace     = time.Hour
	DefaultDecisionTimeout = 15 * time.Second
)

// InlineSealFiles is the size of manifest, in files, up to which a publish seals inside its own
// transaction.
const InlineSealFiles = 1_000

// Catalogue is the commit point: leases, staging, publication, outcomes and resolution, all of
// them decided by functions in the database. It is safe for concurrent use.
type Catalogue struct {
	pool    *pgxpool.Pool
	opts    Options
	heads   *headBatcher
	changes *changes
	lines   *lines
	// versions caches what a published generation shows; it never changes. leases and artifacts
	// cache which pointer an id belongs to, which never changes either.
	versions  *lru.Cache[uuid.UUID, *Version]
	leases    *lru.Cache[uuid.UUID, string]
	artifacts *lru.Cache[uuid.UUID, string]
	callers   *callerCache
}

// PoolConfig parses a database URL into the configuration that a Catalogue needs: commits that
// may not have been replicated are noticed, and no statement outlives its caller's patience.
func PoolConfig(databaseURL string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	params := cfg.ConnConfig.RuntimeParams
	setDefault(params, "application_name", "artifactd")
	setDefault(params, "statement_timeout", "12000") // ms; below DecisionTimeout
	// Statements here take milliseconds. Compiling one takes seconds, and Postgres does so wherever a
	// function forbids a plan that a small table needs all the same.
	setDefault(params, "jit", "off")
	setDefault(params, "idle_in_transaction_session_timeout", "10000") // ms; frees row locks
	cfg.ConnConfig.OnNotice = noteUnreplicated
	// By itself pgx sends a UUID by way of its text, for every artifact of a call that names a thousand.
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pgxuuid.Register(conn.TypeMap())
		return nil
	}
	return cfg, nil
}

func setDefault(m map[string]string, key, value string) {
	if _, ok := m[key]; !ok {
		m[key] = value
	}
}

// New makes a Catalogue on a pool made with [PoolConfig]. The database must be migrated.
func New(pool *pgxpool.Pool, opts Options) (*Catalogue, error) {
	if opts.UploadTTL <= 0 {
		opts.UploadTTL = DefaultUploadTTL
	}
	if opts.ResumeGrace <= 0 {
		opts.ResumeGrace = DefaultResumeGrace
	}
	if opts.DecisionTimeout <= 0 {
		opts.DecisionTimeout = DefaultDecisionTimeout
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Catalogue{pool: pool, opts: opts, changes: newChanges(), lines: newLines(), callers: newCallerCache()}
	c.heads = &headBatcher{pool: pool}
	var err error
	if c.versions, err = lru.New[uuid.UUID, *Version](2048); err != nil {
		return nil, err
	}
	if c.leases, err = lru.New[uuid.UUID, string](65536); err != nil {
		return nil, err
	}
	if c.artifacts, err = lru.New[uuid.UUID, string](65536); err != nil {
		return nil, err
	}
	return c, nil
}

// ResumeGrace is the grace in force.
func (c *Catalogue) ResumeGrace() time.Duration { return c.opts.ResumeGrace }

// Ready reports whether the database answers, is a primary, and has this binary's schema.
func (c *Catalogue) Ready(ctx context.Context) error {
	var recovering bool
	err := c.pool.QueryRow(ctx, `SELECT pg_is_in_recovery() FROM artifactd.installation`).Scan(&recovering)
	if err != nil {
		return readFault(err)
	}
	if recovering {
		return ErrStandby
	}
	return nil
}

// ClaimKeyPrefix fixes the prefix of every object key at the first start of an installation, and
// refuses another one later: the objects written under the old one would be lost from sight.
func (c *Catalogue) ClaimKeyPrefix(ctx context.Context, prefix string) error {
	var inForce string
	if err := c.decideUnconfirmed(ctx, `SELECT key_prefix FROM artifactd.claim_key_prefix($1)`, []any{prefix}, &inForce); err != nil {
		return definite(err)
	}
	if inForce != prefix {
		return &InvalidError{Field: "s3-prefix", Detail: fmt.Sprintf("this database's objects lie under the prefix %q, not %q; set it back", inForce, prefix)}
	}
	return nil
}

// unreplicatedKey marks a connection whose last commit the server warned about.
const unreplicatedKey = "artifactd.unreplicated"

// noteUnreplicated remembers the server's warning that a transaction has committed locally but
// may not have been replicated (SQLSTATE 01000, sent when waiting for a synchronous standby was
// cut short). Nothing else of ours raises a warning of that class.
func noteUnreplicated(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Code == "01000" {
		conn.CustomData()[unreplicatedKey] = n.Message
	}
}
