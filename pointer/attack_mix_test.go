package pointer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// mix is what eight sessions that call every function at random share: what they may refer to,
// and what they were told.
type mix struct {
	mu     sync.Mutex
	leases []mixLease
	ops    []uuid.UUID
	told   map[uuid.UUID]string // the outcome of an operation, once told
	tally  map[string]int
	faults []string
}

type mixLease struct {
	pointer           string
	id                uuid.UUID
	epoch, generation int64
}

func (m *mix) fault(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.faults) < 20 {
		m.faults = append(m.faults, fmt.Sprintf(format, args...))
	}
}

// heard notes an outcome that a session was told. Once told it is final.
func (m *mix) heard(op uuid.UUID, outcome string) {
	switch outcome {
	case "published", "refused", "aborted", "acquired":
	default:
		return
	}
	m.mu.Lock()
	before, known := m.told[op]
	m.told[op] = outcome
	m.mu.Unlock()
	if known && before != outcome {
		m.fault("operation %s was told as %s and then as %s", op, before, outcome)
	}
}

func (m *mix) count(what string) {
	m.mu.Lock()
	m.tally[what]++
	m.mu.Unlock()
}

// answers is how many there were.
func (m *mix) answers() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range m.tally {
		n += of
	}
	return n
}

// unseen names what has not been answered yet and must be for the mix to mean anything.
func (m *mix) unseen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var kinds []string
	for _, must := range []string{"acquire acquired", "acquire lease-held", "publish published", "publish refused", "publish aborted",
		"publish operation-mismatch", "rollback published", "retire retired"} {
		if m.tally[must] == 0 {
			kinds = append(kinds, must)
		}
	}
	return kinds
}

// operation is a fresh id, or one that somebody has used, for whatever it was.
func (m *mix) operation(r *rand.Rand) uuid.UUID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ops) > 0 && r.IntN(4) == 0 {
		return m.ops[max(0, len(m.ops)-1-r.IntN(10))%len(m.ops)]
	}
	id := uuid.New()
	m.ops = append(m.ops, id)
	return id
}

// lease is one of the last few.
func (m *mix) lease(r *rand.Rand) (mixLease, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.leases) == 0 {
		return mixLease{}, false
	}
	return m.leases[max(0, len(m.leases)-1-r.IntN(5))], true
}

// mixSession is one of the sessions.
type mixSession struct {
	*mix
	ctx  context.Context
	conn *pgx.Conn
	r    *rand.Rand
}

// ask calls a function and scans its row. No answer of the server may be an error, a deadlock
// included: functions answer with a status.
func (s *mixSession) ask(what, sql string, args []any, dest ...any) bool {
	err := s.conn.QueryRow(s.ctx, sql, args...).Scan(dest...)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) && !gaveWay(err) {
		s.fault("%s: %v", what, err)
	}
	return err == nil
}

// gaveWay reports that a collector's step did not wait for a lock any longer, which is no fault.
func gaveWay(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55P03"
}

func (s *mixSession) step() {
	name := string(rune('p' + s.r.IntN(3)))
	l, some := s.lease(s.r)
	var status string
	switch n := s.r.IntN(100); {
	case n < 20 || !some:
		s.acquire(name)
	case n < 45:
		s.stage(l)
	case n < 65:
		s.publish(l)
	case n < 69:
		s.ask("renew", `SELECT status FROM artifactd.renew($1, $2, $3, 60, 604800)`, []any{l.id, l.epoch, l.generation}, &status)
	case n < 73:
		s.ask("release", `SELECT status FROM artifactd.release($1)`, []any{l.id}, &status)
	case n < 75:
		s.ask("break", `SELECT status FROM artifactd.break_lease($1, $2, $3)`, []any{l.pointer, l.epoch, l.generation}, &status)
	case n < 77:
		s.ask("seal", `SELECT status FROM artifactd.seal($1)`, []any{l.id}, &status)
	case n < 82:
		s.rollback(name)
	case n < 84:
		s.retire(name)
	case n < 86:
		s.ask("pin", `SELECT status FROM artifactd.pin($1, $2, $3, $4)`, []any{l.pointer, l.epoch, l.generation, s.r.IntN(2) == 0}, &status)
	case n < 89:
		op := s.operation(s.r)
		if s.ask("settle", `SELECT outcome FROM artifactd.settle($1, $2)`, []any{op, name}, &status) {
			s.heard(op, status)
		}
	default:
		s.collect()
	}
}

func (s *mixSession) acquire(name string) {
	op, id := s.operation(s.r), uuid.New()
	var status string
	var got *uuid.UUID
	var epoch, generation *int64
	if !s.ask("acquire", `SELECT status, lease_id, epoch, generation FROM artifactd.acquire($1, 'mix', $2, $3, $4, $5)`,
		[]any{name, 0.02 + s.r.Float64()/5, id, op, []byte(name)}, &status, &got, &epoch, &generation) {
		return
	}
	s.count("acquire " + status)
	if status == "acquired" {
		s.heard(op, "acquired")
		s.mu.Lock()
		s.leases = append(s.leases, mixLease{name, *got, *epoch, *generation})
		s.mu.Unlock()
	}
}

