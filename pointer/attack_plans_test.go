package pointer

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// catalogueSQL makes a catalogue of $rows of everything, in which four manifests have very many
// files and all others one, so that the planner expects large manifests everywhere.
const catalogueSQL = `
SET session_replication_role = replica;
INSERT INTO artifactd.pointer (name, epoch, generation, head_id, current_id, current_epoch, current_generation)
SELECT 'p' || i, 1, 1, md5('p' || i)::uuid, md5('p' || i)::uuid, 1, 1 FROM generate_series(1, $rows) i;
INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
    manifest_id, file_count, published_at, publish_operation_id, sealed_at, manifest_digest)
SELECT md5(name::text)::uuid, pointer_id, 1, 1, 'published', 'x', 60, now(), now(), md5(name::text)::uuid, 1, now(),
       gen_random_uuid(), now(), 'x' FROM artifactd.pointer;
INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
SELECT md5('a' || i)::uuid, 1 + i % $rows, md5('p' || (1 + i % $rows))::uuid, sha256(i::text::bytea), 1, 'x', now(), now()
  FROM generate_series(1, $rows) i;
INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
SELECT md5('p' || (1 + i / ($rows / 4)))::uuid, 'f' || i, md5('a' || i)::uuid, 'x' FROM generate_series(1, $rows) i;
INSERT INTO artifactd.operation (operation_id, kind, request_digest, outcome, pointers, generation_ids, recorded_at)
SELECT gen_random_uuid(), 'publish', 'x', 'published', '{p}', '{}', now() - CASE WHEN i < 1000 THEN interval '41 days' ELSE interval '0' END
  FROM generate_series(1, $rows) i;
INSERT INTO artifactd.deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
SELECT 'k' || i, 1, 'x', true, now(), now(), now() + CASE WHEN i < 1000 THEN interval '0' ELSE interval '1 hour' END FROM generate_series(1, $rows) i;
UPDATE artifactd.installation SET key_prefix = 'artifactd/';
SET session_replication_role = origin;
ANALYZE artifactd.pointer, artifactd.generation, artifactd.artifact, artifactd.manifest_file, artifactd.operation, artifactd.deletion`

// planned is a connection that tells the plan of every statement inside of the functions it calls.
type planned struct {
	t     *testing.T
	conn  *pgx.Conn
	plans []string
}

func (w *world) planned() *planned {
	w.t.Helper()
	cfg, err := pgx.ParseConfig(w.db.URL)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &planned{t: w.t}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { p.plans = append(p.plans, n.Message) }
	if p.conn, err = pgx.ConnectConfig(w.t.Context(), cfg); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = p.conn.Close(w.t.Context()) })
	p.set("auto_explain.log_min_duration = 0", "auto_explain.log_nested_statements = on", "auto_explain.log_analyze = on",
		"auto_explain.log_timing = off", "client_min_messages = log")
	return p
}

func (p *planned) set(settings ...string) {
	p.t.Helper()
	for _, s := range append([]string{"session_preload_libraries = ''"}, settings...) {
		sql := "SET " + s
		if strings.HasPrefix(s, "session_preload") {
			sql = "LOAD 'auto_explain'"
		}
		if _, err := p.conn.Exec(p.t.Context(), sql); err != nil {
			p.t.Fatal(err)
		}
	}
}

// handled finds how many rows a node of a plan gave, and how often; passedOver how many it looked at
// each time and did not give.
var (
	handled    = regexp.MustCompile(`\(actual rows=(\d+)(?:\.\d+)? loops=(\d+)\)$`)
	passedOver = regexp.MustCompile(`^ *Rows Removed by [A-Za-z ]+: (\d+)`)
)

// largest is the node of a plan that handled the most rows, and how many.
func largest(plan string) (node string, rows int) {
	var last string
	loops := 0
	for line := range strings.Lines(plan) {
		line = strings.TrimRight(line, "\n")
		n := 0
		if m := handled.FindStringSubmatch(line); m != nil {
			n, _ = strconv.Atoi(m[1])
			loops, _ = strconv.Atoi(m[2])
			last = strings.TrimSpace(line)
		} else if m := passedOver.FindStringSubmatch(line); m != nil {
			n, _ = strconv.Atoi(m[1])
		}
		if n *= loops; n > rows {
			node, rows = last+", "+strings.TrimSpace(line), n
		}
	}
	return node, rows
}

