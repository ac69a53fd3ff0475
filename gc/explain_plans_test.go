package gc_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// catalogueRows is how large the catalogue of the plans' test is: large enough for the planner to
// choose as it does at any size above. `make plans` runs it at a million, which takes minutes.
var catalogueRows = flag.Int("catalogue", 100_000, "rows of each table in TestExplainEachStatement")

// catalogueSQL makes a catalogue of $rows artifacts, files, generations, keys in the ledger and
// orphans, of which a thousand each are due, displaced, replaced and so on.
var catalogueSQL = []string{
	`SET session_replication_role = replica`,
	`SET synchronous_commit = off`,
	`INSERT INTO artifactd.pointer (name, epoch, generation, head_id, current_id, current_epoch, current_generation)
	 SELECT 'p' || i, 1, 10, md5('g' || 10 * i)::uuid, md5('g' || 10 * i)::uuid, 1, 10 FROM generate_series(1, $rows / 10) i`,
	`INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at, ended_at,
	     manifest_id, file_count, total_bytes, published_at, displaced_at, collect_at, collecting_at, collected_at)
	 SELECT md5('g' || i)::uuid, 1 + (i - 1) / 10, 1, 1 + (i - 1) % 10, CASE WHEN i % 10 = 3 THEN 'superseded' ELSE 'published' END, 'x', 60, now(), now(),
	        CASE WHEN i % 100 = 50 THEN md5('g' || i - 10)::uuid ELSE md5('g' || i)::uuid END, 1, 1,
	        CASE WHEN i % 10 <> 3 THEN now() END, CASE WHEN i % 10 NOT IN (0, 3) THEN now() - interval '2 days' END,
	        CASE WHEN i % 1000 = 1 THEN now() - interval '1 day' WHEN i % 10 = 2 THEN now() + interval '1 day' END,
	        CASE WHEN i % 10 BETWEEN 3 AND 8 THEN now() END, CASE WHEN i % 10 BETWEEN 3 AND 8 AND i % 5000 <> 4 THEN now() END
	   FROM generate_series(1, $rows) i`,
	`INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until, unnamed_at)
	 SELECT md5('a' || i)::uuid, 1 + (i - 1) / 10, md5('g' || i)::uuid, sha256(i::text::bytea), 1, 'x', now(), now(), CASE WHEN i % 1000 = 7 THEN now() END
	   FROM generate_series(1, $rows) i`,
	`INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
	 SELECT md5('g' || i)::uuid, 'f', md5('a' || i)::uuid, 'x' FROM generate_series(1, $rows) i WHERE i % 1000 <> 7`,
	`INSERT INTO artifactd.operation (operation_id, kind, request_digest, outcome, pointers, generation_ids, recorded_at)
	 SELECT md5('o' || i)::uuid, 'publish', 'x', 'published', '{p}', '{}', now() - CASE WHEN i % 1000 = 0 THEN interval '41 days' ELSE interval '0' END
	   FROM generate_series(1, $rows) i`,
	`INSERT INTO artifactd.deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before, plan_id)
	 SELECT 'artifactd/artifacts/' || encode(sha256(i::text::bytea), 'hex') || '/' || md5('d' || i)::uuid, 1, 'x', true, now(), now(),
	        now() + CASE WHEN i % 1000 = 0 THEN interval '0' ELSE interval '1 hour' END, CASE WHEN i % 1000 = 0 THEN '` + somePlan + `'::uuid END
	   FROM generate_series(1, $rows) i`,
	`INSERT INTO artifactd.orphan (object_key, upload_id, size, first_seen_at, last_seen_at)
	 SELECT 'artifactd/artifacts/' || encode(sha256(i::text::bytea), 'hex') || '/' || md5('u' || i)::uuid, '', 1,
	        now() - interval '1 day', now() + interval '1 day' FROM generate_series(1, $rows) i`,
	`SET session_replication_role = origin`,
	`ANALYZE artifactd.pointer, artifactd.generation, artifactd.artifact, artifactd.manifest_file, artifactd.operation, artifactd.deletion, artifactd.orphan`,
}

const somePlan = "00000000-0000-7000-8000-000000000001"

// node is a node of a plan, as EXPLAIN (FORMAT JSON) tells it.
type node struct {
	Kind     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Removed  float64 `json:"Rows Removed by Filter"`
	Plans    []node  `json:"Plans"`
}

func (n node) walk(visit func(node)) {
	visit(n)
	for _, p := range n.Plans {
		p.walk(visit)
	}
}

// planner is a connection that is told the plan of every statement inside of the functions it calls.
type planner struct {
	t     *testing.T
	conn  *pgx.Conn
	plans []string
}

