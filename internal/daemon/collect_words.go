package daemon

import (
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/gc"
)

func gcRun(r gc.Report) types.GcRun {
	by, bytes := make(map[string]int64, len(r.ByReason)), make(map[string]int64, len(r.ByReason))
	for reason, n := range r.ByReason {
		by[reason], bytes[reason] = n.Objects, n.Bytes
	}
	run := types.GcRun{
		RunId: r.RunID, State: r.State, StartedAt: r.StartedAt.UTC(), DryRun: r.DryRun, PlanId: r.PlanID,
		Candidates: &r.Looked, ExpiredLeases: &r.Expired, CollectedGenerations: &r.Marked,
		DeletedObjects: r.Deleted.Objects, DeletedBytes: r.Deleted.Bytes, ByReason: by, BytesByReason: bytes,
		FailedObjects: &r.Failed, RetainedObjects: &r.Retained, SkippedConflicts: &r.Skipped,
		LedgerSize: r.LedgerSize, LedgerAgeSeconds: &r.LedgerAgeSeconds, LedgerNextAt: utc(r.LedgerNext), Kept: r.Kept, Error: notEmpty(r.FirstError),
	}
	if !r.FinishedAt.IsZero() {
		run.FinishedAt = utc(&r.FinishedAt)
	}
	return run
}

func gcPlan(p gc.Plan) types.GcPlan {
	return types.GcPlan{
		PlanId: p.ID, Pointer: notEmpty(p.Pointer), CreatedAt: p.CreatedAt.UTC(), ExpiresAt: p.ExpiresAt.UTC(),
		Goes: gcCounts(p.Goes), Stays: gcCounts(p.Stays), LedgerObjects: p.Ledger.Objects, LedgerBytes: p.Ledger.Bytes,
	}
}

func gcCounts(list []gc.PlanCount) []types.GcCount {
	out := make([]types.GcCount, len(list))
	for i, n := range list {
		out[i] = types.GcCount{Reason: n.Reason, Generations: n.Generations, Objects: n.Objects, Bytes: n.Bytes}
	}
	return out
}

func gcPlanItem(i gc.PlanItem) types.GcPlanItem {
	item := types.GcPlanItem{
		Pointer: i.Pointer, Kind: i.Kind, Id: i.ID, Goes: i.Goes, Reason: i.Reason, KeepsUntil: utc(i.KeepsUntil),
		Objects: i.Objects, Bytes: i.Bytes, Outcome: notEmpty(i.Outcome),
	}
	if !i.Version.IsZero() {
		item.Version = notEmpty(i.Version.String())
	}
	return item
}

func gcExplanation(e gc.Explanation) types.GcExplanation {
	out := types.GcExplanation{Key: e.Key, Verdict: e.Verdict, Reason: e.Reason, InStore: e.InStore, Size: e.Size, Names: []types.GcNaming{}}
	for _, n := range e.Names {
		out.Names = append(out.Names, types.GcNaming{Pointer: n.Pointer, Version: n.Version.String(), State: n.State, Path: n.Path,
			Goes: n.Goes, Reason: n.Reason, KeepsUntil: utc(n.KeepsUntil)})
	}
	if e.More {
		out.NamesTruncated = &e.More
	}
	if l := e.Ledger; l != nil {
		attempts := int32(l.Attempts)
		out.EnqueuedAt, out.NextAttemptAt, out.FinalAfter, out.DeletedAt = utc(&l.EnqueuedAt), utc(&l.NextAttempt), utc(&l.FinalAfter), utc(l.DeletedAt)
		out.Attempts, out.LastError = &attempts, notEmpty(l.LastError)
	}
	if o := e.Orphan; o != nil {
		out.FirstSeenAt, out.LastSeenAt = utc(&o.FirstSeen), utc(&o.LastSeen)
	}
	return out
}

// notEmpty is nil for an empty text, so that the member is left out.
func notEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}