// stage declares one or two files out of a few digests, so that much is adopted and replaced.
func (s *mixSession) stage(l mixLease) {
	body := []byte{byte(s.r.IntN(5))}
	digest := sha256.Sum256(body)
	path := string(rune('a' + s.r.IntN(2)))
	var status string
	var id *uuid.UUID
	var stored *bool
	if !s.ask("stage", `SELECT status, artifact_id, stored FROM artifactd.stage($1, $2, $3, ARRAY[$4], ARRAY[$5::bytea], '{1}', '{x}', ARRAY[$6::uuid], 60, 60, 1000)`,
		[]any{l.id, l.epoch, l.generation, path, digest[:], uuid.New()}, &status, &id, &stored) {
		return
	}
	s.count("stage " + status)
	if status == "ok" && !*stored && s.r.IntN(5) > 0 {
		s.ask("mark stored", `SELECT status FROM artifactd.mark_stored($1, 'mix')`, []any{*id}, &status)
	}
}

func (s *mixSession) publish(l mixLease) {
	op := s.operation(s.r)
	leases, epochs, generations := []uuid.UUID{l.id}, []int64{l.epoch}, []int64{l.generation}
	if other, ok := s.lease(s.r); ok && other.pointer != l.pointer && s.r.IntN(2) == 0 {
		leases, epochs, generations = append(leases, other.id), append(epochs, other.epoch), append(generations, other.generation)
	}
	digest := sha256.Sum256(fmt.Append(nil, leases, epochs))
	var status string
	for _, tried := range []bool{false, true} {
		if !s.ask("publish", `SELECT status FROM artifactd.publish($1, $2, $3, $4, $5, '{}', '{}', '{}', $6, 1)`,
			[]any{op, digest[:], leases, epochs, generations, tried}, &status) {
			return
		}
		if status != "needs-seal" {
			break
		}
		for _, id := range leases {
			var sealed string
			s.ask("seal", `SELECT status FROM artifactd.seal($1)`, []any{id}, &sealed)
		}
	}
	s.count("publish " + status)
	s.heard(op, status)
}

func (s *mixSession) rollback(name string) {
	var toEpoch, to, epoch, generation int64
	if !s.ask("current", `SELECT g.epoch, g.generation, p.current_epoch, p.current_generation
		FROM artifactd.pointer p JOIN artifactd.generation g USING (pointer_id)
		WHERE p.name = $1 AND g.state = 'published' AND p.current_id IS NOT NULL ORDER BY random() LIMIT 1`, []any{name}, &toEpoch, &to, &epoch, &generation) {
		return
	}
	op := s.operation(s.r)
	var status string
	if s.ask("rollback", `SELECT status FROM artifactd.rollback($1, $2, $3, $4, $5, $6, $7, $8, 'mix')`,
		[]any{name, toEpoch, to, epoch, generation, op, fmt.Append(nil, toEpoch, to, epoch, generation), uuid.New()}, &status) {
		s.count("rollback " + status)
		s.heard(op, status)
	}
}

func (s *mixSession) retire(name string) {
	var status string
	s.ask("retire", `SELECT r.status FROM artifactd.pointer p, artifactd.retire(p.name, p.current_epoch, p.current_generation) r WHERE p.name = $1`, []any{name}, &status)
	s.count("retire " + status)
	var created bool
	s.ask("put", `SELECT created FROM artifactd.put_pointer($1, $2, 0, NULL, NULL)`, []any{name, s.r.IntN(2)}, &created)
}

func (s *mixSession) collect() {
	var looked, artifacts int
	var status string
	s.ask("mark", `SELECT m.looked FROM (SELECT * FROM artifactd.collect_due(5) LIMIT 1) d, artifactd.collect_mark(d.pointer_id, d.generation_ids, 0) m`, nil, &looked)
	for range 3 {
		s.ask("files", `SELECT status, artifacts FROM artifactd.collect_files(1, 0)`, nil, &status, &artifacts)
	}
	s.ask("unnamed", `SELECT artifacts FROM artifactd.collect_unnamed(2, 0)`, nil, &artifacts)
	s.count("collect " + status)
}

