package pointer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is one database with everybody who uses it. Workers have connections of their own, under
// the service's role; owner is the test's hand on the database's state.
type world struct {
	t     *testing.T
	db    *testenv.DB
	owner *pgx.Conn
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	db := testenv.Database(t)
	return &world{t: t, db: db, owner: db.Connect(t)}
}

// worker is a Catalogue with its own connections.
func (w *world) worker() *Catalogue {
	w.t.Helper()
	return w.workerAt(w.db.ServiceURL, Options{})
}

func (w *world) workerAt(url string, opts Options) *Catalogue {
	w.t.Helper()
	cfg, err := PoolConfig(url)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.MaxConns = 8
	// The pool pings a connection that was idle for a second: a statement nobody wrote down, in
	// which a proxy that holds answers would keep the one that the test waits for.
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	c, err := New(pool, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func (w *world) pointer(names ...string) {
	w.t.Helper()
	c := w.worker()
	for _, name := range names {
		if _, _, err := c.PutPointer(w.t.Context(), name, SettingsChange{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) acquire(c *Catalogue, name, holder string) Lease {
	w.t.Helper()
	lease, err := c.Acquire(w.t.Context(), AcquireRequest{Pointer: name, Holder: holder})
	if err != nil {
		w.t.Fatalf("%s acquires %s: %v", holder, name, err)
	}
	return lease
}

// stage declares files whose bytes are their own paths plus salt, without storing them.
func (w *world) stage(c *Catalogue, l Lease, salt string, paths ...string) []StagedFile {
	w.t.Helper()
	files := make([]StageFile, len(paths))
	for i, p := range paths {
		body := p + salt
		files[i] = StageFile{Path: p, Digest: artifacts.DigestOf([]byte(body)), Size: int64(len(body))}
	}
	staged, err := c.Stage(w.t.Context(), l.ID, l.Token, files)
	if err != nil {
		w.t.Fatalf("stage: %v", err)
	}
	return staged
}

func (w *world) stored(c *Catalogue, l Lease, salt string, paths ...string) []StagedFile {
	w.t.Helper()
	staged := w.stage(c, l, salt, paths...)
	for _, f := range staged {
		if f.Artifact.Stored {
			continue
		}
		if err := c.MarkStored(w.t.Context(), f.Artifact.ID, VerifiedOnTransfer); err != nil {
			w.t.Fatalf("mark stored: %v", err)
		}
	}
	return staged
}

// ready is a lease with one stored file.
func (w *world) ready(c *Catalogue, name, holder string) Lease {
	w.t.Helper()
	l := w.acquire(c, name, holder)
	w.stored(c, l, holder, "file")
	return l
}

func publish(l Lease) PublishRequest {
	return PublishRequest{OperationID: uuid.New(), Leases: []PublishLease{{LeaseID: l.ID, Token: l.Token}}}
}

func (w *world) published(c *Catalogue, l Lease) {
	w.t.Helper()
	if _, err := c.Publish(w.t.Context(), publish(l)); err != nil {
		w.t.Fatalf("publish %s %s: %v", l.Pointer, l.Token, err)
	}
}

// exec changes the database's state as the owner.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.owner.Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// expire lets a pointer's lease end now, without anybody having noticed.
func (w *world) expire(name string) {
	w.t.Helper()
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() WHERE name = $1`, name)
}

// shorten lets a pointer's lease end soon, for a test that waits until it does: with a short lease from
// the start, a busy machine would be too slow for what comes before.
func (w *world) shorten(name string, left time.Duration) {
	w.t.Helper()
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() + make_interval(secs => $2) WHERE name = $1`, name, left.Seconds())
}

// awaitExpiry returns when the database's clock has passed the lease's end.
func (w *world) awaitExpiry(name string) {
	w.t.Helper()
	w.exec(`SELECT pg_sleep_until(lease_expires_at + interval '1 millisecond') FROM artifactd.pointer WHERE name = $1`, name)
}

// hold locks a pointer's row from a connection of its own until the returned transaction ends.
func (w *world) hold(name string) pgx.Tx {
	w.t.Helper()
	conn := w.db.Connect(w.t)
	tx, err := conn.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := tx.Exec(w.t.Context(), `SELECT 1 FROM artifactd.pointer WHERE name = $1 FOR NO KEY UPDATE`, name); err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// awaitBlocked returns when n sessions of this database wait for a lock.
func (w *world) awaitBlocked(n int) {
	w.t.Helper()
	w.await(fmt.Sprintf("%d sessions wait for a lock", n), func() bool {
		var have int
		err := w.owner.QueryRow(w.t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&have)
		if err != nil {
			w.t.Fatal(err)
		}
		return have >= n
	})
}

// await polls until the condition holds; the order of a schedule never depends on how long it takes.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited too long until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// shows checks what the row shows: the durable state, not an answer. An empty token is nothing.
func (w *world) shows(name, token string) {
	w.t.Helper()
	var have *string
	err := w.owner.QueryRow(w.t.Context(), `SELECT current_epoch || '.' || current_generation FROM artifactd.pointer WHERE name = $1`, name).Scan(&have)
	if err != nil {
		w.t.Fatal(err)
	}
	if orZero(have) != token {
		w.t.Errorf("%s shows %q, want %q", name, orZero(have), token)
	}
}

// fate checks the recorded state of a generation.
func (w *world) fate(l Lease, want State) {
	w.t.Helper()
	var have State
	if err := w.owner.QueryRow(w.t.Context(), `SELECT state FROM artifactd.generation WHERE generation_id = $1`, l.ID).Scan(&have); err != nil {
		w.t.Fatal(err)
	}
	if have != want {
		w.t.Errorf("generation %s of %s is %s, want %s", l.Token, l.Pointer, have, want)
	}
}

func (w *world) expiry(name string) time.Time {
	w.t.Helper()
	var at time.Time
	if err := w.owner.QueryRow(w.t.Context(), `SELECT lease_expires_at FROM artifactd.pointer WHERE name = $1`, name).Scan(&at); err != nil {
		w.t.Fatal(err)
	}
	return at
}

// count runs a query for one number.
func (w *world) count(sql string, args ...any) int {
	w.t.Helper()
	var n int
	if err := w.owner.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func refusedFor(t *testing.T, err error, want Reason) {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal (%s)", err, want)
	}
	if refused.Reason() != want {
		t.Fatalf("refused for %s, want %s", refused.Reason(), want)
	}
}

func lostFor(t *testing.T, err error, want Reason) {
	t.Helper()
	var lost *LeaseLostError
	if !errors.As(err, &lost) {
		t.Fatalf("got %v, want lease lost (%s)", err, want)
	}
	if lost.Reason != want {
		t.Fatalf("lost for %s, want %s", lost.Reason, want)
	}
}

func invalidField(t *testing.T, err error, field string) {
	t.Helper()
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v, want a fault of field %s", err, field)
	}
	if !strings.HasPrefix(invalid.Field, field) {
		t.Fatalf("fault of field %s, want %s", invalid.Field, field)
	}
}
