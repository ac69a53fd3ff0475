package pointer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
)

// newWorldOn is a world on a server of its own.
func newWorldOn(t *testing.T, pg *devstack.Postgres) *world {
	t.Helper()
	db := testenv.DatabaseOn(t, pg)
	return &world{t: t, db: db, owner: db.Connect(t)}
}

// givenUp runs a call by a worker that gives up soon, while its commit waits. One that gave up before it
// came to its commit, as on a busy machine, is made again with more patience.
func (w *world) givenUp(call func(*Catalogue) error) error {
	w.t.Helper()
	for patience := 500 * time.Millisecond; patience < time.Minute; patience *= 2 {
		impatient := w.workerAt(w.db.ServiceURL, Options{DecisionTimeout: patience})
		answer := make(chan error, 1)
		go func() { answer <- call(impatient) }()
		var err error
		waited := false
		w.await("the client gives up", func() bool {
			waited = waited || w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'`) > 0
			select {
			case err = <-answer:
				return true
			default:
				return false
			}
		})
		if waited {
			return err
		}
	}
	w.t.Fatal("no commit ever waits for a standby")
	return nil
}

// cancelled runs a call whose commit the server stops waiting for: it then commits locally and
// warns that the commit may not have been replicated.
func (w *world) cancelled(call func() error) error {
	w.t.Helper()
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	var got error
	w.await("the server has given up the wait", func() bool {
		w.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'`)
		select {
		case got = <-answer:
			return true
		default:
			return false
		}
	})
	return got
}

// longLease is a lease of p with one stored file that outlives the test on the busiest machine.
func (w *world) longLease(c *Catalogue) Lease {
	w.t.Helper()
	l, err := c.Acquire(w.t.Context(), AcquireRequest{Pointer: "p", Holder: "A", TTL: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	w.stored(c, l, "A", "file")
	return l
}

func isUnknown(err error) bool {
	var unknown *OutcomeUnknownError
	return errors.As(err, &unknown)
}

func TestScheduleU6StandbyIsGoneAndComesBack(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	w := newWorldOn(t, primary)
	w.pointer("p")
	a := w.worker()
	w.published(a, w.ready(a, "p", "before"))
	l := w.longLease(a)
	standby, options := testenv.Standby(t, primary, "standby1")
	if err := standby.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.setting("synchronous_standby_names", "standby1")

	req := publish(l)
	calls := map[string]func(*Catalogue) error{
		"publish":   func(c *Catalogue) error { _, err := c.Publish(context.Background(), req); return err },
		"settle":    func(c *Catalogue) error { _, err := c.Settle(context.Background(), req.OperationID, "p"); return err },
		"operation": func(c *Catalogue) error { _, err := c.Operation(context.Background(), req.OperationID); return err },
	}
	for _, name := range []string{"publish", "settle", "operation"} {
		if err := w.cancelled(func() error { return calls[name](a) }); !isUnknown(err) {
			t.Errorf("%s, when the server gives up the wait: %v", name, err)
		}
		if err := w.givenUp(calls[name]); !isUnknown(err) {
			t.Errorf("%s, when the client gives up the wait: %v", name, err)
		}
	}
	// Back again.
	testenv.Postgres(t, options)
	out, err := a.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "published" || out.Versions[0].Version != l.Token {
		t.Fatalf("settled as %+v, %v once the standby is back", out, err)
	}
	w.shows("p", "1.2")
}

func TestScheduleU6StandbyIsDroppedFromTheSetting(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	w.pointer("p")
	a := w.worker()
	l := w.longLease(a)
	w.setting("synchronous_standby_names", "nobody")
	req := publish(l)
	publishes := func(c *Catalogue) error { _, err := c.Publish(t.Context(), req); return err }
	if err := w.givenUp(publishes); !isUnknown(err) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	w.setting("synchronous_standby_names", "")
	out, err := a.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "published" {
		t.Errorf("settled as %+v, %v", out, err)
	}
}

func TestScheduleU6StandbyIsPromoted(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	w := newWorldOn(t, primary)
	w.pointer("p")
	a := w.worker()
	w.published(a, w.ready(a, "p", "before"))
	l := w.longLease(a)
	standby, options := testenv.Standby(t, primary, "standby1")
	if err := standby.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.setting("synchronous_standby_names", "standby1")
	req := publish(l)
	publishes := func(c *Catalogue) error { _, err := c.Publish(t.Context(), req); return err }
	if err := w.givenUp(publishes); !isUnknown(err) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	promoted := testenv.Postgres(t, options)
	db := &testenv.DB{Name: w.db.Name, URL: promoted.URL(w.db.Name), Postgres: promoted,
		ServiceURL: strings.Replace(w.db.ServiceURL, primary.Socket()[:strings.LastIndex(primary.Socket(), "/")], promoted.Socket()[:strings.LastIndex(promoted.Socket(), "/")], 1)}
	w2 := &world{t: t, db: db, owner: db.Connect(t)}
	b := w2.workerAt(promoted.URL(db.Name), Options{})
	if _, err := b.Resolve(t.Context(), "p"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a standby in recovery resolved: %v", err)
	}
	if _, err := b.Resolve(t.Context(), "nobody"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a standby in recovery knows that a name is not there: %v", err)
	}
	w2.exec(`SELECT pg_promote()`)
	out, err := b.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "aborted" {
		t.Errorf("settled as %+v, %v on the promoted standby, which never saw it", out, err)
	}
	w2.shows("p", "1.1")
}

// setting changes a setting of the whole server and waits until it is in force.
func (w *world) setting(name, value string) {
	w.t.Helper()
	conn, err := pgx.Connect(context.Background(), w.db.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	// Not waited for: with a standby that is gone, nothing of this session may be.
	for _, sql := range []string{`SET synchronous_commit = local`, `ALTER SYSTEM SET ` + name + ` = '` + value + `'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			w.t.Fatal(err)
		}
	}
	w.exec(`SET synchronous_commit = local`)
	if value != "" {
		w.awaitWaitingCommits()
	}
}

// awaitWaitingCommits returns when commits wait for a standby. The setting is in force only once
// the server's checkpointer has taken notice of it, whatever a session says.
func (w *world) awaitWaitingCommits() {
	w.t.Helper()
	probe := w.db.Connect(w.t)
	var pid int
	if err := probe.QueryRow(w.t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		w.t.Fatal(err)
	}
	for waited := false; !waited; {
		done := make(chan error, 1)
		go func() {
			// It writes something: the commit of a transaction that has only taken a number waits for nobody.
			_, err := probe.Exec(context.Background(), `SELECT pg_logical_emit_message(true, 'probe', '')`)
			done <- err
		}()
		w.await("a probing commit waits or is through", func() bool {
			if w.count(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'`, pid) > 0 {
				waited = true
				w.exec(`SELECT pg_cancel_backend($1)`, pid)
			}
			select {
			case err := <-done:
				if err != nil {
					w.t.Error(err)
				}
				return true
			default:
				return false
			}
		})
	}
}
