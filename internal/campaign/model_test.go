package main

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/artifactd/artifactd/pointer"
)

const ms = int64(time.Millisecond)

func tok(n int64) pointer.Token { return pointer.Token{Epoch: 1, Generation: n} }

// at places an operation in time, in milliseconds.
func at(call, ret int64, o op) *op {
	o.Call, o.Return = call*ms, ret*ms
	if o.Expires != 0 {
		o.Expires *= ms
	}
	return &o
}

func acquired(n, expires int64) op {
	return op{Kind: kindAcquire, Result: done, Got: tok(n), Expires: expires}
}

func publishes(n int64) op {
	return op{Kind: kindPublish, Token: tok(n), Result: done, Got: tok(n), Whole: complete}
}

func refuses(n int64, reason pointer.Reason) op {
	return op{Kind: kindPublish, Token: tok(n), Result: refused, Reason: reason, Whole: complete}
}

func shows(n int64) op { return op{Kind: kindResolve, Result: done, Got: tok(n)} }

// TestModel: the checker accepts what the protocol allows and refuses what it forbids. Every
// forbidden history is one step away from an allowed one.
func TestModel(t *testing.T) {
	renewed := func(n, expires int64) op { return op{Kind: kindRenew, Token: tok(n), Result: done, Expires: expires} }
	ends := func(k kind, n int64, r result) op { return op{Kind: k, Token: tok(n), Result: r} }
	retires := func(n int64, r result) op {
		return op{Kind: kindRetire, Current: pointer.Token{Epoch: min(n, 1), Generation: n}, Result: r}
	}
	rolls := func(n, current int64) op {
		return op{Kind: kindRollback, Current: tok(current), Result: done, Got: tok(n)}
	}
	revision := func(o op, r int64) op { o.Revision = r; return o }
	published := fates{tok(1): pointer.StatePublished, tok(2): pointer.StatePublished, tok(3): pointer.StatePublished}
	overtaken := fates{tok(1): pointer.StateSuperseded, tok(2): pointer.StatePublished}
	for name, c := range map[string]struct {
		fates fates
		ops   []*op
		want  porcupine.CheckResult
	}{
		"acquire, publish, resolve": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, shows(1))}, porcupine.Ok},
		"resolve goes back": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, shows(1)),
			at(6, 7, op{Kind: kindResolve, Result: nothing})}, porcupine.Illegal},
		"resolve beside a publish sees either": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 9, publishes(1)), at(4, 5, shows(1)),
			at(3, 6, op{Kind: kindResolve, Result: nothing})}, porcupine.Ok},
		"resolve behind an acknowledged publish": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)),
			at(4, 5, op{Kind: kindResolve, Result: nothing})}, porcupine.Illegal},
		"publish without the lease": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(2))}, porcupine.Illegal},
		"publish twice":             {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, publishes(1))}, porcupine.Illegal},
		"publish after the expiry":  {published, []*op{at(0, 1, acquired(1, 1000)), at(1100, 1101, publishes(1))}, porcupine.Illegal},
		"publish across the expiry": {published, []*op{at(0, 1, acquired(1, 1000)), at(900, 1101, publishes(1))}, porcupine.Ok},
		"publish after a renewal":   {published, []*op{at(0, 1, acquired(1, 1000)), at(900, 901, renewed(1, 1900)), at(1100, 1101, publishes(1))}, porcupine.Ok},
		"renewal shortens":          {published, []*op{at(0, 1, acquired(1, 1000)), at(100, 101, renewed(1, 500))}, porcupine.Illegal},
		"renewal of unknown outcome": {published, []*op{at(0, 1, acquired(1, 1000)),
			at(900, 9000, op{Kind: kindRenew, Token: tok(1), TTL: time.Second, Result: unknown}), at(1100, 1101, publishes(1))}, porcupine.Ok},
		"two owners at a time": {overtaken, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, acquired(2, 1000))}, porcupine.Illegal},
		"an owner after the expiry": {overtaken, []*op{at(0, 1, acquired(1, 1000)), at(1001, 1002, acquired(2, 2000)),
			at(1003, 1004, refuses(1, pointer.ReasonSuperseded)), at(1005, 1006, publishes(2))}, porcupine.Ok},
		"stale owner publishes": {overtaken, []*op{at(0, 1, acquired(1, 1000)), at(1001, 1002, acquired(2, 2000)), at(1003, 1004, publishes(1))}, porcupine.Illegal},
		"token skipped":         {published, []*op{at(0, 1, acquired(2, 1000))}, porcupine.Illegal},
		"token given twice":     {published, []*op{at(0, 1, acquired(1, 1000)), at(1100, 1101, acquired(1, 2000))}, porcupine.Illegal},
		"refused as expired too early": {fates{tok(1): pointer.StateExpired}, []*op{at(0, 1, acquired(1, 1000)),
			at(2, 3, refuses(1, pointer.ReasonExpired))}, porcupine.Illegal},
		"revived after a recorded expiry": {published, []*op{at(0, 1, acquired(1, 1000)), at(900, 1101, refuses(1, pointer.ReasonExpired)),
			at(1102, 1103, publishes(1))}, porcupine.Illegal},
		"refused for no reason": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, refuses(1, pointer.ReasonIncomplete))}, porcupine.Illegal},
		"the reason of a dead lease": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)),
			at(4, 5, refuses(1, pointer.ReasonSuperseded))}, porcupine.Illegal},
		"released": {fates{tok(1): pointer.StateReleased}, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, ends(kindRelease, 1, done)),
			at(4, 5, acquired(2, 1000))}, porcupine.Ok},
		"release of an old lease ends the new one": {fates{tok(1): pointer.StateSuperseded, tok(2): pointer.StateReleased}, []*op{
			at(0, 1, acquired(1, 1000)), at(1001, 1002, acquired(2, 2000)), at(1003, 1004, ends(kindRelease, 1, done)),
			at(1005, 1006, acquired(3, 3000))}, porcupine.Illegal},
		"broken": {fates{tok(1): pointer.StateBroken}, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, ends(kindBreak, 1, done)),
			at(4, 5, refuses(1, pointer.ReasonBroken))}, porcupine.Ok},
		"break of another token": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, ends(kindBreak, 1, mismatch))}, porcupine.Illegal},
		"a break of unknown outcome that took effect": {fates{tok(1): pointer.StateBroken}, []*op{at(0, 1, acquired(1, 1000)),
			at(2, 9000, ends(kindBreak, 1, unknown)), at(4, 5, refuses(1, pointer.ReasonBroken))}, porcupine.Ok},
		"source goes back": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, revision(publishes(1), 5)), at(4, 5, acquired(2, 1000)),
			at(6, 7, revision(publishes(2), 4))}, porcupine.Illegal},
		"rollback": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, rolls(2, 1)), at(6, 7, shows(2))}, porcupine.Ok},
		"rollback past the fence": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, acquired(2, 1000)),
			at(6, 7, publishes(2)), at(8, 9, rolls(3, 1))}, porcupine.Illegal},
		"rollback under a live lease": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, acquired(2, 1000)),
			at(6, 7, rolls(3, 1))}, porcupine.Illegal},
		"retired": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, retires(1, done)),
			at(6, 7, op{Kind: kindResolve, Result: retired}), at(8, 9, op{Kind: kindCreate, Result: done}), at(10, 11, acquired(2, 1000))}, porcupine.Ok},
		"retired without its token": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)), at(4, 5, retires(0, done))}, porcupine.Illegal},
		"acquired while retired":    {published, []*op{at(0, 1, retires(0, done)), at(2, 3, acquired(1, 1000))}, porcupine.Illegal},
		"the row disagrees": {published, []*op{at(0, 1, acquired(1, 1000)), at(2, 3, publishes(1)),
			at(4, 5, op{Kind: kindBarrier, Row: state{Head: tok(1), Phase: pointer.StatePublished}})}, porcupine.Illegal},
	} {
		t.Run(name, func(t *testing.T) {
			w := window{Pointer: "p", Fates: c.fates, Ops: c.ops}
			if got := w.check(10 * time.Second); got != c.want {
				t.Errorf("the check says %s, want %s", got, c.want)
			}
		})
	}
}

