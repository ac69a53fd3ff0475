package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// checkTimeout bounds the check of one pointer's share of a window. A history that is not decided
// by then counts as a failure of the campaign, not as a success.
const checkTimeout = 2 * time.Minute

// window is one pointer's share of the time between two barriers.
type window struct {
	Number  int
	Pointer string
	Start   state
	Fates   fates
	Ops     []*op // the last is the barrier's own
}

func (w *window) operations() []porcupine.Operation {
	out := make([]porcupine.Operation, len(w.Ops))
	for i, o := range w.Ops {
		out[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
	}
	return out
}

// check decides whether the window's history can be explained by the model.
func (w *window) check(timeout time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(w.Start, w.Fates), w.operations(), timeout)
}

// explain describes a window that failed: what is left of its history when everything without
// effect that is not needed for the failure is taken out, and how far it could be explained.
func (w *window) explain() string {
	small := w.shrink()
	var b strings.Builder
	fmt.Fprintf(&b, "window %d of pointer %s, which starts as %s\n", w.Number, w.Pointer, w.Start)
	_, info := porcupine.CheckOperationsVerbose(model(w.Start, w.Fates), small.operations(), checkTimeout)
	explained := map[*op]int{}
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) <= len(explained) {
				continue
			}
			clear(explained)
			for i, o := range order {
				explained[o.Input.(*op)] = i + 1
			}
		}
	}
	fmt.Fprintf(&b, "%d of %d operations are needed; at most %d can be ordered (the number in front), the others cannot follow:\n",
		len(small.Ops), len(w.Ops), len(explained))
	for _, o := range small.Ops {
		place := "    -"
		if n, ok := explained[o]; ok {
			place = fmt.Sprintf("%5d", n)
		}
		fmt.Fprintln(&b, place, o)
	}
	return b.String()
}

// list is the whole history.
func (w *window) list() string {
	var b strings.Builder
	fmt.Fprintf(&b, "window %d of pointer %s, which starts as %s\n", w.Number, w.Pointer, w.Start)
	for _, o := range w.Ops {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

// shrinkTimeout bounds one try of the shrinking and shrinkBudget all of them.
const (
	shrinkTimeout = 2 * time.Second
	shrinkBudget  = time.Minute
)

// shrink leaves out the operations that change nothing and are not needed for the failure.
func (w *window) shrink() *window {
	small := *w
	small.Ops = slices.Clone(w.Ops)
	slices.SortStableFunc(small.Ops, func(a, b *op) int { return int(min(max(a.Call-b.Call, -1), 1)) })
	deadline := time.Now().Add(shrinkBudget)
	for size := max(len(small.Ops)/2, 1); ; size /= 2 {
		for i := 0; i < len(small.Ops) && time.Now().Before(deadline); {
			try := small
			try.Ops = slices.Clone(small.Ops[:i])
			for _, o := range small.Ops[i:min(i+size, len(small.Ops))] {
				if o.changes() {
					try.Ops = append(try.Ops, o)
				}
			}
			try.Ops = append(try.Ops, small.Ops[min(i+size, len(small.Ops)):]...)
			if len(try.Ops) < len(small.Ops) && try.check(shrinkTimeout) == porcupine.Illegal {
				small = try
			} else {
				i += size
			}
		}
		if size == 1 {
			return &small
		}
	}
}

// changes reports whether an operation can have changed its pointer.
func (o *op) changes() bool {
	switch o.Kind {
	case kindResolve, kindLease, kindStage, kindBarrier:
		return false
	}
	return o.Result == done || o.Result == unknown
}