// call runs a query and checks that no node inside of it handled more than limit rows.
func (p *planned) call(limit int, what, sql string, args ...any) {
	p.t.Helper()
	p.plans = nil
	if _, err := p.conn.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatalf("%s: %v", what, err)
	}
	if len(p.plans) == 0 {
		p.t.Fatalf("%s: no plan was told", what)
	}
	for _, plan := range p.plans {
		if node, rows := largest(plan); rows > limit {
			_, query, _ := strings.Cut(plan, "Query Text:")
			p.t.Errorf("%s handles %d rows, at most %d would do: %s\nof%.120s", what, rows, limit, node, query)
		}
	}
}

// readThrough is a table that a plan reads from end to end, however few rows it has in a test.
var readThrough = regexp.MustCompile(`Seq Scan on (\w+)\b.*`)

// indexed checks that the last call read no table through that grows.
func (p *planned) indexed(what string) {
	p.t.Helper()
	for _, plan := range p.plans {
		for _, scan := range readThrough.FindAllStringSubmatch(plan, -1) {
			if scan[1] != "installation" { // it has one row
				_, query, _ := strings.Cut(plan, "Query Text:")
				p.t.Errorf("%s: %s\nof%.300s", what, scan[0], query)
			}
		}
	}
}

// A connection keeps the plans that it made while the tables were empty, until somebody analyses them:
// what is called all the time goes by an index also in the first minutes of an installation.
func TestAttackPlansMadeOnEmptyTables(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	p := w.planned()
	p.set("plan_cache_mode = force_generic_plan")
	lease, op := uuid.New(), uuid.New()
	for _, c := range []struct {
		what, sql string
		args      []any
	}{
		{"acquire", `SELECT * FROM artifactd.acquire('p', 'h', 60, $1, $2, 'x')`, []any{lease, uuid.New()}},
		{"renew", `SELECT * FROM artifactd.renew($1, 1, 1, 60, 604800)`, []any{lease}},
		{"stage", `SELECT * FROM artifactd.stage($1, 1, 1, '{a}', ARRAY[sha256('x')], '{1}', '{x}', ARRAY[$2::uuid], 60, 60, 100000)`, []any{lease, uuid.New()}},
		{"mark stored", `SELECT artifactd.mark_stored(artifact_id, 'x') FROM artifactd.manifest_file WHERE manifest_id = $1`, []any{lease}},
		{"publish", `SELECT * FROM artifactd.publish($1, 'x', ARRAY[$2::uuid], '{1}', '{1}', '{1}', '{7}', '{null}', false, 1000)`, []any{op, lease}},
		{"publish again", `SELECT * FROM artifactd.publish($1, 'x', ARRAY[$2::uuid], '{1}', '{1}', '{1}', '{7}', '{null}', false, 1000)`, []any{op, lease}},
		{"settle", `SELECT * FROM artifactd.settle($1, 'p')`, []any{uuid.New()}},
		{"outcome", recordedSQL, []any{op}},
		{"look at a lease", leaseNowSQL, []any{lease}},
		{"version", versionSQL, []any{lease, 1000}},
		{"version by token", versionIDSQL, []any{"p", int64(1), int64(1)}},
		{"resolve", headsSQL, []any{[]string{"p"}}},
		{"file", fileSQL, []any{"p", int64(1), int64(1), "a"}},
		{"rollback", `SELECT * FROM artifactd.rollback('p', 1, 1, 1, 1, $1, 'x', $2, 'h')`, []any{uuid.New(), uuid.New()}},
		{"acquire again", `SELECT * FROM artifactd.acquire('p', 'h', 60, $1, $2, 'x')`, []any{uuid.New(), uuid.New()}},
		{"release", `SELECT artifactd.release((SELECT head_id FROM artifactd.pointer WHERE name = 'p'))`, nil},
	} {
		p.call(100, c.what, c.sql, c.args...)
		p.indexed(c.what)
	}
}

