package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/pointer"
)

const (
	beginPlanSQL    = `SELECT status FROM artifactd.begin_plan($1, $2, $3, $4)`
	pagePointersSQL = `SELECT pointer_id FROM artifactd.pointer WHERE pointer_id > $1 ORDER BY pointer_id LIMIT $2`
	onePointerSQL   = `SELECT pointer_id FROM artifactd.pointer WHERE name = $1`
	planPointersSQL = `SELECT goes, reason, generations, objects, bytes FROM artifactd.plan_pointers($1, $2)`
	planReplacedSQL = `SELECT next, next_id, objects, bytes FROM artifactd.plan_replaced($1, $2, $3, $4)`
	planLedgerSQL   = `SELECT count(*), coalesce(sum(size), 0)::bigint FROM artifactd.deletion WHERE not_before <= clock_timestamp()`
	finishPlanSQL   = `SELECT artifactd.finish_plan($1, $2, $3)`
	planSQL         = `SELECT summary, created_at, expires_at FROM artifactd.gc_plan WHERE plan_id = $1 AND summary IS NOT NULL`
	plansSQL        = `SELECT summary, created_at, expires_at FROM artifactd.gc_plan WHERE summary IS NOT NULL ORDER BY created_at DESC LIMIT $1`
	planItemsSQL    = `SELECT i.pointer_id, i.item_id, p.name, i.kind, coalesce(g.epoch, 0), coalesce(g.generation, 0), i.goes, i.reason, i.keeps_until,
			i.objects, i.bytes, coalesce(i.outcome, '')
		FROM artifactd.gc_plan_item i JOIN artifactd.pointer p USING (pointer_id)
		LEFT JOIN artifactd.generation g ON g.generation_id = i.item_id
		WHERE i.plan_id = $1 AND (i.pointer_id, i.item_id) > ($2, $3) ORDER BY i.pointer_id, i.item_id LIMIT $4`
)

// Why a plan cannot be run, or shown.
var (
	ErrPlanNotFound = errors.New("no such plan")
	// ErrPlanExpired: too much may have changed since; make a new one.
	ErrPlanExpired = errors.New("the plan has expired")
	// ErrPlanIncomplete: it is still being made, or whoever made it was stopped.
	ErrPlanIncomplete = errors.New("the plan is not complete")
)

// DefaultPlanTTL is how long a plan can be run after it was made.
const DefaultPlanTTL = time.Hour

const (
	// planPage is how many pointers are judged in one transaction.
	planPage = 200
	// planStatement is how long one page may take: it reads all files of what goes.
	planStatement = "10min"
	// planMaking is how long a plan that was never completed is kept.
	planMaking = 24 * time.Hour
)

// PlanCount sums up a part of a plan.
type PlanCount struct {
	Reason      string `json:"reason"`
	Generations int64  `json:"generations"`
	// Objects of what goes are those that nothing else names, at most: what was declared and never
	// uploaded is among them. Of what stays they are the files, shared or not.
	Objects int64 `json:"objects"`
	Bytes   int64 `json:"bytes"`
}

// Plan says what a run would take and why, and what stays and why.
type Plan struct {
	ID        uuid.UUID `json:"plan_id"`
	Pointer   string    `json:"pointer,omitempty"` // the one it is about; empty for all
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	// Goes by reason: displaced, superseded, expired, released, broken, replaced.
	Goes []PlanCount `json:"goes"`
	// Stays by what keeps it: current, leased, pinned, keep-seconds, keep-versions, resume-grace, quarantined.
	Stays []PlanCount `json:"stays"`
	// Ledger is what earlier runs and reconciliation have condemned already. It is no part of the
	// plan: the next collection deletes it from the store, whatever the plan says.
	Ledger Count `json:"ledger"`
}

// Sum adds up what goes.
func (p *Plan) Sum() (sum PlanCount) {
	for _, c := range p.Goes {
		sum.Generations += c.Generations
		sum.Objects += c.Objects
		sum.Bytes += c.Bytes
	}
	return sum
}

// PlanItem is a generation of a plan, or an artifact that was replaced before it was published.
type PlanItem struct {
	Pointer    string        `json:"pointer"`
	Kind       string        `json:"kind"` // generation or artifact
	Version    pointer.Token `json:"-"`    // of a generation
	ID         uuid.UUID     `json:"id"`
	Goes       bool          `json:"goes"`
	Reason     string        `json:"reason"`
	KeepsUntil *time.Time    `json:"keeps_until,omitempty"` // when time alone lets it go
	Objects    int64         `json:"objects"`
	Bytes      int64         `json:"bytes"`
	// Outcome of running the plan: collected, busy (another collector is at it), or what keeps it
	// after all. Empty before.
	Outcome string `json:"outcome,omitempty"`

	pointerID int64
}

// PlanOptions of one plan.
type PlanOptions struct {
	Pointer     string         // empty for all
	ResumeGrace *time.Duration // replaces the collector's own
	TTL         time.Duration  // 0 means DefaultPlanTTL

	progress func() // called between pages, when it is not nil
}

// Plan makes a plan and writes it down, page by page, so that its size costs no memory. The plan of
// one pointer has what stays among its items, too. [pointer.ErrPointerNotFound].
func (c *Collector) Plan(ctx context.Context, o PlanOptions) (Plan, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Plan{}, err
	}
	plan := Plan{ID: id, Pointer: o.Pointer}
	if err := c.makePlan(ctx, o, &plan); err != nil {
		return plan, fmt.Errorf("plan collection: %w", historyFault(err))
	}
	return c.PlanByID(ctx, id)
}

