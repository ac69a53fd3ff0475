package pointer

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// callPublish calls the function as the service's role would, past every check of this package.
func callPublish(ctx context.Context, conn interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, op uuid.UUID, leases []uuid.UUID, epochs, generations []*int64) (status string, err error) {
	var answer []byte
	err = conn.QueryRow(ctx, publishSQL, op, []byte("digest"), leases, epochs, generations, []*int{}, []*int64{}, []*string{}, false, InlineSealFiles).Scan(&status, &answer)
	return status, err
}

// A token that is missing is no token: the fence compares both numbers, whoever calls.
func TestAttackNullTokenIsNoToken(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a := w.worker()
	l := w.ready(a, "p", "A")
	conn := w.db.ConnectService(t)
	one := int64(1)
	for name, token := range map[string][2][]*int64{
		"null epoch":      {{nil}, {&one}},
		"null generation": {{&one}, {nil}},
		"both null":       {{nil}, {nil}},
		"no elements":     {{}, {}},
	} {
		status, err := callPublish(t.Context(), conn, uuid.New(), []uuid.UUID{l.ID}, token[0], token[1])
		if err == nil && status != "refused" {
			t.Errorf("publish with %s: %s", name, status)
		}
	}
	w.shows("p", "")

	lq := w.ready(a, "q", "A")
	var status string
	for _, sql := range []string{
		`SELECT status FROM artifactd.renew($1, NULL, NULL, 3600, 604800)`,
		`SELECT status FROM artifactd.stage($1, NULL, NULL, '{}', '{}', '{}', '{}', '{}', 60, 60, 10)
			UNION ALL SELECT 'ok' LIMIT 1`,
	} {
		if err := conn.QueryRow(t.Context(), sql, lq.ID).Scan(&status); err == nil && status != "lease-lost" && status != "lease-not-found" {
			t.Errorf("%s: %s", sql, status)
		}
	}
	if err := conn.QueryRow(t.Context(), `SELECT status FROM artifactd.break_lease('q', NULL, NULL)`).Scan(&status); err == nil && status != "token-mismatch" {
		t.Errorf("break-lease of no token: %s", status)
	}
	w.fate(lq, StateLeased)
	w.published(a, lq)
	if err := conn.QueryRow(t.Context(), `SELECT status FROM artifactd.retire('q', 1, NULL)`).Scan(&status); err == nil && status == "retired" {
		t.Errorf("retire by half a token: %s", status)
	}
	w.shows("q", "1.1")
}

// R9: the recorded refusal is the answer, also once the files of a generation that had no fault
// of its own are collected.
func TestAttackRefusalOutlivesTheFiles(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a := w.worker()
	lp, lq := w.ready(a, "p", "A"), w.ready(a, "q", "A")
	w.expire("q")
	req := PublishRequest{OperationID: uuid.New(), Leases: []PublishLease{{LeaseID: lp.ID, Token: lp.Token}, {LeaseID: lq.ID, Token: lq.Token}}}
	_, err := a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonExpired)
	if err := a.Release(t.Context(), lp.ID); err != nil {
		t.Fatal(err)
	}
	w.collect()
	_, err = a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonExpired)
}

// collect marks and empties everything that is garbage, as the collector does, without a store.
func (w *world) collect() {
	w.t.Helper()
	w.exec(`UPDATE artifactd.installation SET key_prefix = coalesce(key_prefix, 'artifactd/')`)
	for {
		if w.count(`SELECT coalesce(sum(m.looked), 0) FROM artifactd.collect_due(100) d, artifactd.collect_mark(d.pointer_id, d.generation_ids, 0) m`) == 0 {
			break
		}
	}
	for w.count(`SELECT count(*) FROM artifactd.collect_files(1000, 0) WHERE status = 'worked'`) > 0 {
	}
	w.exec(`SELECT artifactd.collect_unnamed(1000, 0)`)
}

// R9: what is told as a refusal is recorded as one.
func TestAttackRefusalOfAnUnknownLeaseIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	w.exec(`UPDATE artifactd.installation SET epoch = 2`)
	req := PublishRequest{OperationID: uuid.New(), Leases: []PublishLease{{LeaseID: uuid.New(), Token: Token{1, 1}}}}
	_, err := a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonEpochSuperseded)
	out, err := a.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "refused" {
		t.Errorf("told refused, settled as %+v, %v", out, err)
	}
	l := w.ready(a, "p", "A")
	again := publish(l)
	again.OperationID = req.OperationID
	if _, err := a.Publish(t.Context(), again); !errors.Is(err, ErrOperationMismatch) {
		t.Errorf("the refused operation's id for another request: %v", err)
	}
}