func newPlanner(t *testing.T, db *testenv.DB) *planner {
	t.Helper()
	pool, err := pointer.PoolConfig(db.URL) // with the settings that the service asks for
	if err != nil {
		t.Fatal(err)
	}
	p, cfg := &planner{t: t}, pool.ConnConfig
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { p.plans = append(p.plans, n.Message) }
	if p.conn, err = pgx.ConnectConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.conn.Close(t.Context()) })
	for _, sql := range []string{"LOAD 'auto_explain'", "SET auto_explain.log_min_duration = 0", "SET auto_explain.log_nested_statements = on",
		"SET auto_explain.log_analyze = on", "SET auto_explain.log_timing = off", "SET auto_explain.log_format = json", "SET client_min_messages = log", "SET statement_timeout = 0"} {
		p.exec(sql)
	}
	return p
}

func (p *planner) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.conn.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatalf("%s: %v", sql, err)
	}
}

// big are the tables that no step may read from end to end, by whatever kind of scan.
var big = []string{"pointer", "generation", "artifact", "manifest_file", "operation", "deletion", "orphan"}

// call runs one statement and checks the plans inside: no sequential scan of a big table, and no
// node that touched more than limit of its rows.
func (p *planner) call(limit float64, what, sql string, args ...any) {
	p.t.Helper()
	p.plans = nil
	p.exec(sql, args...)
	if len(p.plans) == 0 {
		p.t.Fatalf("%s: no plan was told", what)
	}
	for _, text := range p.plans {
		_, text, ok := strings.Cut(text, "plan:\n")
		if !ok {
			continue // something else that the server had to say
		}
		var plan struct {
			Query string `json:"Query Text"`
			Plan  node
			JIT   any
		}
		if err := json.Unmarshal([]byte(text), &plan); err != nil {
			p.t.Fatalf("%s: %v in %s", what, err, text)
		}
		if plan.JIT != nil {
			p.t.Errorf("%s is compiled, which takes longer than everything else in it: %.200s", what, plan.Query)
		}
		plan.Plan.walk(func(n node) {
			touched := (n.Rows + n.Removed) * n.Loops
			switch {
			case !slices.Contains(big, n.Relation):
			case n.Kind == "Seq Scan":
				p.t.Errorf("%s reads %s from end to end, in %.200s", what, n.Relation, plan.Query)
			case touched > limit:
				p.t.Errorf("%s touches %.0f rows of %s by %s, at most %.0f would do, in %.200s", what, touched, n.Relation, n.Kind, limit, plan.Query)
			}
		})
	}
}