// Everything at once, from eight sessions, for a while: no deadlock and no other error comes out
// of the functions, every outcome that was told stays and is recorded, and nothing leaks.
func TestAttackEverythingAtOnce(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q", "r")
	w.exec(`UPDATE artifactd.installation SET key_prefix = 'artifactd/'`)
	m := &mix{told: map[uuid.UUID]string{}, tally: map[string]int{}}
	// Long enough for every kind of meeting, however busy the machine is.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		s := &mixSession{mix: m, ctx: context.Background(), conn: w.db.ConnectService(t), r: rand.New(rand.NewPCG(7, uint64(i)))}
		wg.Go(func() {
			for ctx.Err() == nil {
				s.step()
			}
		})
	}
	raised := 0
	for raise := time.NewTicker(time.Second); ctx.Err() == nil; {
		select {
		case <-raise.C:
			if time.Since(start) > 5*time.Second && len(m.unseen()) == 0 {
				cancel()
			}
			// Leases die with it, so it leaves them time to be used on a busy machine too.
			if n := m.answers(); n >= raised+50 {
				raised = n
				w.exec(`UPDATE artifactd.installation SET epoch = epoch + 1`)
			}
		case <-ctx.Done():
			raise.Stop()
		}
	}
	wg.Wait()
	for _, f := range m.faults {
		t.Error(f)
	}
	t.Log(m.tally)
	for _, kind := range m.unseen() {
		t.Errorf("never seen: %s", kind)
	}
	w.checkTold(maps.Clone(m.told))
	w.exec(`UPDATE artifactd.installation SET epoch = epoch + 1`) // kills every lease
	w.exec(`UPDATE artifactd.generation SET collect_at = clock_timestamp() WHERE state = 'leased'`)
	w.collect()
	w.checkNothingLeaks()
}

// checkTold compares what was told with what is recorded.
func (w *world) checkTold(told map[uuid.UUID]string) {
	w.t.Helper()
	rows, err := w.owner.Query(w.t.Context(), `SELECT operation_id, coalesce(outcome, '') FROM artifactd.operation`)
	if err != nil {
		w.t.Fatal(err)
	}
	var id uuid.UUID
	var outcome string
	if _, err := pgx.ForEachRow(rows, []any{&id, &outcome}, func() error {
		if want, ok := told[id]; ok && want != outcome {
			w.t.Errorf("operation %s was told as %s and is recorded as %q", id, want, outcome)
		}
		delete(told, id)
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	if len(told) > 0 {
		w.t.Errorf("%d outcomes were told and are not recorded", len(told))
	}
	for what, sql := range map[string]string{
		"published generations whose operation says otherwise": `SELECT count(*) FROM artifactd.generation g LEFT JOIN artifactd.operation o ON o.operation_id = g.publish_operation_id
			WHERE g.state = 'published' AND (o.outcome IS DISTINCT FROM 'published' OR NOT g.generation_id = ANY (o.generation_ids))`,
		"operations recorded as published whose generations are not": `SELECT count(*) FROM artifactd.operation o, unnest(o.generation_ids) id LEFT JOIN artifactd.generation g ON g.generation_id = id
			WHERE o.outcome = 'published' AND g.publish_operation_id IS DISTINCT FROM o.operation_id`,
		"pointers that show something unpublished": `SELECT count(*) FROM artifactd.pointer p LEFT JOIN artifactd.generation g ON g.generation_id = p.current_id
			WHERE p.current_id IS NOT NULL AND (g.state IS DISTINCT FROM 'published' OR g.displaced_at IS NOT NULL OR g.collecting_at IS NOT NULL)`,
		"published versions that are neither shown nor displaced": `SELECT count(*) FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
			WHERE g.state = 'published' AND g.displaced_at IS NULL AND p.current_id IS DISTINCT FROM g.generation_id`,
		"numbers that are missing or out of order": `SELECT count(*) FROM (SELECT generation - lag(generation) OVER (PARTITION BY pointer_id ORDER BY epoch, generation) AS d FROM artifactd.generation) x WHERE d <> 1`,
		"incomplete published versions": `SELECT count(*) FROM artifactd.generation g WHERE g.state = 'published' AND g.collecting_at IS NULL AND g.file_count <>
			(SELECT count(*) FROM artifactd.manifest_file m JOIN artifactd.artifact a USING (artifact_id) WHERE m.manifest_id = g.manifest_id AND a.stored_at IS NOT NULL)`,
	} {
		if n := w.count(sql); n != 0 {
			w.t.Errorf("%d %s", n, what)
		}
	}
}

// checkNothingLeaks holds once everything that is garbage was collected.
func (w *world) checkNothingLeaks() {
	w.t.Helper()
	for what, sql := range map[string]string{
		"artifacts that no file names": `SELECT count(*) FROM artifactd.artifact a WHERE NOT EXISTS (SELECT 1 FROM artifactd.manifest_file m WHERE m.artifact_id = a.artifact_id)`,
		"manifests that no uncollected generation has": `SELECT count(DISTINCT manifest_id) FROM artifactd.manifest_file m
			WHERE NOT EXISTS (SELECT 1 FROM artifactd.generation g WHERE g.manifest_id = m.manifest_id AND g.collected_at IS NULL)`,
		"dead generations that are not collected": `SELECT count(*) FROM artifactd.generation WHERE state NOT IN ('leased', 'published') AND collected_at IS NULL`,
		"leases of an old epoch":                  `SELECT count(*) FROM artifactd.generation WHERE state = 'leased'`,
		"displaced versions past their retention": `SELECT count(*) FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
			WHERE p.keep_versions = 0 AND g.displaced_at IS NOT NULL AND NOT g.pinned AND g.collected_at IS NULL`,
	} {
		if n := w.count(sql); n != 0 {
			w.t.Errorf("%d %s", n, what)
		}
	}
}