// keptSQL makes a pointer that keeps $rows versions of one file, the same in all of them; and one with a
// version of ten files that it shows no more, and $rows generations that came to nothing. Nobody analyses
// the tables but the test.
const keptSQL = `
ALTER TABLE artifactd.pointer SET (autovacuum_enabled = off);
ALTER TABLE artifactd.generation SET (autovacuum_enabled = off);
ALTER TABLE artifactd.artifact SET (autovacuum_enabled = off);
ALTER TABLE artifactd.manifest_file SET (autovacuum_enabled = off);
SET session_replication_role = replica;
INSERT INTO artifactd.pointer (name, epoch, generation, head_id, current_id, current_epoch, current_generation)
VALUES ('kept', 1, $rows, md5('v$rows')::uuid, md5('v$rows')::uuid, 1, $rows), ('failed', 1, $rows, md5('d$rows')::uuid, NULL, NULL, NULL);
INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
	manifest_id, file_count, published_at, publish_operation_id, sealed_at, manifest_digest, displaced_at, collect_at)
SELECT md5('v' || i)::uuid, pointer_id, 1, i, 'published', 'x', 60, now(), now(), md5('v' || i)::uuid, 1, now(),
	gen_random_uuid(), now(), 'x', CASE WHEN i < $rows THEN now() END, CASE WHEN i < $rows THEN now() + interval '1 day' END
  FROM artifactd.pointer, generate_series(1, $rows) i WHERE name = 'kept';
INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
SELECT md5('kept')::uuid, pointer_id, md5('v1')::uuid, sha256('kept'), 1, 'x', now(), now() FROM artifactd.pointer WHERE name = 'kept';
INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
SELECT md5('v' || i)::uuid, 'a', md5('kept')::uuid, 'x' FROM generate_series(1, $rows) i;
INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
	manifest_id, file_count, published_at, displaced_at, collect_at)
SELECT md5('d' || i)::uuid, pointer_id, 1, i, CASE i WHEN 1 THEN 'published' ELSE 'expired' END, 'x', 60, now(), now(), md5('d' || i)::uuid, 1,
	CASE i WHEN 1 THEN now() END, CASE i WHEN 1 THEN now() END, now() + interval '1 day'
  FROM artifactd.pointer, generate_series(1, $rows) i WHERE name = 'failed';
INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
SELECT md5('once' || i)::uuid, pointer_id, md5('d1')::uuid, sha256(('once' || i)::bytea), 1, 'x', now(), now()
  FROM artifactd.pointer, generate_series(1, 10) i WHERE name = 'failed';
INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
SELECT md5('d1')::uuid, 'once' || i, md5('once' || i)::uuid, 'x' FROM generate_series(1, 10) i;
SET session_replication_role = origin`