// TestUnknownIsDecided: many operations of unknown outcome, of which one takes effect long after it
// was sent, beside calls that overlap, do not make the search try everything.
func TestUnknownIsDecided(t *testing.T) {
	var ops []*op
	for i := range int64(16) {
		ops = append(ops, at(i, 9000, op{Kind: kindCreate, Result: unknown}))
	}
	ops = append(ops, at(20, 21, acquired(1, 5000)), at(22, 23, publishes(1)))
	for i := range int64(300) {
		ops = append(ops, at(30+i, 46+i, shows(1)))
	}
	ops = append(ops, at(500, 501, op{Kind: kindRetire, Current: tok(1), Result: done}))
	for i := range int64(10) {
		ops = append(ops, at(510+2*i, 540, op{Kind: kindResolve, Result: retired}))
	}
	for i := range int64(10) {
		ops = append(ops, at(600+i, 640, op{Kind: kindResolve, Result: nothing}))
	}
	row := op{Kind: kindBarrier, Row: state{Head: tok(1), Phase: pointer.StatePublished}}
	w := window{Pointer: "p", Fates: fates{tok(1): pointer.StatePublished}, Ops: append(ops, at(8000, 8001, row))}
	if got := w.check(10 * time.Second); got != porcupine.Ok {
		t.Errorf("the check says %s, want %s", got, porcupine.Ok)
	}
}

// TestExplain: of a long history, what explains a violation is little.
func TestExplain(t *testing.T) {
	w := window{Pointer: "p", Fates: fates{tok(1): pointer.StatePublished}, Ops: []*op{at(0, 1, acquired(1, 100_000)), at(2, 3, publishes(1))}}
	for i := range int64(200) {
		w.Ops = append(w.Ops, at(10+2*i, 11+2*i, shows(1)))
	}
	w.Ops = append(w.Ops, at(500, 501, op{Kind: kindResolve, Result: nothing}))
	if got := w.check(10 * time.Second); got != porcupine.Illegal {
		t.Fatalf("the check says %s", got)
	}
	if small := w.shrink(); len(small.Ops) != 3 {
		t.Errorf("%d operations are left, want 3:\n%s", len(small.Ops), w.explain())
	}
}
