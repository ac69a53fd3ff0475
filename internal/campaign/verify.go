package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/pointer"
)

// record is a row of the operation table.
type record struct {
	kind, outcome string
	canonical     string // as judge spells it
}

// generationRow is a row of the generation table.
type generationRow struct {
	pointer   string
	token     pointer.Token
	state     phase
	holder    string
	operation *uuid.UUID // that published it
}

// tables are the final ones.
type tables struct {
	operations  map[uuid.UUID]record
	generations []generationRow
}

const (
	recordsSQL = `SELECT o.operation_id, o.kind, coalesce(o.outcome, ''), coalesce(o.answer, '{}'),
			coalesce((SELECT g.epoch || '.' || g.generation FROM artifactd.generation g WHERE g.generation_id = o.generation_ids[1]), '')
		FROM artifactd.operation o`
	generationsSQL = `SELECT p.name, g.epoch, g.generation, g.state, g.holder, g.publish_operation_id
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		ORDER BY p.name, g.epoch, g.generation`
)

func readTables(ctx context.Context, conn *pgx.Conn) (*tables, error) {
	t := &tables{operations: map[uuid.UUID]record{}}
	rows, err := conn.Query(ctx, recordsSQL)
	if err != nil {
		return nil, err
	}
	var id uuid.UUID
	var r record
	var answer []byte
	var first string
	_, err = pgx.ForEachRow(rows, []any{&id, &r.kind, &r.outcome, &answer, &first}, func() error {
		canonical, err := spellRecord(r.outcome, answer, first)
		t.operations[id] = record{r.kind, r.outcome, canonical}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the operations: %w", err)
	}
	if rows, err = conn.Query(ctx, generationsSQL); err != nil {
		return nil, err
	}
	var g generationRow
	_, err = pgx.ForEachRow(rows, []any{&g.pointer, &g.token.Epoch, &g.token.Generation, &g.state, &g.holder, &g.operation}, func() error {
		row := g
		if g.operation != nil {
			row.operation = new(*g.operation)
		}
		t.generations = append(t.generations, row)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the generations: %w", err)
	}
	return t, nil
}

// spellRecord is a recorded outcome in the words of judge.
func spellRecord(outcome string, answer []byte, acquired string) (string, error) {
	var a struct {
		Versions []struct{ Pointer, Version string }
		Refusals []struct{ Pointer, Reason string }
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return "", err
	}
	var parts []string
	switch outcome {
	case "published":
		for _, v := range a.Versions {
			parts = append(parts, v.Pointer+"="+v.Version)
		}
	case "refused":
		for _, r := range a.Refusals {
			parts = append(parts, r.Pointer+"="+r.Reason)
		}
	case "acquired":
		parts = append(parts, acquired)
	default:
		return outcome, nil
	}
	slices.Sort(parts)
	return outcome + " " + strings.Join(parts, " "), nil
}

// verify compares everything that was told with the final tables.
func (c *campaign) verify(ctx context.Context) error {
	conn, err := c.stack.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	t, err := readTables(ctx, conn)
	if err != nil {
		return err
	}
	requests := map[uuid.UUID]*request{}
	for _, a := range c.actors {
		for _, r := range a.requests {
			requests[r.id] = r
		}
	}
	for _, problem := range slices.Concat(t.againstRequests(requests), t.generationsInOrder(), t.againstPromises(requests, c.promised)) {
		c.violate("%s", problem)
	}
	return nil
}

// againstRequests: what was told is recorded and was always the same; what was said not to have
// happened is not recorded; nothing is recorded that nobody asked for.
func (t *tables) againstRequests(requests map[uuid.UUID]*request) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for id, r := range requests {
		row, recorded := t.operations[id]
		switch {
		case r.outcome() == "" && r.sent > r.nothing:
			add("%s %s was never settled", r.kind, id)
		case r.outcome() == "" && recorded:
			add("%s %s was told that nothing happened, and is recorded as %s", r.kind, id, row.canonical)
		case r.outcome() != "" && row.canonical != r.outcome():
			add("%s %s was told as %q and is recorded as %q", r.kind, id, r.outcome(), row.canonical)
		}
		for _, again := range r.told {
			if again != r.outcome() {
				add("%s %s was told as %q and then as %q", r.kind, id, r.outcome(), again)
			}
		}
	}
	for id, row := range t.operations {
		if requests[id] == nil {
			add("operation %s, %s, is recorded and was never asked for", id, row.canonical)
		}
	}
	for _, g := range t.generations {
		if (g.state == pointer.StatePublished) != (g.operation != nil) {
			add("%s %s is %s and has the publishing operation %v", g.pointer, g.token, g.state, g.operation)
		}
		if g.operation == nil {
			continue
		}
		if row := t.operations[*g.operation]; row.outcome != "published" || !slices.Contains(strings.Fields(row.canonical), g.pointer+"="+g.token.String()) {
			add("%s %s is published by operation %s, which is recorded as %q", g.pointer, g.token, g.operation, row.canonical)
		}
	}
	return append(problems, t.publications()...)
}

// publications: every publication that is recorded is a published generation, and no generation is
// published by two operations.
func (t *tables) publications() (problems []string) {
	published := map[string]uuid.UUID{}
	for _, g := range t.generations {
		if g.operation != nil {
			published[g.pointer+"="+g.token.String()] = *g.operation
		}
	}
	by := map[string]uuid.UUID{}
	for id, row := range t.operations {
		if row.outcome != "published" {
			continue
		}
		for _, version := range strings.Fields(row.canonical)[1:] {
			if other, twice := by[version]; twice {
				problems = append(problems, fmt.Sprintf("%s is published by %s and by %s", version, other, id))
			}
			by[version] = id
			if published[version] != id {
				problems = append(problems, fmt.Sprintf("operation %s is recorded to have published %s, which the generation does not know", id, version))
			}
		}
	}
	return problems
}

// generationsInOrder: every pointer's generations are numbered without a gap.
func (t *tables) generationsInOrder() (problems []string) {
	last := map[string]pointer.Token{}
	for _, g := range t.generations {
		if g.token.Generation != last[g.pointer].Generation+1 || g.token.Epoch < last[g.pointer].Epoch {
			problems = append(problems, fmt.Sprintf("%s: generation %s follows %s", g.pointer, g.token, last[g.pointer]))
		}
		last[g.pointer] = g.token
	}
	return problems
}

// againstPromises: whoever was told that nothing happened holds nothing.
func (t *tables) againstPromises(requests map[uuid.UUID]*request, promised []string) (problems []string) {
	free := map[string]bool{}
	for _, holder := range promised {
		free[holder] = true
	}
	for _, r := range requests {
		if r.kind == kindAcquire && (r.outcome() == "" || r.outcome() == "aborted") {
			free[r.holder] = true
		}
	}
	for _, g := range t.generations {
		if free[g.holder] {
			problems = append(problems, fmt.Sprintf("%s %s is held by %s, who was told that nothing was acquired", g.pointer, g.token, g.holder))
		}
	}
	return problems
}
