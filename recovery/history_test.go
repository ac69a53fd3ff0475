package recovery_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// past is an installation whose guard is armed.
type past struct {
	t         *testing.T
	owner     *pgx.Conn
	pool      *pgxpool.Pool
	table     *pointer.Histories
	catalogue *pointer.Catalogue
	options   recovery.Options
	watch     *recovery.Watch
}

func newPast(t *testing.T) *past {
	t.Helper()
	t.Parallel()
	db, b := testenv.Database(t), testenv.Bucket(t, testenv.Versitygw)
	cfg, err := pointer.PoolConfig(db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	p := &past{t: t, owner: db.Connect(t)}
	if p.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	store, err := s3store.New(t.Context(), s3store.Config{Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name,
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey, PathStyle: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	p.table = pointer.NewHistories(p.pool)
	p.options = recovery.Options{Table: p.table, Store: store, Layout: artifacts.Layout{Prefix: "a/"},
		Timing: recovery.Timing{Confirm: time.Hour}, Replica: uuid.New()}
	p.watch = p.replica()
	if p.catalogue, err = pointer.New(p.pool, pointer.Options{}); err != nil {
		t.Fatal(err)
	}
	p.look(p.watch)
	return p
}

func (p *past) replica() *recovery.Watch {
	p.t.Helper()
	o := p.options
	if p.watch != nil {
		o.Replica = uuid.New()
	}
	w, err := recovery.NewWatch(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return w
}

func (p *past) look(w *recovery.Watch) {
	p.t.Helper()
	if err := w.Look(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) exec(sql string) {
	p.t.Helper()
	if _, err := p.owner.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) now() pointer.History {
	p.t.Helper()
	h, err := p.table.Now(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return h
}

// counts reports by how much the counter rises.
func (p *past) counts(f func()) int64 {
	p.t.Helper()
	before := p.now().Counter
	f()
	return p.now().Counter - before
}

func (p *past) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *past) lease(name string) pointer.Lease {
	p.t.Helper()
	l, err := p.catalogue.Acquire(p.t.Context(), pointer.AcquireRequest{Pointer: name, Holder: "h", TTL: time.Hour})
	p.must(err)
	return l
}

func (p *past) ready(name string) pointer.Lease {
	p.t.Helper()
	l := p.lease(name)
	s, err := p.catalogue.Stage(p.t.Context(), l.ID, l.Token, []pointer.StageFile{{Path: "f", Digest: artifacts.DigestOf([]byte("x")), Size: 1}})
	p.must(err)
	p.must(p.catalogue.MarkStored(p.t.Context(), s[0].Artifact.ID, pointer.VerifiedOnTransfer))
	return l
}

// forgetWitness removes the newest witness, as if it had never been written.
func (p *past) forgetWitness() {
	p.t.Helper()
	var last string
	for o, err := range p.options.Store.List(p.t.Context(), "a/witness/") {
		p.must(err)
		last = o.Key
	}
	_, err := p.options.Store.Delete(p.t.Context(), []string{last})
	p.must(err)
}

// Every call that decides refuses on a history that nobody has compared with the bucket, whichever
// of its marks is another one.
func TestEveryDecisionLooksAtTheHistory(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	_, _, err := p.catalogue.PutPointer(ctx, "p", pointer.SettingsChange{})
	p.must(err)
	l := p.ready("p")
	collector, err := gc.New(p.pool, nil, gc.Options{})
	p.must(err)
	operation := uuid.New()
	calls := map[string]func() error{
		"put pointer": func() error { _, _, err := p.catalogue.PutPointer(ctx, "q", pointer.SettingsChange{}); return err },
		"acquire": func() error {
			_, err := p.catalogue.Acquire(ctx, pointer.AcquireRequest{Pointer: "p", Holder: "x"})
			return err
		},
		"renew":     func() error { _, err := p.catalogue.Renew(ctx, l.ID, l.Token, time.Hour); return err },
		"release":   func() error { return p.catalogue.Release(ctx, l.ID) },
		"break":     func() error { return p.catalogue.BreakLease(ctx, "p", l.Token) },
		"retire":    func() error { return p.catalogue.Retire(ctx, "p", pointer.Token{}) },
		"pin":       func() error { return p.catalogue.Pin(ctx, "p", l.Token, true) },
		"publish":   func() error { _, err := p.catalogue.Publish(ctx, publicationOf(l)); return err },
		"settle":    func() error { _, err := p.catalogue.Settle(ctx, operation, "p"); return err },
		"operation": func() error { _, err := p.catalogue.Operation(ctx, operation); return err },
		"rollback": func() error {
			_, err := p.catalogue.Rollback(ctx, pointer.RollbackRequest{Pointer: "p", To: l.Token, Current: l.Token, OperationID: operation, Holder: "h"})
			return err
		},
		"stage": func() error {
			_, err := p.catalogue.Stage(ctx, l.ID, l.Token, []pointer.StageFile{{Path: "g", Digest: artifacts.DigestOf([]byte("x")), Size: 1}})
			return err
		},
		"collect": func() error { _, err := collector.RunOnce(ctx, gc.RunOptions{}); return err },
	}
	for name, change := range map[string]struct{ spoil, mend string }{
		"start": {`UPDATE artifactd.installation SET server_started_at = server_started_at - interval '1 second'`,
			`UPDATE artifactd.installation SET server_started_at = pg_postmaster_start_time()`},
		"timeline": {`UPDATE artifactd.installation SET timeline = '000000FF'`,
			`UPDATE artifactd.installation SET timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8)`},
		"table": {`UPDATE artifactd.installation SET table_path = 'base/1/2'`,
			`UPDATE artifactd.installation SET table_path = pg_relation_filepath('artifactd.installation')`},
		"sign": {`UPDATE artifactd.installation SET changed_at = now(), changed_why = 'a test'`,
			`UPDATE artifactd.installation SET changed_at = NULL, changed_why = NULL`},
	} {
		p.exec(change.spoil)
		for call, f := range calls {
			if err := f(); !errors.Is(err, pointer.ErrHistoryChanged) {
				t.Errorf("another %s, %s: %v", name, call, err)
			}
		}
		if _, err := p.catalogue.Settings(ctx, "p"); err != nil {
			t.Errorf("another %s, reading: %v", name, err)
		}
		p.exec(change.mend)
	}
	if _, err := p.catalogue.Publish(ctx, publicationOf(l)); err != nil {
		t.Errorf("on the history as it was: %v", err)
	}
}

func publicationOf(l pointer.Lease) pointer.PublishRequest {
	return pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}
}

// Whatever a later decision rests on is counted, so that its loss is noticed.
func TestWhatIsCounted(t *testing.T) {
	p := newPast(t)
	ctx := t.Context()
	var l pointer.Lease
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"put pointer", func() { _, _, err := p.catalogue.PutPointer(ctx, "p", pointer.SettingsChange{}); p.must(err) }},
		{"acquire", func() { l = p.lease("p") }},
		{"release", func() { p.must(p.catalogue.Release(ctx, l.ID)) }},
		{"acquire again", func() { l = p.lease("p") }},
		{"break", func() { p.must(p.catalogue.BreakLease(ctx, "p", l.Token)) }},
		{"an expiry that somebody saw", func() {
			l = p.lease("p")
			p.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp()`)
			before := p.now().Counter
			if _, err := p.catalogue.Renew(ctx, l.ID, l.Token, time.Hour); err == nil {
				t.Error("an expired lease was renewed")
			}
			if p.now().Counter == before {
				t.Error("the recorded expiry is not counted")
			}
		}},
		{"settle", func() { _, err := p.catalogue.Settle(ctx, uuid.New(), "p"); p.must(err) }},
	} {
		if n := p.counts(step.do); n < 1 {
			t.Errorf("%s counts %d", step.name, n)
		}
	}
	l = p.ready("p")
	if n := p.counts(func() { _, err := p.catalogue.Publish(ctx, publicationOf(l)); p.must(err) }); n != 1 {
		t.Errorf("publish counts %d", n)
	}
	if n := p.counts(func() { p.must(p.catalogue.Pin(ctx, "p", l.Token, true)) }); n != 1 {
		t.Errorf("pin counts %d", n)
	}
	if n := p.counts(func() {
		_, err := p.catalogue.Rollback(ctx, pointer.RollbackRequest{Pointer: "p", To: l.Token, Current: l.Token, OperationID: uuid.New(), Holder: "h"})
		p.must(err)
	}); n != 1 {
		t.Errorf("rollback counts %d", n)
	}
	v, err := p.catalogue.Resolve(ctx, "p")
	p.must(err)
	if n := p.counts(func() { p.must(p.catalogue.Retire(ctx, "p", v.Token)) }); n < 1 {
		t.Errorf("retire counts %d", n)
	}
	token, _, err := p.catalogue.CreateToken(ctx, "t", []pointer.Scope{pointer.ScopeRead}, []string{"*"}, nil)
	p.must(err)
	if n := p.counts(func() { p.must(p.catalogue.RevokeToken(ctx, token.ID)) }); n != 1 {
		t.Errorf("revoking a token counts %d", n)
	}
	if n := p.counts(func() { _, err := p.catalogue.Resolve(ctx, "p"); _ = err }); n != 0 {
		t.Errorf("reading counts %d", n)
	}
}

// What is known to be lost is never passed by without a person's word, whatever a replica believes.
func TestALossIsRaisedByPeopleOnly(t *testing.T) {
	p := newPast(t)
	h := p.now()
	id, err := p.table.Claim(t.Context(), uuid.New(), h.Epoch, uuid.New(), time.Minute)
	p.must(err)
	next := pointer.EpochID{Number: 2, UUID: id}
	if _, err := p.table.Note(t.Context(), h.Epoch, "a test", false, h.Counter+7); err != nil {
		t.Fatal(err)
	}
	if status, err := p.table.Take(t.Context(), h.Epoch, next, "a test", false); err != nil || status != pointer.EpochLoss {
		t.Errorf("taken over a reported loss: %s, %v", status, err)
	}
	if _, err := p.table.Note(t.Context(), h.Epoch, "a test", true, 0); err != nil {
		t.Fatal(err)
	}
	if status, err := p.table.Take(t.Context(), h.Epoch, next, "a test", false); err != nil || status != pointer.EpochLoss {
		t.Errorf("taken over a known loss: %s, %v", status, err)
	}
	if status, err := p.table.Take(t.Context(), h.Epoch, next, "a test", true); err != nil || status != pointer.EpochTaken {
		t.Errorf("taken with a person's word: %s, %v", status, err)
	}
	// Whoever is late, with what it knew of the old epoch, changes nothing any more.
	if first, err := p.table.Note(t.Context(), h.Epoch, "late", true, 1<<40); err != nil || first || p.now().ChangedAt != nil {
		t.Errorf("a late sign was taken: %v, %v", first, err)
	}
	if status, err := p.table.Take(t.Context(), h.Epoch, next, "late", true); err != nil || status != pointer.EpochSuperseded {
		t.Errorf("taken twice: %s, %v", status, err)
	}
}

// After a restart every replica that the database knows of looks before writes go on: one of them
// may have seen more than the witness tells.
func TestAReleaseWaitsForTheOthers(t *testing.T) {
	p := newPast(t)
	other := p.replica()
	p.look(other)
	// What the other one has seen, and the bucket does not tell.
	p.exec(`UPDATE artifactd.counter SET n = n + 5 WHERE slot = 0`)
	p.look(other)
	p.forgetWitness()
	p.exec(`UPDATE artifactd.counter SET n = n - 5 WHERE slot = 0`)
	p.exec(`UPDATE artifactd.replica SET server_started_at = server_started_at - interval '1 hour'`)
	p.exec(`UPDATE artifactd.installation SET server_started_at = server_started_at - interval '1 hour'`)
	h := p.now()
	released, err := p.table.Release(t.Context(), p.options.Replica, h.Epoch, 1000*time.Hour)
	if err != nil || released {
		t.Fatalf("released before the other one had looked: %v, %v", released, err)
	}
	p.look(other)
	if h := p.now(); h.ChangedAt == nil || !h.LossKnown || h.KnownAhead != h.Counter+5 {
		t.Errorf("the other one noted %+v", h)
	}
	if _, err := p.watch.Confirm(); err != nil {
		t.Fatalf("not looked yet: %v", err)
	}
	p.look(p.watch)
	if _, err := p.watch.Confirm(); !errors.Is(err, pointer.ErrHistoryChanged) {
		t.Errorf("the first one confirms: %v", err)
	}
}
