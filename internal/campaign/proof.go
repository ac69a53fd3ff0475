package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// broken is a protocol that is broken in one place, and the attack that has to notice it.
type broken struct {
	name     string
	sabotage string // SQL that breaks it
	options  options
	losses   bool // by the attack that takes the database back
}

// breaking is SQL that changes one text in a function of the protocol, and takes away the guards
// that would stop the consequences.
func breaking(function, old, changed string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return `DROP TRIGGER guard ON artifactd.generation; DROP TRIGGER guard ON artifactd.pointer;
		DO $do$ DECLARE d text := pg_get_functiondef('artifactd.` + function + `'::regproc); BEGIN
			IF strpos(d, ` + quote(old) + `) = 0 THEN RAISE EXCEPTION 'the text to break is gone: bring this test up to date'; END IF;
			EXECUTE replace(d, ` + quote(old) + `, ` + quote(changed) + `);
		END $do$`
}

// fenceInSmall attacks the fence alone, until the first violation.
var fenceInSmall = options{
	duration: 5 * time.Minute, window: 2 * time.Second, seed: 1, workers: 8, readers: 2, pointers: 12, crashes: time.Hour, firstOnly: true,
}

// brokenFences are noticed soon enough for the test suite.
var brokenFences = []broken{
	{name: "an expired lease publishes", options: fenceInSmall, sabotage: breaking("lease_reason", "OR p.lease_expires_at <= at ", "")},
	{name: "settle only looks", options: fenceInSmall, sabotage: breaking("settle", "IF p_pointer IS NOT NULL THEN",
		`IF NOT EXISTS (SELECT 1 FROM operation o WHERE o.operation_id = p_operation_id) THEN
			RETURN QUERY SELECT 'settle', 'aborted', null::jsonb, ARRAY[p_pointer], '{}'::uuid[]; RETURN; ELSIF p_pointer IS NOT NULL THEN`)},
	{name: "a rollback is not fenced", options: fenceInSmall, sabotage: breaking("rollback",
		"ELSIF p.current_epoch IS DISTINCT FROM p_current_epoch OR p.current_generation IS DISTINCT FROM p_current_generation THEN", "ELSIF false THEN")},
}

// collectionInSmall attacks collection with hardly anything else under way.
var collectionInSmall = options{
	duration: 10 * time.Minute, window: 4 * time.Second, seed: 1, workers: 1, pointers: 1, crashes: time.Hour, calm: 3,
	shelves: 5, publishers: 6, fetchers: 3, hurry: true, firstOnly: true,
}

// lossesInSmall takes the database back so often, however long that takes.
func lossesInSmall(rollbacks int) options {
	return options{duration: 10 * time.Minute, seed: 1, publishers: 4, fetchers: 2, rollbacks: rollbacks}
}

// brokenElsewhere can take minutes to be noticed.
var brokenElsewhere = []broken{
	{name: "a pin is not looked at again", options: collectionInSmall,
		sabotage: breaking("judge_generation", "IF g.pinned THEN reason := 'pinned'; RETURN; END IF;", "")},
	{name: "nobody referees between adopting and collecting", options: collectionInSmall,
		sabotage: breaking("bury_artifacts", "AND NOT EXISTS (SELECT 1 FROM manifest_file m WHERE m.artifact_id = a.artifact_id)", "") +
			"; ALTER TABLE artifactd.manifest_file DROP CONSTRAINT manifest_file_artifact_id_fkey"},
	{name: "a key leaves the ledger before the last upload", options: collectionInSmall,
		sabotage: breaking("finish_deletions", " AND d.final_after < p_claimed_at", "")},
	{name: "the counter is not looked at", losses: true, options: lossesInSmall(20),
		sabotage: breaking("history_now", "SELECT sum(c.n) INTO counter FROM counter c;", "counter := 1000000000000;")},
	{name: "the epoch is not looked at", losses: true, options: lossesInSmall(20),
		sabotage: breaking("lease_reason", "WHEN g.epoch <> current_epoch          THEN 'epoch-superseded'", "")},
}

// attacked attacks the broken protocol, and tells how many violations that showed and the first.
func (b broken) attacked(ctx context.Context) (violations int, first string, err error) {
	o := b.options
	o.firstOnly, o.sabotage = true, b.sabotage
	var found []string
	if b.losses {
		_, found, err = attackHistory(ctx, o)
	} else {
		var r report
		r, err = attack(ctx, o)
		found = r.Violations
	}
	if len(found) > 0 {
		first = found[0]
	}
	return len(found), first, err
}

// prove attacks every protocol that is broken in one place. One that nothing is noticed of is an error:
// then a campaign without violations says less than it seems to.
func prove(ctx context.Context, out io.Writer) error {
	// The attack that takes the database back is no part of the test suite, since it takes minutes: so
	// see first that nothing is noticed where nothing is broken.
	whole, violations, err := attackHistory(ctx, lossesInSmall(3))
	if err != nil {
		return err
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations although nothing is broken, the first: %s", len(violations), violations[0])
	}
	fmt.Fprintf(out, "nothing broken, nothing noticed: %d rollbacks, %d published\n", whole.Rollbacks, whole.Published)
	missed := 0
	for _, b := range slices.Concat(brokenFences, brokenElsewhere) {
		began := time.Now()
		n, first, err := b.attacked(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		if n == 0 {
			missed++
			fmt.Fprintf(out, "MISSED   %s (%.0f s)\n", b.name, time.Since(began).Seconds())
			continue
		}
		line, _, _ := strings.Cut(first, "\n")
		fmt.Fprintf(out, "noticed  %s (%.0f s): %.200s\n", b.name, time.Since(began).Seconds(), line)
	}
	if missed > 0 {
		return errors.New("not everything that is broken is noticed")
	}
	return nil
}
