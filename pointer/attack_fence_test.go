package pointer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An operation id belongs to one request of one kind, in whatever order the kinds come.
func TestAttackOperationIDAcrossKinds(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q", "r")
	a := w.worker()
	acquire := func(name string, op uuid.UUID) error {
		_, err := a.Acquire(t.Context(), AcquireRequest{Pointer: name, Holder: "A", OperationID: op})
		return err
	}
	publishAs := func(l Lease, op uuid.UUID) error {
		req := publish(l)
		req.OperationID = op
		_, err := a.Publish(t.Context(), req)
		return err
	}
	rollbackAs := func(op uuid.UUID) error {
		_, err := a.Rollback(t.Context(), RollbackRequest{Pointer: "p", To: Token{1, 1}, Current: Token{1, 1}, OperationID: op, Holder: "op"})
		return err
	}
	mismatch := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrOperationMismatch) {
			t.Errorf("%s: %v", what, err)
		}
	}
	published, refused, acquired, rolledBack, aborted := uuid.New(), uuid.New(), uuid.New(), uuid.New(), uuid.New()
	lp := w.ready(a, "p", "A")
	if err := publishAs(lp, published); err != nil {
		t.Fatal(err)
	}
	refusedFor(t, publishAs(lp, refused), ReasonAlreadyPublished)
	if err := acquire("q", acquired); err != nil {
		t.Fatal(err)
	}
	if err := rollbackAs(rolledBack); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Settle(t.Context(), aborted, "p"); err != nil {
		t.Fatal(err)
	}
	lr := w.ready(a, "r", "A")
	for _, forgotten := range []bool{false, true} {
		mismatch("publish's id for an acquire", acquire("p", published))
		mismatch("publish's id for a rollback", rollbackAs(published))
		mismatch("publish's id for another publish", publishAs(lr, published))
		mismatch("rollback's id for a publish", publishAs(lr, rolledBack))
		mismatch("rollback's id for an acquire", acquire("p", rolledBack))
		if err := publishAs(lp, published); err != nil {
			t.Errorf("the publish again (record forgotten: %v): %v", forgotten, err)
		}
		for _, op := range []uuid.UUID{published, rolledBack} {
			if out, err := a.Settle(t.Context(), op, "p"); err != nil || out.Kind != "published" {
				t.Errorf("settled (record forgotten: %v) as %+v, %v", forgotten, out, err)
			}
		}
		if !forgotten {
			mismatch("refused publish's id for an acquire", acquire("p", refused))
			mismatch("acquire's id for a publish", publishAs(lr, acquired))
			mismatch("acquire's id for a rollback", rollbackAs(acquired))
			lostFor(t, acquire("p", aborted), ReasonAborted)
			refusedFor(t, publishAs(lr, aborted), ReasonAborted)
			refusedFor(t, rollbackAs(aborted), ReasonAborted)
		}
		// What the record tells, the generation tells when the record is past its keeping.
		w.exec(`UPDATE artifactd.operation SET recorded_at = recorded_at - interval '41 days'`)
		w.exec(`SELECT artifactd.forget_operations(100)`)
	}
	w.shows("p", "1.2")
	w.shows("r", "")
	w.fate(lr, StateLeased)
	if n := w.count(`SELECT count(*) FROM artifactd.generation`); n != 4 {
		t.Errorf("%d generations, want 4", n)
	}
}