// What is published over and over costs the same each time, however many versions name the same file, and
// however many generations came to nothing.
func TestAttackCostDoesNotGrowWithTheVersions(t *testing.T) {
	w := newWorld(t)
	const versions, few, whatever = 300, 20, 1 << 30
	w.exec(strings.ReplaceAll(keptSQL, "$rows", strconv.Itoa(versions)))
	for _, analysed := range []bool{false, true} {
		if analysed {
			w.exec(`ANALYZE`)
		}
		p := w.planned()
		p.set("enable_seqscan = off") // which is right for tables as small as these, and says nothing
		next := func(name string) int64 {
			return int64(w.count(`SELECT generation FROM artifactd.pointer WHERE name = $1`, name)) + 1
		}
		number, lease := next("kept"), uuid.New()
		p.call(few, "acquire", `SELECT * FROM artifactd.acquire('kept', 'h', 60, $1, $2, 'x')`, lease, uuid.New())
		for range 2 {
			p.call(few, "stage", `SELECT * FROM artifactd.stage($1::uuid, 1, $2, '{a,b}', ARRAY[sha256('kept'), sha256($1::uuid::text::bytea)], '{1,1}', '{x,x}',
				ARRAY[$3::uuid, $4::uuid], 60, 3600, 100000)`, lease, number, uuid.New(), uuid.New())
		}
		if n := w.count(`SELECT count(*) FROM artifactd.artifact WHERE digest = sha256('kept')`); n != 1 {
			t.Fatalf("the file was not adopted: it has %d artifacts", n)
		}
		p.call(few, "mark stored", `SELECT artifactd.mark_stored(artifact_id, 'x') FROM artifactd.manifest_file WHERE manifest_id = $1 AND path = 'b'`, lease)
		p.call(few, "publish", `SELECT * FROM artifactd.publish($1, 'x', ARRAY[$2::uuid], '{1}', ARRAY[$3::bigint], '{2}', '{7}', '{null}', false, 1000)`, uuid.New(), lease, number)
		p.call(few, "resolve", headsSQL, []string{"kept"})
		p.call(few, "file", fileSQL, "kept", int64(1), number, "a")
		p.call(few, "rollback", `SELECT * FROM artifactd.rollback('kept', 1, 1, 1, $3, $1, 'x', $2, 'h')`, uuid.New(), uuid.New(), number)
		p.call(few, "release", `SELECT artifactd.release((SELECT head_id FROM artifactd.pointer WHERE name = 'kept'))`)
		p.call(few, "collect due", `SELECT * FROM artifactd.collect_due(10)`)
		p.call(few, "pin", `SELECT * FROM artifactd.pin('kept', 1, 3, true)`)

		// The generations that came to nothing are looked through once or twice, and not for every file.
		number, lease = next("failed"), uuid.New()
		p.call(whatever, "acquire after failures", `SELECT * FROM artifactd.acquire('failed', 'h', 60, $1, $2, 'x')`, lease, uuid.New())
		p.call(3*versions, "stage what an old version had", `SELECT * FROM artifactd.stage($1::uuid, 1, $2,
			ARRAY(SELECT 'once' || i FROM generate_series(1, 10) i), ARRAY(SELECT sha256(('once' || i)::bytea) FROM generate_series(1, 10) i),
			array_fill(1::bigint, '{10}'), array_fill('x'::text, '{10}'), ARRAY(SELECT gen_random_uuid() FROM generate_series(1, 10)), 60, 3600, 100000)`, lease, number)
		p.call(whatever, "release", `SELECT artifactd.release($1)`, lease)

		// Nor does it grow with what the lease has staged, where other manifests are small.
		number, lease = next("kept"), uuid.New()
		p.call(few, "acquire again", `SELECT * FROM artifactd.acquire('kept', 'h', 60, $1, $2, 'x')`, lease, uuid.New())
		for _, batch := range []struct{ first, files, limit int }{{1, 1000, whatever}, {2001, 2, few}, {1, 2, few}} {
			p.call(batch.limit, "stage beside many", `SELECT count(*) FROM (SELECT array_agg('x' || i) paths, array_agg(sha256(($3 || ' ' || i)::bytea)) digests,
					array_agg(1::bigint) sizes, array_agg('x'::text) types, array_agg(gen_random_uuid()) ids FROM generate_series($4::integer, $4 + $5 - 1) i) f,
				artifactd.stage($1, 1, $2, f.paths, f.digests, f.sizes, f.types, f.ids, 60, 3600, 100000)`, lease, number, lease.String(), batch.first, batch.files)
		}
		p.call(whatever, "release", `SELECT artifactd.release($1)`, lease)
	}
}