func (c *Collector) makePlan(ctx context.Context, o PlanOptions, plan *Plan) error {
	grace, err := c.grace(o.ResumeGrace)
	if err != nil {
		return err
	}
	if o.TTL == 0 {
		o.TTL = DefaultPlanTTL
	}
	if o.progress == nil {
		o.progress = func() {}
	}
	var name *string
	if o.Pointer != "" {
		name = &o.Pointer
	}
	var status string
	err = c.pool.QueryRow(ctx, beginPlanSQL, plan.ID, name, grace.Seconds(), planMaking.Seconds()).Scan(&status)
	switch {
	case err != nil:
		return err
	case status == "pointer-not-found":
		return pointer.ErrPointerNotFound
	}
	sums := planSums{}
	if err := c.planPointers(ctx, plan, sums, o.progress); err != nil {
		return err
	}
	if err := c.planReplaced(ctx, plan, sums); err != nil {
		return err
	}
	plan.Goes, plan.Stays = sums.sorted(true), sums.sorted(false)
	if err := c.pool.QueryRow(ctx, planLedgerSQL).Scan(&plan.Ledger.Objects, &plan.Ledger.Bytes); err != nil {
		return err
	}
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return c.pool.QueryRow(ctx, finishPlanSQL, plan.ID, o.TTL.Seconds(), text).Scan(&plan.ExpiresAt)
}

// planPointers judges all pointers, or the plan's one, in pages.
func (c *Collector) planPointers(ctx context.Context, plan *Plan, sums planSums, progress func()) error {
	if plan.Pointer != "" {
		var id int64
		if err := c.pool.QueryRow(ctx, onePointerSQL, plan.Pointer).Scan(&id); err != nil {
			return err
		}
		return c.planPage(ctx, plan, []int64{id}, sums)
	}
	var last int64
	for {
		rows, err := c.pool.Query(ctx, pagePointersSQL, last, planPage)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil || len(page) == 0 {
			return err
		}
		if err := c.planPage(ctx, plan, page, sums); err != nil {
			return err
		}
		last = page[len(page)-1]
		progress()
	}
}

func (c *Collector) planPage(ctx context.Context, plan *Plan, pointers []int64, sums planSums) error {
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET LOCAL statement_timeout = '`+planStatement+`'`); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, planPointersSQL, plan.ID, pointers)
		if err != nil {
			return err
		}
		var goes bool
		var n PlanCount
		_, err = pgx.ForEachRow(rows, []any{&goes, &n.Reason, &n.Generations, &n.Objects, &n.Bytes}, func() error {
			sums.add(goes, n)
			return nil
		})
		return err
	})
}

// planReplaced finds artifacts whose path was staged again, in pages.
func (c *Collector) planReplaced(ctx context.Context, plan *Plan, sums planSums) error {
	after, id := time.Unix(0, 0), uuid.Nil
	for {
		var next *time.Time
		var nextID *uuid.UUID
		n := PlanCount{Reason: "replaced"}
		if err := c.pool.QueryRow(ctx, planReplacedSQL, plan.ID, after, id, c.opts.Batch).Scan(&next, &nextID, &n.Objects, &n.Bytes); err != nil {
			return err
		}
		if next == nil {
			return nil
		}
		if n.Objects > 0 {
			sums.add(true, n)
		}
		after, id = *next, *nextID
	}
}

// PlanByID gives a complete plan. [ErrPlanNotFound].
func (c *Collector) PlanByID(ctx context.Context, id uuid.UUID) (Plan, error) {
	rows, err := c.pool.Query(ctx, planSQL, id)
	if err != nil {
		return Plan{}, err
	}
	p, err := pgx.CollectExactlyOneRow(rows, scanPlan)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, ErrPlanNotFound
	}
	return p, err
}

// Plans gives the last plans, newest first, at most limit of them.
func (c *Collector) Plans(ctx context.Context, limit int) ([]Plan, error) {
	rows, err := c.pool.Query(ctx, plansSQL, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanPlan)
}

func scanPlan(row pgx.CollectableRow) (Plan, error) {
	var p Plan
	var created, expires time.Time
	err := row.Scan(&p, &created, &expires)
	p.CreatedAt, p.ExpiresAt = created.UTC(), expires.UTC()
	return p, err
}

// PlanCursor is a place among a plan's items; the zero value is the beginning.
type PlanCursor struct {
	Pointer int64     `json:"p"`
	ID      uuid.UUID `json:"i"`
}

// PlanItems gives the plan's items behind a place, at most limit of them, and the next place.
func (c *Collector) PlanItems(ctx context.Context, id uuid.UUID, after PlanCursor, limit int) ([]PlanItem, PlanCursor, error) {
	rows, err := c.pool.Query(ctx, planItemsSQL, id, after.Pointer, after.ID, limit)
	if err != nil {
		return nil, after, err
	}
	items, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (PlanItem, error) {
		var i PlanItem
		return i, row.Scan(&i.pointerID, &i.ID, &i.Pointer, &i.Kind, &i.Version.Epoch, &i.Version.Generation, &i.Goes, &i.Reason, &i.KeepsUntil,
			&i.Objects, &i.Bytes, &i.Outcome)
	})
	if len(items) > 0 {
		after = PlanCursor{items[len(items)-1].pointerID, items[len(items)-1].ID}
	}
	return items, after, err
}