// Arguments that mean nothing change nothing, whoever calls the functions.
func TestAttackWeirdArguments(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	state := func() (s string) {
		err := w.owner.QueryRow(t.Context(), `SELECT string_agg(x, ' ') FROM (
			SELECT p::text AS x FROM artifactd.pointer p UNION ALL SELECT g::text FROM artifactd.generation g
			UNION ALL SELECT count(*)::text FROM artifactd.operation UNION ALL SELECT f::text FROM artifactd.manifest_file f) s`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := state()
	conn := w.db.ConnectService(t)
	id := l.ID.String()
	for _, sql := range []string{
		`SELECT artifactd.acquire('p', 'x', 60, gen_random_uuid(), NULL, NULL)`, // held
		`SELECT artifactd.renew('` + id + `', 1, 1, 'NaN', 604800)`,
		`SELECT artifactd.renew('` + id + `', 1, 1, 'Infinity', 604800)`,
		`SELECT artifactd.renew('` + id + `', 1, 1, 60, 'NaN')`,
		`SELECT artifactd.renew('` + id + `', 1, 1, -1e9, 604800)`,
		`SELECT artifactd.renew('` + id + `', 1, 1, 1e300, 604800)`,
		`SELECT artifactd.renew('` + id + `', -1, 1, 60, 604800)`,
		`SELECT artifactd.renew('` + id + `', 1, 9223372036854775807, 60, 604800)`,
		`SELECT artifactd.renew(NULL, 1, 1, 60, 604800)`,
		`SELECT artifactd.release(NULL)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a','b'], ARRAY[sha256('')], '{1,1}', '{x,x}', ARRAY[gen_random_uuid(), gen_random_uuid()], 60, 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a','a'], ARRAY[sha256(''), sha256('')], '{1,1}', '{x,x}', ARRAY[gen_random_uuid(), gen_random_uuid()], 60, 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY[sha256('')], '{-1}', '{x}', ARRAY[gen_random_uuid()], 60, 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY['\x00'::bytea], '{1}', '{x}', ARRAY[gen_random_uuid()], 60, 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY[sha256('')], '{1}', '{x}', NULL, 60, 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY[sha256('')], '{1}', '{x}', ARRAY[gen_random_uuid()], 'NaN', 60, 10)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY[sha256('')], '{1}', '{x}', ARRAY[gen_random_uuid()], 60, 60, 0)`,
		`SELECT artifactd.stage('` + id + `', 1, 1, ARRAY['a'], ARRAY[sha256('')], '{1}', '{x}', (SELECT array_agg(artifact_id) FROM artifactd.artifact), 60, 60, 10)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', NULL, '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', '{}', '{}', '{}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', ARRAY[NULL::uuid], '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(NULL, 'x', '{` + id + `}', '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', '{` + id + `,` + id + `}', '{1,1}', '{1,1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', '{{` + id + `}}', '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', '[0:0]={` + id + `}', '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
		`SELECT artifactd.publish(gen_random_uuid(), 'x', '{` + id + `}', '{1}', '{1}', '{}', '{}', '{not json}', false, 1000)`,
		`SELECT artifactd.rollback('p', NULL, NULL, NULL, NULL, gen_random_uuid(), 'x', gen_random_uuid(), 'x')`,
		`SELECT artifactd.retire('p', -1, -1)`,
		`SELECT artifactd.break_lease('p', 1, 2)`,
		`SELECT artifactd.pin('p', 1, 1, true)`,
		`SELECT artifactd.pin('p', NULL, NULL, NULL)`,
		`SELECT artifactd.settle(NULL, 'p')`,
		`SELECT artifactd.put_pointer('bad name', 1, 1, true, NULL)`,
		`SELECT artifactd.put_pointer(NULL, 1, 1, true, NULL)`,
		`SELECT artifactd.put_pointer(E'new\n', 1, 1, true, NULL)`,
		`SELECT artifactd.put_pointer('new', -1, 1, true, NULL)`,
		`SELECT artifactd.collect_mark(NULL, NULL, NULL)`,
		`SELECT artifactd.collect_mark(1, ARRAY['` + id + `'::uuid], -1e9)`,
	} {
		_, _ = conn.Exec(t.Context(), sql) // an error or a status: either way nothing has changed
		if after := state(); after != before {
			t.Errorf("%s\nchanged\n%s\nto\n%s", sql, before, after)
			before = after
		}
	}
	w.published(a, l)
}

// Under a snapshot from before the locks nothing may be decided.
func TestAttackOtherIsolationLevels(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	conn := w.db.ConnectService(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, call := range []string{
			`artifactd.acquire('p', 'x', 60, gen_random_uuid(), NULL, NULL)`,
			`artifactd.renew('` + l.ID.String() + `', 1, 1, 60, 604800)`,
			`artifactd.release('` + l.ID.String() + `')`,
			`artifactd.stage('` + l.ID.String() + `', 1, 1, '{}', '{}', '{}', '{}', '{}', 60, 60, 10)`,
			`artifactd.seal('` + l.ID.String() + `')`,
			`artifactd.publish(gen_random_uuid(), 'x', '{` + l.ID.String() + `}', '{1}', '{1}', '{}', '{}', '{}', false, 1000)`,
			`artifactd.rollback('p', 1, 1, 1, 1, gen_random_uuid(), 'x', gen_random_uuid(), 'x')`,
			`artifactd.settle(gen_random_uuid(), 'p')`,
			`artifactd.retire('p', NULL, NULL)`,
			`artifactd.break_lease('p', 1, 1)`,
			`artifactd.pin('p', 1, 1, true)`,
			`artifactd.collect_mark(1, '{}', 0)`,
			`artifactd.collect_files(1, 0)`,
			`artifactd.collect_unnamed(1, 0)`,
		} {
			tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `SELECT `+call); err == nil {
				t.Errorf("%s decides under %s", call, level)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.published(a, l)
}

// The service's role executes what decides, and nothing that carries decisions out.
func TestAttackServiceRoleExecutesOnlyDecisions(t *testing.T) {
	w := newWorld(t)
	rows, err := w.db.ConnectService(t).Query(t.Context(), `SELECT p.proname::text FROM pg_proc p
		WHERE p.pronamespace = 'artifactd'::regnamespace AND has_function_privilege(p.oid, 'EXECUTE')
		AND NOT p.prosecdef AND p.provolatile <> 'i'`)
	if err != nil {
		t.Fatal(err)
	}
	if inner, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(inner) > 0 {
		t.Errorf("the service's role may execute %v, %v", inner, err)
	}
	if n := w.count(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'artifactd'::regnamespace AND prosecdef
		AND NOT 'search_path=artifactd, pg_temp' = ANY (proconfig)`); n != 0 {
		t.Errorf("%d functions run as their owner under their caller's search_path", n)
	}
	if n := w.count(`SELECT count(*) FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) x
		WHERE pronamespace = 'artifactd'::regnamespace AND x.grantee = 0`); n != 0 {
		t.Errorf("%d functions are executable by everybody", n)
	}
}

// Renewing, acquiring and publishing keep their row versions in one page: no index is touched.
func TestAttackHotRowStaysHot(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	for range 60 {
		l := w.ready(a, "p", "A")
		if _, err := a.Renew(t.Context(), l.ID, l.Token, 2*time.Minute); err != nil {
			t.Fatal(err)
		}
		w.published(a, l)
	}
	a.pool.Close() // a backend that ends tells its statistics
	w.await("the statistics are there", func() bool {
		return w.count(`SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'artifactd.pointer'::regclass`) >= 180
	})
	updates := w.count(`SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'artifactd.pointer'::regclass`)
	hot := w.count(`SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'artifactd.pointer'::regclass`)
	if hot*100 < updates*95 {
		t.Errorf("%d of %d updates were HOT", hot, updates)
	}
}

// A settle, an acquire, a publish and a rollback meet at one operation id before any of them has
// committed: one of them has it, and the others are told so.
func TestAttackOneOperationIDInFlight(t *testing.T) {
	for _, first := range []string{"acquire", "publish", "settle"} {
		t.Run(first, func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p", "q", "r")
			a, b := w.worker(), w.worker()
			lp := w.ready(a, "p", "A")
			op := uuid.New()
			tx, err := w.db.ConnectService(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			one := int64(1)
			switch first {
			case "acquire":
				_, err = tx.Exec(t.Context(), `SELECT artifactd.acquire('q', 'x', 60, $1, $2, 'x')`, uuid.New(), op)
			case "publish":
				_, err = callPublish(t.Context(), tx, op, []uuid.UUID{lp.ID}, []*int64{&one}, []*int64{&one})
			case "settle":
				_, err = tx.Exec(t.Context(), `SELECT artifactd.settle($1, 'q')`, op)
			}
			if err != nil {
				t.Fatal(err)
			}
			answers := make(chan error, 2)
			go func() {
				_, err := b.Acquire(context.Background(), AcquireRequest{Pointer: "r", Holder: "B", OperationID: op})
				answers <- err
			}()
			go func() {
				out, err := b.Settle(context.Background(), op, "r")
				if err == nil {
					err = fmt.Errorf("settled as %s", out.Kind)
				}
				answers <- err
			}()
			w.awaitBlocked(2)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err := <-answers
				var lost *LeaseLostError
				switch {
				case first == "settle" && errors.As(err, &lost) && lost.Reason == ReasonAborted:
				case first != "settle" && errors.Is(err, ErrOperationMismatch):
				case err != nil && err.Error() == map[string]string{"acquire": "settled as acquired", "publish": "settled as published", "settle": "settled as aborted"}[first]:
				default:
					t.Errorf("got %v", err)
				}
			}
			if n := w.count(`SELECT generation FROM artifactd.pointer WHERE name = 'r'`); n != 0 {
				t.Error("the second acquire went through")
			}
		})
	}
}

// The clock is stepped back while a lease is live: it never has more left than its ttl, once
// anybody has looked.
func TestAttackClockSteppedBack(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	// An end an hour ahead is what a clock that went back by an hour makes of one.
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = lease_expires_at + interval '1 hour'`)
	if got, err := a.Lease(t.Context(), l.ID); err != nil || got.ExpiresIn > DefaultTTL {
		t.Errorf("%s left, %v", got.ExpiresIn, err)
	}
	var held *LeaseHeldError
	if _, err := a.Acquire(t.Context(), AcquireRequest{Pointer: "p", Holder: "B"}); !errors.As(err, &held) || held.ExpiresIn > DefaultTTL {
		t.Errorf("got %v", err)
	}
	if left := w.count(`SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::integer FROM artifactd.pointer`); left > 61 {
		t.Errorf("%d s left after somebody was told less", left)
	}
	w.exec(`UPDATE artifactd.pointer SET lease_expires_at = lease_expires_at + interval '1 hour'`)
	if got, err := a.Renew(t.Context(), l.ID, l.Token, 0); err != nil || got.ExpiresIn > DefaultTTL {
		t.Errorf("renewed to %s, %v", got.ExpiresIn, err)
	}
	if left := w.count(`SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::integer FROM artifactd.pointer`); left > 61 {
		t.Errorf("%d s left after a renewal of 60", left)
	}
}
