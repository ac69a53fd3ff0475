package main

// stagingMutants break what makes a manifest whole.
var stagingMutants = []mutant{
	{
		name: "an incomplete manifest is published",
		file: publish,
		old:  "v_ready := v_ready || (f.files > 0 AND f.not_stored = 0);",
		new:  "v_ready := v_ready || true;",
		pkg:  "./pointer", run: "ScheduleS5|ScheduleU5",
	},
	{
		name: "stage does not ask for a live lease",
		file: staging,
		old:  "    IF v_reason IS NOT NULL OR v_new + g.file_count > p_max_files THEN\n",
		new:  "    IF v_new + g.file_count > p_max_files THEN\n",
		pkg:  "./pointer", run: "ScheduleH3",
	},
	{
		name: "staging again keeps the seal",
		file: staging,
		old:  "           sealed_at = NULL, manifest_digest = NULL\n     WHERE g2.generation_id = p_lease_id;",
		new:  "           manifest_digest = NULL\n     WHERE g2.generation_id = p_lease_id;",
		pkg:  "./pointer", run: "Seal",
	},
	{
		name: "staging what is new keeps the seal",
		file: staging,
		old:  "               sealed_at = NULL, manifest_digest = NULL\n         WHERE g2.generation_id = p_lease_id;\n        PERFORM count_decision();\n        RETURN QUERY",
		new:  "               manifest_digest = NULL\n         WHERE g2.generation_id = p_lease_id;\n        PERFORM count_decision();\n        RETURN QUERY",
		pkg:  "./pointer", run: "Seal",
	},
	{
		name: "what is adopted is not locked",
		file: staging,
		old:  "    IF v_candidates IS NOT NULL OR v_named <> '{}' THEN\n",
		new:  "    IF v_named <> '{}' THEN\n",
		pkg:  "./pointer", run: "TestAdoptionThatLoses",
	},
	{
		name: "what is replaced is not locked",
		file: staging,
		old:  "a.artifact_id = ANY (v_candidates || v_named)\n",
		new:  "a.artifact_id = ANY (v_candidates)\n",
		pkg:  "./pointer", run: "TestReplacementBesideTheCollector",
	},
	{
		name: "a missing object is adopted",
		file: staging,
		old:  " AND a.missing_at IS NULL AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL)\n",
		new:  " AND (a.stored_at IS NOT NULL OR a.upload_id IS NOT NULL)\n",
		pkg:  "./pointer", run: "TestAdoptionThatLosesToVerify",
	},
}