// Nothing hot, and no step of the collector, reads a table from end to end: cost follows what is
// asked for, not the size of the catalogue.
func TestAttackCostDoesNotGrowWithTheCatalogue(t *testing.T) {
	w := newWorld(t)
	w.exec(strings.ReplaceAll(catalogueSQL, "$rows", "6000"))

	p := w.planned()
	for round, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		p.set("plan_cache_mode = " + mode)
		name, lease, op := fmt.Sprintf("p%d", 100+round), uuid.New(), uuid.New()
		const few, batch, whatever = 20, 1_500, 1 << 30
		p.call(few, "acquire", `SELECT * FROM artifactd.acquire($1, 'h', 60, $2, $3, 'x')`, name, lease, uuid.New())
		p.call(few, "acquire held", `SELECT * FROM artifactd.acquire($1, 'h', 60, $2, $3, 'x')`, name, uuid.New(), uuid.New())
		p.call(few, "renew", `SELECT * FROM artifactd.renew($1, 1, 2, 60, 604800)`, lease)
		for range 2 {
			p.call(few, "stage", `SELECT * FROM artifactd.stage($1, 1, 2, '{a,b}', ARRAY[sha256($2::text::bytea), sha256($3::text::bytea)], '{1,1}', '{x,x}',
				ARRAY[$2::uuid, $3::uuid], 60, 60, 100000)`, lease, uuid.New(), uuid.New())
		}
		p.call(few, "mark stored", `SELECT artifactd.mark_stored(artifact_id, 'x') FROM artifactd.manifest_file WHERE manifest_id = $1`, lease)
		publish := `SELECT * FROM artifactd.publish($1, 'x', ARRAY[$2::uuid], '{1}', '{2}', '{2}', '{7}', '{null}', false, 1000)`
		p.call(few, "publish", publish, op, lease)
		p.call(few, "publish again", publish, op, lease)
		p.call(few, "settle", `SELECT * FROM artifactd.settle($1, 'p1')`, uuid.New())
		p.call(few, "rollback", `SELECT * FROM artifactd.rollback($1, 1, 1, 1, 2, $2, 'x', $3, 'h')`, name, uuid.New(), uuid.New())
		p.call(few, "retire", `SELECT * FROM artifactd.retire($1, 1, 3)`, name)
		p.call(few, "put pointer", `SELECT * FROM artifactd.put_pointer($1, 0, 0, false, null)`, name)
		p.call(few, "pin", `SELECT * FROM artifactd.pin($1, 1, 2, $2)`, name, round == 0)
		p.call(few, "collect due", `SELECT * FROM artifactd.collect_due(1000)`)
		p.call(few, "collect mark", `SELECT * FROM artifactd.collect_mark((SELECT pointer_id FROM artifactd.pointer WHERE name = $1),
			ARRAY[$2, md5($1)::uuid], 0)`, name, lease)
		for range 3 {
			p.call(batch, "collect files", `SELECT * FROM artifactd.collect_files(250, 0)`)
		}
		p.call(batch, "collect unnamed", `SELECT * FROM artifactd.collect_unnamed(250, 0)`)
		p.call(few, "resolve", headsSQL, []string{name})
		p.call(few, "file", fileSQL, name, int64(1), int64(2), "a")
		p.call(few, "history", versionsSQL, name, int64(1)<<62, int64(1)<<62, 100)

		// What is large by itself costs by its own size.
		large := fmt.Sprintf("p%d", 2+round)
		p.call(few, "retire large", `SELECT * FROM artifactd.retire($1, 1, 1)`, large)
		p.call(few, "put large", `SELECT * FROM artifactd.put_pointer($1, 0, 0, false, null)`, large)
		p.call(few, "mark large", `SELECT m.* FROM artifactd.pointer, artifactd.collect_mark(pointer_id, ARRAY[head_id], 0) m WHERE name = $1`, large)
		p.call(batch, "collect files large", `SELECT * FROM artifactd.collect_files(250, 0)`)
		lease = uuid.New()
		p.call(few, "acquire large", `SELECT * FROM artifactd.acquire($1, 'h', 60, $2, $3, 'x')`, large, lease, uuid.New())
		for _, first := range []int{1, 1, 3_001} {
			p.call(whatever, "stage large", `SELECT count(*) FROM (SELECT array_agg('x' || i) paths, array_agg(sha256(($2 + i)::text::bytea)) digests,
					array_agg(1::bigint) sizes, array_agg('x'::text) types, array_agg(gen_random_uuid()) ids FROM generate_series(1, 250) i) f,
				artifactd.stage($1, 1, 2, f.paths, f.digests, f.sizes, f.types, f.ids, 60, 60, 100000)`, lease, first)
		}
		p.call(batch, "seal large", `SELECT * FROM artifactd.seal($1)`, lease)
		p.call(batch, "collect unnamed large", `SELECT * FROM artifactd.collect_unnamed(250, 0)`)
		p.call(batch, "claim", `SELECT * FROM artifactd.claim_deletions(250, 60)`)
		p.call(batch, "finish", `SELECT * FROM artifactd.finish_deletions(ARRAY(SELECT 'k' || i FROM generate_series(1, 250) i),
			array_fill(''::text, ARRAY[250]), clock_timestamp())`)
		p.call(batch, "forget", `SELECT * FROM artifactd.forget_operations(250)`)
	}
}
