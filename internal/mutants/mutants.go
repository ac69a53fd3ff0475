package main

// mutant is one breaking of the protocol, and the tests that must notice it.
type mutant struct {
	name string
	file string // relative to the module's root
	old  string // stands there exactly once
	new  string
	pkg  string
	run  string // -run expression of the tests of which at least one must fail
}

const (
	leases  = "migrations/00002_leases.sql"
	publish = "migrations/00003_publish.sql"
	collect = "migrations/00004_collect.sql"

	reconcile = "migrations/00006_reconcile.sql"
)

// mutants breaks each guard of the protocol in turn. A guard without a mutant is a guard that
// nobody knows to be tested.
var mutants = []mutant{
	{
		name: "the lease's expiry is not looked at",
		file: leases,
		old:  "          OR p.lease_expires_at <= at          THEN 'expired'",
		new:  "                                               THEN 'expired'",
		pkg:  "./pointer", run: "ScheduleH3|ScheduleH5|ScheduleH6",
	},
	{
		name: "a recorded expiry can be outlived by the clock",
		file: leases,
		old:  "        WHEN g.state = 'expired'\n          OR p.lease_expires_at IS NULL",
		new:  "        WHEN p.lease_expires_at IS NULL",
		pkg:  "./pointer", run: "ScheduleH3",
	},
	{
		name: "an older generation may publish",
		file: leases,
		old:  "        WHEN p.head_id IS DISTINCT FROM g.generation_id\n          OR p.epoch <> g.epoch OR p.generation <> g.generation\n          OR g.state = 'superseded'            THEN 'superseded'\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleH1Stale",
	},
	{
		name: "a lease publishes twice",
		file: leases,
		old:  "        WHEN g.state = 'published'             THEN 'already-published'\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleH4",
	},
	{
		name: "the token is not compared",
		file: leases,
		old:  "        WHEN g.epoch IS DISTINCT FROM token_epoch\n          OR g.generation IS DISTINCT FROM token_generation THEN 'token-mismatch'\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleU8|ScheduleU4",
	},
	{
		name: "the epoch is not compared",
		file: leases,
		old:  "        WHEN g.epoch <> current_epoch          THEN 'epoch-superseded'\n",
		new:  "",
		pkg:  "./pointer", run: "Epoch",
	},
	{
		name: "a broken lease lives on",
		file: leases,
		old:  "        WHEN g.state = 'broken'                THEN 'broken'\n",
		new:  "",
		pkg:  "./pointer", run: "TestBreakLease",
	},
	{
		name: "a released lease lives on",
		file: leases,
		old:  "        WHEN g.state = 'released'              THEN 'released'\n",
		new:  "",
		pkg:  "./pointer", run: "Released",
	},
	{
		name: "publish reads the transaction's start for the clock",
		file: publish,
		old:  "    SELECT clock_timestamp(), inst.epoch INTO at, v_epoch FROM installation inst;\n    FOR i IN 1..n LOOP",
		new:  "    SELECT now(), inst.epoch INTO at, v_epoch FROM installation inst;\n    FOR i IN 1..n LOOP",
		pkg:  "./pointer", run: "ScheduleH5|ScheduleH6",
	},
	{
		name: "publish reads the clock from before the locks",
		file: publish,
		old:  "    SELECT clock_timestamp(), inst.epoch INTO at, v_epoch FROM installation inst;\n    FOR i IN 1..n LOOP",
		new:  "    SELECT statement_timestamp(), inst.epoch INTO at, v_epoch FROM installation inst;\n    FOR i IN 1..n LOOP",
		pkg:  "./pointer", run: "ScheduleH5",
	},
	{
		name: "publish does not lock the pointer first",
		file: publish,
		old:  "    PERFORM 1 FROM pointer p2 WHERE p2.pointer_id = ANY (v_pointer_ids) ORDER BY p2.name FOR NO KEY UPDATE;\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleH5|ScheduleH7|ScheduleH14|ScheduleU3",
	},
	{
		name: "an incomplete manifest is published",
		file: publish,
		old:  "v_ready := v_ready || (f.files > 0 AND f.not_stored = 0);",
		new:  "v_ready := v_ready || true;",
		pkg:  "./pointer", run: "ScheduleS5|ScheduleU5",
	},
	{
		name: "an older source is published",
		file: publish,
		old:  "        IF v_reason IS NULL AND p_revisions[i] < p.highest_revision THEN v_reason := 'source-stale'; END IF;\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleH13",
	},
	{
		name: "leaving the revision out lowers the mark",
		file: publish,
		old:  "highest_revision = greatest(p.highest_revision, p_revision)",
		new:  "highest_revision = p_revision",
		pkg:  "./pointer", run: "ScheduleH13",
	},
	{
		name: "one of several publishes alone",
		file: publish,
		old:  "    IF v_refusals <> '[]' THEN\n",
		new:  "    IF jsonb_array_length(v_refusals) = n THEN\n",
		pkg:  "./pointer", run: "ScheduleH14",
	},
	{
		name: "the outcome's request is not compared",
		file: publish,
		old:  "(o.request_digest IS DISTINCT FROM p_request_digest\n                OR o.manifest_digests IS DISTINCT FROM v_digests)",
		new:  "(false)",
		pkg:  "./pointer", run: "ScheduleU4",
	},
	{
		name: "the outcome's files are not compared",
		file: publish,
		old:  "\n                OR o.manifest_digests IS DISTINCT FROM v_digests",
		new:  "",
		pkg:  "./pointer", run: "ScheduleU4",
	},
	{
		name: "a refusal is not recorded",
		file: publish,
		old:  "    UPDATE operation o2 SET outcome = status, answer = publish.answer, manifest_digests = v_digests\n     WHERE o2.operation_id = p_operation_id;",
		new:  "    IF status = 'refused' THEN DELETE FROM operation o2 WHERE o2.operation_id = p_operation_id; ELSE\n    UPDATE operation o2 SET outcome = status, answer = publish.answer, manifest_digests = v_digests\n     WHERE o2.operation_id = p_operation_id; END IF;",
		pkg:  "./pointer", run: "ScheduleU5",
	},
	{
		name: "settle only looks",
		file: publish,
		old:  "    IF p_pointer IS NOT NULL THEN\n        INSERT INTO operation",
		new:  "    IF p_pointer IS NULL THEN\n        INSERT INTO operation",
		pkg:  "./pointer", run: "ScheduleU2|ScheduleU3",
	},
	{
		name: "release ends whatever lease there is",
		file: leases,
		old:  "    IF NOT FOUND THEN status := 'lease-not-found'; RETURN; END IF;\n    PERFORM 1 FROM pointer WHERE pointer_id = g.pointer_id FOR NO KEY UPDATE;\n",
		new:  "    IF NOT FOUND THEN status := 'lease-not-found'; RETURN; END IF;\n    SELECT head_id INTO p_lease_id FROM pointer WHERE pointer_id = g.pointer_id;\n    PERFORM 1 FROM pointer WHERE pointer_id = g.pointer_id FOR NO KEY UPDATE;\n",
		pkg:  "./pointer", run: "ScheduleH2",
	},
	{
		name: "acquire does not end the lease before it",
		file: leases,
		old:  "    PERFORM end_lease(p.head_id, 'superseded', at);\n    expiry",
		new:  "    expiry",
		pkg:  "./pointer", run: "ScheduleH1Stale",
	},
	{
		name: "acquire takes a live lease away",
		file: leases,
		old:  "    ELSIF g.state = 'leased' AND g.epoch = v_epoch AND p.lease_expires_at > at THEN\n",
		new:  "    ELSIF false THEN\n",
		pkg:  "./pointer", run: "ScheduleH9|WaitingInLine",
	},
	{
		name: "nobody keeps the order of the line",
		file: leases,
		old:  "    ELSIF NOT v_first THEN\n",
		new:  "    ELSIF false THEN\n",
		pkg:  "./pointer", run: "TestLineIsFair",
	},
	{
		name: "acquire forgets its operation",
		file: leases,
		old:  "        IF NOT recorded THEN\n            UPDATE operation",
		new:  "        IF false THEN\n            UPDATE operation",
		pkg:  "./pointer", run: "ScheduleH10",
	},
	{
		name: "a renewal shortens the lease",
		file: leases,
		old:  "    ELSE\n        wanted := standing;\n",
		new:  "    ELSE\n",
		pkg:  "./pointer", run: "TestRenew",
	},
	{
		name: "renewals go on for ever",
		file: leases,
		old:  "    wanted := least(at + make_interval(secs => coalesce(p_ttl, g.ttl_seconds)),\n                    g.acquired_at + make_interval(secs => p_max_life));",
		new:  "    wanted := at + make_interval(secs => coalesce(p_ttl, g.ttl_seconds));",
		pkg:  "./pointer", run: "TestRenew",
	},
	{
		name: "rollback without its token",
		file: publish,
		old:  "    ELSIF p.current_epoch IS DISTINCT FROM p_current_epoch OR p.current_generation IS DISTINCT FROM p_current_generation THEN\n        v_reason := 'superseded';\n",
		new:  "",
		pkg:  "./pointer", run: "TestRollback",
	},
	{
		name: "retire without its token",
		file: leases,
		old:  "    IF p.current_epoch IS DISTINCT FROM p_epoch OR p.current_generation IS DISTINCT FROM p_generation THEN\n        status := 'superseded'; RETURN;\n    END IF;\n",
		new:  "",
		pkg:  "./pointer", run: "ScheduleH15",
	},
	{
		name: "retiring lets the name start again",
		file: leases,
		old:  "    UPDATE pointer p2 SET current_id = NULL, current_epoch = NULL, current_generation = NULL,\n",
		new:  "    UPDATE pointer p2 SET generation = 0, current_id = NULL, current_epoch = NULL, current_generation = NULL,\n",
		pkg:  "./pointer", run: "ScheduleH15",
	},
	{
		name: "stage does not ask for a live lease",
		file: publish,
		old:  "    IF v_reason IS NOT NULL OR g.file_count + v_new > p_max_files THEN\n",
		new:  "    IF g.file_count + v_new > p_max_files THEN\n",
		pkg:  "./pointer", run: "ScheduleH3",
	},
	{
		name: "staging again keeps the seal",
		file: publish,
		old:  "           manifest_digest = NULL, sealed_at = NULL\n     WHERE g2.generation_id = p_lease_id;",
		new:  "           manifest_digest = NULL\n     WHERE g2.generation_id = p_lease_id;",
		pkg:  "./pointer", run: "Seal",
	},
	{
		name: "a missing object is adopted",
		file: publish,
		old:  " AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL) AND a.missing_at IS NULL\n",
		new:  " AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL)\n",
		pkg:  "./pointer", run: "TestAdoptionThatLosesToVerify",
	},
	{
		name: "a collecting version is adopted from",
		file: publish,
		old:  "           AND h.collecting_at IS NULL AND h.file_count > 0\n",
		new:  "           AND h.file_count > 0\n",
		pkg:  "./gc", run: "ScheduleG2",
	},
	{
		name: "the collector does not look at the pin again",
		file: collect,
		old:  "        IF g.pinned THEN reason := 'pinned'; RETURN; END IF;\n",
		new:  "",
		pkg:  "./gc", run: "TestRetention",
	},
	{
		name: "a live lease's generation is collected",
		file: collect,
		old:  "        IF reason IS NULL THEN\n            reason := 'leased';",
		new:  "        IF false THEN\n            reason := 'leased';",
		pkg:  "./gc", run: "LiveLease",
	},
	{
		name: "keep_versions is not looked at",
		file: collect,
		old:  "        IF (g.epoch, g.generation) <= (p_edge_epoch, p_edge_generation) THEN\n",
		new:  "        IF true THEN\n",
		pkg:  "./gc", run: "TestRetention",
	},
	{
		name: "a shared manifest is taken apart",
		file: collect,
		old:  "           AND h.generation_id <> g.generation_id AND h.collected_at IS NULL) THEN\n",
		new:  "           AND false) THEN\n",
		pkg:  "./gc", run: "TestRolledBack",
	},
	{
		name: "a key leaves the ledger too early",
		file: collect,
		old:  " AND f.error = '' AND d.final_after < p_claimed_at;",
		new:  " AND f.error = '';",
		pkg:  "./gc", run: "ScheduleS4",
	},
	{
		name: "a failed deletion leaves the ledger",
		file: collect,
		old:  "     WHERE d.object_key = f.key AND f.error = '' AND",
		new:  "     WHERE d.object_key = f.key AND",
		pkg:  "./gc", run: "ScheduleG5",
	},
	{
		name: "decisions run under any isolation level",
		file: leases,
		old:  "    IF current_setting('transaction_isolation') <> 'read committed' THEN",
		new:  "    IF false THEN",
		pkg:  "./pointer", run: "TestDecisionsNeed",
	},
	{
		name: "an unknown commit is taken for a failure",
		file: "pointer/decide.go",
		old:  "		return fmt.Errorf(\"%w: %w\", errUnknown, err)\n	}\n}\n\n// definite",
		new:  "		return fmt.Errorf(\"%w: %w\", ErrUnavailable, err)\n	}\n}\n\n// definite",
		pkg:  "./pointer", run: "ScheduleU1",
	},
	{
		name: "a look-up joins a statement under way",
		file: "pointer/resolve.go",
		old:  "	heads, err := queryHeads(ctx, b.pool, names)\n	for",
		new:  "	heads, err := queryHeads(ctx, b.pool, names)\n	b.mu.Lock()\n	batch, b.waiting = append(batch, b.waiting...), nil\n	b.mu.Unlock()\n	for",
		pkg:  "./pointer", run: "TestResolveNeverJoins",
	},
	{
		name: "a plan's run deletes what other runs condemned",
		file: "gc/plan_run.go",
		old:  "c.deleteDue(ctx, &plan.id, report)",
		new:  "c.deleteDue(ctx, nil, report)",
		pkg:  "./gc", run: "TestPlanIsRunExactly",
	},
	{
		name: "a plan is run after its expiry",
		file: "migrations/00007_plan.sql",
		old:  "                   WHEN v.expires_at <= clock_timestamp() THEN 'plan-expired'\n",
		new:  "",
		pkg:  "./gc", run: "TestPlanRefusals",
	},
	{
		name: "reconcile deletes what it saw once",
		file: reconcile,
		old:  "    SELECT o.first_seen_at < v.started_at\n       AND o.last_seen_at",
		new:  "    SELECT o.last_seen_at",
		pkg:  "./gc", run: "TestReconcileDeletes|TestReconcilePasses",
	},
	{
		name: "reconcile deletes whatever share is due",
		file: reconcile,
		old:  "allowed = CASE WHEN due <= limit_of_pass THEN limit_of_pass ELSE 0 END",
		new:  "allowed = p_listed",
		pkg:  "./gc", run: "TestReconcileShareLimit",
	},
	{
		name: "reconcile does not look again for a row",
		file: reconcile,
		old:  "                    WHEN k.place <> ALL (v_unknown) THEN 'known'\n",
		new:  "",
		pkg:  "./gc", run: "TestReconcileLooksAgain",
	},
	{
		name: "reconcile does not ask whose bucket it is",
		file: "gc/marker.go",
		old:  "owner != id.String() {",
		new:  "owner == \"\" {",
		pkg:  "./gc", run: "TestReconcileNeeds",
	},
	{
		name: "reconcile deletes what another history wrote",
		file: reconcile,
		old:  "    IF split_part(p_token, '.', 1)::bigint > p_epoch THEN RETURN 'unknown epoch'; END IF;\n    IF p_pointer <> '' AND",
		new:  "    IF p_pointer = '-' AND",
		pkg:  "./gc", run: "TestReconcileKeeps",
	},
	{
		name: "verify reports what was collected meanwhile",
		file: "gc/verify.go",
		old:  "if s.Fault == \"\" || !still[s.ArtifactID] {",
		new:  "if s.Fault == \"\" {",
		pkg:  "./gc", run: "TestVerifyBeside",
	},
}
