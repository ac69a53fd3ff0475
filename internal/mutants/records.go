package main

const (
	records  = "migrations/00009_outbox.sql"
	restores = "migrations/00010_restore.sql"
)

// recordMutants break what is written down in the bucket, and what is brought back from there.
var recordMutants = []mutant{
	{
		name: "a publish is not written into the outbox",
		file: publish,
		old:  "    INSERT INTO outbox (record_id, kind, pointer_id) VALUES (p_generation_id, 'version', p_pointer_id);\n",
		pkg:  "./recovery", run: "TestOutboxWritesRecords",
	},
	{
		name: "a claimed record is claimed again",
		file: records,
		old:  "SET not_before = at + make_interval(secs => p_seconds), attempts",
		new:  "SET not_before = at, attempts",
		pkg:  "./recovery", run: "TestOutboxTwoWorkers",
	},
	{
		name: "a collected version leaves its record behind",
		file: taking,
		old:  "            IF v_id IS NOT NULL THEN PERFORM bury_record(v_id, p_landing_seconds); END IF;\n",
		new:  "            NULL;\n",
		pkg:  "./recovery", run: "TestCollectedVersionsRecordGoes",
	},
	{
		name: "a record that a worker may be writing is not waited for",
		file: records,
		old:  "ELSE greatest(at, v_waiting.not_before) + make_interval(secs => p_landing_seconds) END",
		new:  "ELSE at END",
		pkg:  "./recovery", run: "TestCollectedBeforeItsRecord",
	},
	{
		name: "a version comes back in the epoch that lost it",
		file: restores,
		old:  "ELSIF v_epoch <= p_record_epoch THEN",
		new:  "ELSIF false THEN",
		pkg:  "./recovery", run: "TestDatabaseRefusesTheLostEpoch",
	},
	{
		name: "a settled operation's version comes back",
		file: restores,
		old:  "        status := 'settled'; RETURN;\n",
		new:  "        NULL;\n",
		pkg:  "./recovery", run: "TestSettleAndRestoreRace",
	},
	{
		name: "a version that comes back takes a live lease away",
		file: restores,
		old:  "h.state = 'leased' AND h.epoch = v_epoch AND p.lease_expires_at > at THEN",
		new:  "false THEN",
		pkg:  "./recovery", run: "TestRestoreLeavesLeasesAlone",
	},
	{
		name: "a lost version displaces a newer one",
		file: restores,
		old:  "\n         AND (c.generation_id IS NULL OR (p_epoch, p_generation) > (SELECT s.epoch, s.generation FROM shown_order(c) s));",
		new:  ";",
		pkg:  "./recovery", run: "TestNewerVersionsStayCurrent",
	},
	{
		name: "what was retired since is shown again",
		file: restores,
		old:  "         AND (q.retired_epoch IS NULL OR (p_epoch, p_generation) > (q.retired_epoch, q.retired_generation))\n",
		pkg:  "./recovery", run: "TestNewerVersionsStayCurrent",
	},
	{
		name: "an object that is being deleted is brought back",
		file: restores,
		old:  "IF FOUND THEN status := 'deleting'; RETURN; END IF;",
		pkg:  "./recovery", run: "TestMissingObjects",
	},
	{
		name: "a version comes back although not every file was proved",
		file: restores,
		old:  "ELSIF f.files <> p_file_count OR f.not_stored > 0 OR f.digest IS DISTINCT FROM p_manifest_digest THEN",
		new:  "ELSIF false THEN",
		pkg:  "./recovery", run: "TestDatabaseRefusesTheLostEpoch",
	},
	{
		name: "a version comes back twice",
		file: restores,
		old:  "     WHERE NOT EXISTS (SELECT 1 FROM generation g WHERE g.recovered_from = p_recovered_from)\n    ON CONFLICT (recovered_from)",
		new:  "    ON CONFLICT (recovered_from)",
		pkg:  "./recovery", run: "TestDatabaseRefusesTheLostEpoch",
	},
	{
		name: "the ledger is not locked while a version comes back",
		file: restores,
		old:  "    LOCK TABLE deletion IN SHARE MODE;\n",
		pkg:  "./recovery", run: "TestReconcileBesideRestore",
	},
	{
		name: "reconciliation does not wait for a version that comes back",
		file: reconcile,
		old:  "    LOCK TABLE deletion IN ROW EXCLUSIVE MODE;\n",
		pkg:  "./recovery", run: "TestReconcileBesideRestore",
	},
	{
		name: "a lost publish is refused although its version came back",
		file: publish,
		old:  "            IF FOUND AND EXISTS (SELECT 1 FROM generation g2 WHERE g2.publish_operation_id = p_operation_id) THEN\n                -- What this",
		new:  "            IF false THEN\n                -- What this",
		pkg:  "./recovery", run: "TestLostVersionsComeBack",
	},
	{
		name: "a claim on records is not renewed",
		file: "recovery/outbox.go",
		old:  "		case <-tick.C:\n		}\n",
		new:  "		case <-tick.C:\n			continue\n		}\n",
		pkg:  "./recovery", run: "TestOutboxClaimIsRenewed",
	},
	{
		name: "a claim on records that somebody else has is renewed",
		file: "migrations/00016_outbox_claims.sql",
		old:  "WHERE o.record_id = c.id AND o.attempts = c.attempts;",
		new:  "WHERE o.record_id = c.id;",
		pkg:  "./recovery", run: "TestOutboxClaimThatIsNotRenewedEnds",
	},
	{
		name: "a claim on records that was not renewed goes on",
		file: "recovery/outbox.go",
		old:  "		case !all:\n			return\n",
		new:  "		case !all && false:\n			return\n",
		pkg:  "./recovery", run: "TestOutboxClaimThatIsNotRenewedEnds",
	},
}