// R3: no lock is awaited after the clock was read. A dead generation whose row somebody else
// holds, as a slow seal does, must not let a publish be decided before and done after its expiry.
func TestAttackPublishWaitsForNothingAfterTheClock(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	dead := w.ready(a, "p", "dead")
	if err := a.Release(t.Context(), dead.ID); err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT artifactd.collect_mark(pointer_id, ARRAY[$1::uuid], 3600) FROM artifactd.pointer WHERE name = 'p'`, dead.ID)
	l := w.ready(a, "p", "A")
	sealer, err := w.db.ConnectService(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sealer.Exec(t.Context(), `SELECT artifactd.seal($1)`, dead.ID); err != nil {
		t.Fatal(err)
	}
	w.shorten("p", 4*time.Second)
	answer := make(chan error, 1)
	go func() { _, err := a.Publish(context.Background(), publish(l)); answer <- err }()
	var got error
	through := false
	w.await("the publish is through or waits for a lock", func() bool {
		select {
		case got = <-answer:
			through = true
			return true
		default:
			return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}
	})
	if through { // it waits for nothing: as good
		if got != nil {
			refusedFor(t, got, ReasonExpired) // on a machine that took its time
		}
		_ = sealer.Rollback(t.Context())
		return
	}
	w.awaitExpiry("p")
	if err := sealer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	refusedFor(t, <-answer, ReasonExpired)
}

// R3, R13: staging again waits for the artifacts that it changes before it reads the clock.
func TestAttackStageWaitsForNothingAfterTheClock(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	f := w.stage(a, l, "A", "file")
	blocker, err := w.db.Connect(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(t.Context(), `SELECT 1 FROM artifactd.artifact WHERE artifact_id = $1 FOR NO KEY UPDATE`, f[0].Artifact.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // so that a fresh URL would live longer than the first one
	w.shorten("p", 2*time.Second)
	answer := make(chan error, 1)
	go func() {
		_, err := a.Stage(context.Background(), l.ID, l.Token, []StageFile{{Path: "file", Digest: f[0].Artifact.Digest, Size: f[0].Artifact.Size}})
		answer <- err
	}()
	w.awaitBlocked(1)
	w.awaitExpiry("p")
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	lostFor(t, <-answer, ReasonExpired)
}

// R23: a decision made in the old epoch cannot be committed after the raise, nor be overlooked
// by it.
func TestAttackEpochIsNotRaisedBehindADecision(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	tx, err := w.db.ConnectService(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one := int64(1)
	status, err := callPublish(t.Context(), tx, uuid.New(), []uuid.UUID{l.ID}, []*int64{&one}, []*int64{&one})
	if err != nil || status != "published" {
		t.Fatalf("%s, %v", status, err)
	}
	raised := make(chan error, 1)
	conn := w.db.Connect(t)
	go func() {
		_, err := conn.Exec(context.Background(), `UPDATE artifactd.installation SET epoch = epoch + 1`)
		raised <- err
	}()
	var through bool
	w.await("the raise is through or waits for the decision", func() bool {
		through = len(raised) > 0
		return through || w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	err = tx.Commit(t.Context())
	switch {
	case through && err == nil:
		t.Error("a publish of epoch 1 was committed after the raise to epoch 2")
	case !through && err != nil:
		t.Error(err)
	}
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
}

// R24: what revives dead leases is not for the owner's scripts either.
func TestAttackOwnerCannotReviveOrForge(t *testing.T) {
	for name, sql := range map[string]string{
		"lower the epoch":             `UPDATE artifactd.installation SET epoch = 1`,
		"delete the installation":     `DELETE FROM artifactd.installation`,
		"truncate the installation":   `TRUNCATE artifactd.installation`,
		"change the installation id":  `UPDATE artifactd.installation SET installation_id = gen_random_uuid()`,
		"change the key prefix":       `UPDATE artifactd.installation SET key_prefix = 'elsewhere/'`,
		"publish an expired lease":    `UPDATE artifactd.generation SET state = 'published', ended_at = clock_timestamp(), published_at = clock_timestamp() WHERE state = 'leased'`,
		"insert a published one":      `INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at, manifest_id, published_at) SELECT gen_random_uuid(), pointer_id, 9, 9, 'published', 'x', 0, now(), now(), gen_random_uuid(), now() FROM artifactd.pointer`,
		"insert a pointer with epoch": `INSERT INTO artifactd.pointer (name, epoch) VALUES ('x', 99)`,
		"empty a published manifest":  `DELETE FROM artifactd.manifest_file`,
		"undo an outcome":             `UPDATE artifactd.operation SET outcome = 'aborted' WHERE outcome = 'published'`,
		"truncate outcomes":           `TRUNCATE artifactd.operation`,
		"truncate files":              `TRUNCATE artifactd.artifact CASCADE`,
		"add to a published manifest": `INSERT INTO artifactd.manifest_file SELECT manifest_id, 'more', artifact_id, 'x' FROM artifactd.manifest_file`,
		"rename a published file":     `UPDATE artifactd.manifest_file SET path = path || 'x'`,
		"delete an outcome":           `DELETE FROM artifactd.operation`,
		"change published bytes":      `UPDATE artifactd.artifact SET digest = sha256('other')`,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p", "q")
			a := w.worker()
			w.exec(`UPDATE artifactd.installation SET key_prefix = 'artifactd/', epoch = 2`)
			w.published(a, w.ready(a, "p", "A"))
			w.ready(a, "q", "A")
			w.expire("q")
			if _, err := w.owner.Exec(t.Context(), sql); err == nil {
				t.Errorf("the owner's script may %s", name)
			}
		})
	}
}

// R11: an argument that never left this process is no unknown outcome.
func TestAttackUnsendableArgumentIsNoUnknownOutcome(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	huge := 1 << 40
	req := publish(l)
	req.Leases[0].FileCount = &huge
	_, err := a.Publish(t.Context(), req)
	var unknown *OutcomeUnknownError
	if err == nil || errors.As(err, &unknown) {
		t.Errorf("a file count of 2^40: %v", err)
	}
	for _, metadata := range []string{`{"a":"\ud800"}`, `{"a":1e400000}`, "{\"a\":\"\xff\"}", `{"a":` + strings.Repeat("[", 8000) + strings.Repeat("]", 8000) + `}`} {
		req := publish(l)
		req.Leases[0].Metadata = json.RawMessage(metadata)
		_, err := a.Publish(t.Context(), req)
		var invalid *InvalidError
		if err != nil && !errors.As(err, &invalid) {
			t.Errorf("metadata %.20q: %v", metadata, err)
		}
		if err == nil {
			l = w.ready(a, "p", "A")
		}
	}
	if _, err := a.Resolve(t.Context(), "\x00"); !errors.Is(err, ErrPointerNotFound) {
		t.Errorf("a name that no text can hold: %v", err)
	}
}
