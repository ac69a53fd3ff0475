package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// kind is what an operation of a history asks for.
type kind string

const (
	kindAcquire  kind = "acquire"
	kindRenew    kind = "renew"
	kindStage    kind = "stage"
	kindPublish  kind = "publish"
	kindRollback kind = "rollback"
	kindRelease  kind = "release"
	kindBreak    kind = "break-lease"
	kindRetire   kind = "retire"
	kindCreate   kind = "create"
	kindResolve  kind = "resolve"
	kindLease    kind = "lease"   // a look at whether the lease is live
	kindBarrier  kind = "barrier" // the row itself, read while nobody else is there
)

// result is what the caller was told, or what settling or the tables said later.
type result string

const (
	done     result = "done"
	refused  result = "refused" // with a reason, or none: another pointer's share was refused
	lost     result = "lease-lost"
	held     result = "lease-held"
	retired  result = "pointer-retired"
	nothing  result = "nothing-published"
	existed  result = "existed"  // create, of a pointer that is not retired
	mismatch result = "mismatch" // break-lease, of a token that is not the newest
	free     result = "free"     // lease: none is live
	// unknown may have taken effect at any time up to its return, or never.
	unknown result = "unknown"
)

// whole says whether the generator knows a manifest to be complete.
type whole int8

const (
	perhaps whole = iota
	complete
	incomplete
)

// op is one pointer's share of one operation. Times are nanoseconds of the campaign's clock.
type op struct {
	Client    int
	Kind      kind
	Pointer   int
	Call      int64
	Return    int64
	Token     pointer.Token // of the lease that acts
	Wrong     bool          // another token than the lease's was sent
	Current   pointer.Token // what a retirement or rollback believes is shown
	Revision  int64         // 0: none
	Whole     whole
	TTL       time.Duration
	Operation uuid.UUID
	Holder    string // of an acquisition; no two are the same

	Result result
	Reason pointer.Reason
	Got    pointer.Token // installed, published, shown or held
	// Expires is when the lease ends, on the campaign's clock; 0 where it is not told.
	Expires int64
	// Row is what a barrier read.
	Row state
}

func (o *op) String() string {
	text := fmt.Sprintf("[%12.6f %12.6f] client %-3d %-11s", seconds(o.Call), seconds(o.Return), o.Client, o.Kind)
	add := func(name string, v any) { text += fmt.Sprintf(" %s=%v", name, v) }
	if !o.Token.IsZero() {
		add("token", o.Token)
	}
	if o.Wrong {
		add("sent", "another token")
	}
	if o.Kind == kindRetire || o.Kind == kindRollback {
		add("current", o.Current)
	}
	if o.Revision != 0 {
		add("revision", o.Revision)
	}
	if o.TTL != 0 {
		add("ttl", o.TTL)
	}
	if o.Operation != uuid.Nil {
		add("operation", o.Operation)
	}
	text += " -> " + string(o.Result)
	if o.Reason != "" {
		add("reason", o.Reason)
	}
	if !o.Got.IsZero() {
		add("got", o.Got)
	}
	if o.Expires != 0 {
		add("expires", fmt.Sprintf("%.6f", seconds(o.Expires)))
	}
	if o.Kind == kindBarrier {
		text += " " + o.Row.String()
	}
	return text
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// clock is the campaign's: wall time at its start, going on monotonically.
type clock struct{ start time.Time }

func newClock() clock { return clock{start: time.Now()} }

func (c clock) now() int64 { return int64(time.Since(c.start)) }

// at is a time of the database's as this clock has it. Both are of one machine; offset is what the
// last barrier found between them.
func (c clock) at(t time.Time, offset int64) int64 { return int64(t.Sub(c.start.Round(0))) - offset }

// history collects a window's operations.
type history struct {
	mu  sync.Mutex
	ops []*op
}

func (h *history) add(ops ...*op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, ops...)
}

func (h *history) take() []*op {
	h.mu.Lock()
	defer h.mu.Unlock()
	ops := h.ops
	h.ops = nil
	return ops
}

// request is one operation id and what is known of it. It belongs to one worker.
type request struct {
	id       uuid.UUID
	kind     kind
	pointers []int
	leases   []lease // of a publish
	told     []string
	// sent counts attempts; nothing counts those that were answered "nothing happened" (503).
	sent, nothing int
	settled       bool // it was unknown, and then settled or repeated until it was told
	body          any  // to be repeated as it is
	path          string
	holder        string // of an acquisition
}

// outcome is the one that was told, empty when none was.
func (r *request) outcome() string {
	if len(r.told) == 0 {
		return ""
	}
	return r.told[0]
}

// lease is what a worker holds, or believes to hold.
type lease struct {
	ID       string
	Pointer  int
	Token    pointer.Token
	TTL      time.Duration
	Whole    whole
	Revision int64
}