// No statement of the collector, of a plan or of reconciliation reads a big table from end to end:
// the cost of each follows what it is asked about, not the size of the catalogue. Each runs for real,
// with the plans of a custom and of a generic statement.
func TestExplainEachStatement(t *testing.T) {
	db := testenv.Database(t)
	p := newPlanner(t, db)
	began := time.Now()
	p.exec("SET auto_explain.log_min_duration = -1")
	for _, sql := range catalogueSQL {
		p.exec(strings.ReplaceAll(sql, "$rows", fmt.Sprint(*catalogueRows)))
	}
	p.exec(`UPDATE artifactd.installation SET key_prefix = 'artifactd/'`)
	t.Logf("a catalogue of %d took %s", *catalogueRows, time.Since(began).Round(time.Second))
	p.exec("SET auto_explain.log_min_duration = 0")
	const batch, few = 250, 60
	page := 20.0 * batch
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		p.exec("SET plan_cache_mode = " + mode)
		p.call(page, "collect due", `SELECT * FROM artifactd.collect_due($1)`, batch)
		p.call(few, "collect mark", `SELECT m.* FROM artifactd.collect_due(1) d, artifactd.collect_mark(d.pointer_id, d.generation_ids, 0) m`)
		for range 2 {
			p.call(page, "collect files", `SELECT * FROM artifactd.collect_files($1, 0)`, batch)
		}
		p.call(page, "collect files and claim", `SELECT * FROM artifactd.collect_files($1, 0, p_claim_seconds => 60)`, batch)
		p.call(few, "publishing", gc.PublishingSQL, 5*time.Second)
		p.call(page, "collect unnamed", `SELECT * FROM artifactd.collect_unnamed($1, 0)`, batch)
		p.call(page, "claim", `SELECT * FROM artifactd.claim_deletions($1, 60)`, batch)
		p.call(page, "claim of a plan", `SELECT * FROM artifactd.claim_deletions($1, 60, '`+somePlan+`')`, batch)
		p.call(page, "finish", `SELECT * FROM artifactd.finish_deletions(ARRAY(SELECT object_key FROM artifactd.deletion WHERE not_before > now() ORDER BY object_key LIMIT 250),
			array_fill(''::text, ARRAY[250]), clock_timestamp())`)
		p.call(page, "forget operations", `SELECT * FROM artifactd.forget_operations($1)`, batch)
		p.call(page, "forget plans", `SELECT * FROM artifactd.forget_plans($1)`, batch)

		plan := uuid.New()
		p.call(few, "begin plan", `SELECT * FROM artifactd.begin_plan($1, 'p77', 0, 60)`, plan)
		p.call(page, "pointers of a plan", `SELECT pointer_id FROM artifactd.pointer WHERE pointer_id > $1 ORDER BY pointer_id LIMIT $2`, 500, batch)
		p.call(page, "plan pointers", `SELECT * FROM artifactd.plan_pointers($1, ARRAY(SELECT generate_series(101, 350)::bigint))`, plan)
		p.call(page, "plan replaced", `SELECT * FROM artifactd.plan_replaced($1, '-infinity', $2, $3)`, plan, uuid.Nil, batch)
		p.call(few, "mark planned", `SELECT * FROM artifactd.collect_mark(110, ARRAY(SELECT item_id FROM artifactd.gc_plan_item WHERE plan_id = $1 AND pointer_id = 110), 0, true)`, plan)
		p.call(few, "files planned", `SELECT * FROM artifactd.collect_files($1, 0, $2, (SELECT md5('g' || 1099)::uuid))`, batch, plan)
		p.call(few, "settle plan items", `SELECT * FROM artifactd.settle_plan_items($1, 110, ARRAY(SELECT item_id FROM artifactd.gc_plan_item WHERE plan_id = $1 AND pointer_id = 110))`, plan)
		p.call(few, "explain names", `SELECT * FROM artifactd.explain_names(md5('a' || 1110)::uuid, 0, 100)`)
		p.call(page, "items of a plan", `SELECT item_id FROM artifactd.gc_plan_item i JOIN artifactd.pointer p USING (pointer_id) LEFT JOIN artifactd.generation g ON g.generation_id = i.item_id
			WHERE i.plan_id = $1 AND (i.pointer_id, i.item_id) > ($2, $3) ORDER BY i.pointer_id, i.item_id LIMIT $4`, plan, 0, uuid.Nil, batch)

		p.call(few, "begin reconcile", `SELECT * FROM artifactd.begin_reconcile('artifactd/', 0, 1, false, 60, NULL)`)
		pass := `(SELECT max(pass_id) FROM artifactd.reconcile_pass)`
		p.call(page, "note unknown", `SELECT * FROM artifactd.note_unknown(`+pass+`, ARRAY(SELECT 'artifactd/artifacts/' || encode(sha256(i::text::bytea), 'hex') || '/' || md5('a' || i)::uuid
			FROM generate_series(5000, 5249) i), array_fill(''::text, ARRAY[250]), array_fill(1::bigint, ARRAY[250]))`)
		p.call(page, "due orphans", `SELECT * FROM artifactd.due_orphans(`+pass+`, 'artifactd/artifacts/8', '', $1)`, batch)
		// The listing's end looks at every orphan once: they are garbage, not the catalogue.
		p.exec(`UPDATE artifactd.reconcile_pass SET listed = 1000000, allowed = 1000000 WHERE ended_at IS NULL`)
		p.call(page, "condemn orphans", `SELECT * FROM artifactd.condemn_orphans(`+pass+`, ARRAY(SELECT object_key FROM artifactd.orphan ORDER BY object_key LIMIT 250),
			array_fill(''::text, ARRAY[250]), array_fill('p77'::text, ARRAY[250]), array_fill('1.3'::text, ARRAY[250]))`)
		p.call(page, "unknown keys", `SELECT place FROM artifactd.unknown_keys(ARRAY(SELECT 'artifactd/artifacts/' || encode(sha256(i::text::bytea), 'hex') || '/' || md5('a' || i)::uuid
			FROM generate_series(5000, 5249) i), array_fill(''::text, ARRAY[250]))`)
		p.call(few, "keep pass", `SELECT artifactd.keep_pass(`+pass+`)`)
		p.call(few, "end reconcile", `SELECT artifactd.end_reconcile(`+pass+`, 'done')`)
		p.call(page, "stored artifacts, by page", `SELECT a.artifact_id FROM artifactd.artifact a JOIN artifactd.pointer p USING (pointer_id)
			WHERE a.artifact_id > $1 AND a.stored_at IS NOT NULL ORDER BY a.artifact_id LIMIT $2`, uuid.New(), batch)
		p.call(page, "mark missing", `SELECT artifactd.mark_missing(ARRAY(SELECT md5('a' || i)::uuid FROM generate_series(5000, 5249) i))`)
		p.call(page, "mark found", `SELECT artifactd.mark_found(ARRAY(SELECT md5('a' || i)::uuid FROM generate_series(5000, 5249) i))`)
	}
}
