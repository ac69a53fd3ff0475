package main

import (
	"fmt"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/artifactd/artifactd/pointer"
)

// phase is the fate of a pointer's newest generation so far; empty before the first.
type phase = pointer.State

// state is the sequential model of one pointer. It is comparable, so equal states are one.
type state struct {
	Head  pointer.Token // of the newest generation
	Phase phase
	// ExpMin and ExpMax bound the time at which the lease ends, on the campaign's clock.
	ExpMin, ExpMax int64
	Shown          pointer.Token
	Retired        bool
	Revision       int64 // highest published
	// Closed: the barrier's read is behind us. What nobody learned of and had no effect by then
	// never happened.
	Closed bool
}

func (s state) String() string {
	text := fmt.Sprintf("{head %s %s, shows %s, revision %d", s.Head, s.Phase, s.Shown, s.Revision)
	if s.Phase == pointer.StateLeased {
		text += fmt.Sprintf(", lease ends in [%.6f %.6f]", seconds(s.ExpMin), seconds(s.ExpMax))
	}
	if s.Retired {
		text += ", retired"
	}
	return text + "}"
}

// clockSlack is how far the campaign's clock and the database's may be apart: they are of one
// machine, and compared at every barrier.
const clockSlack = int64(20 * time.Millisecond)

// fates are what became of generations, by the table at the end of a window. An end is recorded
// once and never changes (the tables' own guards and the invariants see to that), so it may decide
// what a release at the very moment of expiry did.
type fates map[pointer.Token]phase

// model is a pointer that starts in the given state.
func model(start state, f fates) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return start },
		Step: func(s, in, _ any) (bool, any) {
			ok, next := step(s.(state), in.(*op), f)
			return ok, next
		},
		Equal:             func(a, b any) bool { return a.(state) == b.(state) },
		DescribeOperation: func(in, _ any) string { return in.(*op).String() },
		DescribeState:     func(s any) string { return s.(state).String() },
	}
}

// mayLive reports whether the lease can have been live at a time within the operation.
func (s state) mayLive(o *op) bool {
	return s.Phase == pointer.StateLeased && o.Call-clockSlack < s.ExpMax
}

// mayBeOver reports whether the lease can have run out by a time within the operation.
func (s state) mayBeOver(o *op) bool {
	return s.Phase == pointer.StateLeased && o.Return+clockSlack > s.ExpMin
}

// vacant reports whether no live lease need stand in the way.
func (s state) vacant(o *op) bool { return s.Phase != pointer.StateLeased || s.mayBeOver(o) }

// next reports whether t is the generation after the newest one.
func (s state) next(t pointer.Token) bool {
	return t.Generation == s.Head.Generation+1 && t.Epoch >= s.Head.Epoch
}

// step says whether the operation, with the answer it got, can happen in this state, and what is
// the state then.
//
// An operation of unknown outcome has an effect or comes after the barrier. Had it also a place
// where it changes nothing, a search that put it there too early would find out only much later,
// and try everything in between in every order.
func step(s state, o *op, f fates) (bool, state) {
	if o.Result == unknown && s.Closed {
		return true, s
	}
	ok, next := stepOf(s, o, f)
	return ok && (o.Result != unknown || next != s), next
}

func stepOf(s state, o *op, f fates) (bool, state) {
	switch o.Kind {
	case kindAcquire:
		return stepAcquire(s, o, f)
	case kindRenew, kindStage:
		return stepHold(s, o, f)
	case kindPublish:
		return stepPublish(s, o, f)
	case kindRollback:
		return stepRollback(s, o)
	case kindRelease, kindBreak:
		return stepEnd(s, o, f)
	case kindRetire:
		return stepRetire(s, o, f)
	case kindCreate:
		return stepCreate(s, o)
	case kindResolve, kindLease:
		return stepRead(s, o), s
	case kindBarrier:
		ok := s.matches(o)
		s.Closed = true
		return ok, s
	}
	return false, s
}

func stepAcquire(s state, o *op, f fates) (bool, state) {
	switch o.Result {
	case done:
		if s.Retired || !s.vacant(o) || !s.next(o.Got) {
			return false, s
		}
		if s.Phase == pointer.StateLeased && f[s.Head] != pointer.StateSuperseded && f[s.Head] != pointer.StateExpired {
			return false, s
		}
		s.Head, s.Phase = o.Got, pointer.StateLeased
		if o.Expires != 0 {
			s.ExpMin, s.ExpMax = o.Expires, o.Expires
		} else {
			s.ExpMin, s.ExpMax = o.Call+int64(o.TTL), o.Return+int64(o.TTL)
		}
		return true, s
	case held:
		return s.mayLive(o) && s.Head == o.Got, s
	case retired:
		return s.Retired, s
	}
	return false, s
}

// stepHold is what needs a live lease and leaves it alive.
func stepHold(s state, o *op, f fates) (bool, state) {
	switch o.Result {
	case done:
		if s.Head != o.Token || !s.mayLive(o) || o.Wrong {
			return false, s
		}
		if o.Kind == kindRenew {
			if o.Expires < s.ExpMin-clockSlack {
				return false, s // a renewal never shortens a lease
			}
			s.ExpMin, s.ExpMax = o.Expires, o.Expires
		}
		return true, s
	case lost:
		return s.dead(o, f)
	case unknown:
		if o.Kind == kindRenew && s.Head == o.Token && s.mayLive(o) {
			s.ExpMax = max(s.ExpMax, o.Return+int64(o.TTL))
		}
		return true, s
	}
	return false, s
}

// dead says whether the acting lease can have been refused for the reason told, in the order in
// which reasons are tested.
func (s state) dead(o *op, f fates) (bool, state) {
	published := f[o.Token] == pointer.StatePublished && (s.Head != o.Token || s.Phase == pointer.StatePublished)
	if o.Wrong || o.Reason == pointer.ReasonTokenMismatch {
		return o.Wrong && o.Reason == pointer.ReasonTokenMismatch, s
	}
	if s.Head.Compare(o.Token) < 0 {
		return false, s // a token from the future
	}
	if published || o.Reason == pointer.ReasonAlreadyPublished {
		return published && o.Reason == pointer.ReasonAlreadyPublished, s
	}
	if s.Retired || o.Reason == pointer.ReasonPointerRetired {
		return s.Retired && o.Reason == pointer.ReasonPointerRetired, s
	}
	if s.Head != o.Token || o.Reason == pointer.ReasonSuperseded {
		return s.Head != o.Token && o.Reason == pointer.ReasonSuperseded, s
	}
	switch o.Reason {
	case pointer.ReasonBroken:
		return s.Phase == pointer.StateBroken, s
	case pointer.ReasonReleased:
		return s.Phase == pointer.StateReleased, s
	case pointer.ReasonExpired:
		ok := s.Phase == pointer.StateExpired || s.mayBeOver(o)
		s.Phase = pointer.StateExpired // the refusal records it
		return ok, s
	}
	return false, s
}

func stepPublish(s state, o *op, f fates) (bool, state) {
	able := s.Head == o.Token && s.mayLive(o) && !s.Retired && !o.Wrong
	stale := o.Revision != 0 && o.Revision < s.Revision
	switch {
	case o.Result == done:
		if !able || stale || o.Whole == incomplete || o.Got != o.Token {
			return false, s
		}
		s.Phase, s.Shown, s.Revision = pointer.StatePublished, o.Token, max(s.Revision, o.Revision)
		return true, s
	case o.Result != refused:
		return false, s
	case o.Reason == "": // the other pointers' leases were at fault, not this one
		return able && !stale && o.Whole != incomplete, s
	case o.Reason == pointer.ReasonIncomplete:
		return able && o.Whole != complete, s
	case o.Reason == pointer.ReasonSourceStale:
		return able && stale && o.Whole != incomplete, s
	}
	return s.dead(o, f)
}

func stepRollback(s state, o *op) (bool, state) {
	switch {
	case o.Result == done:
		if s.Retired || !s.vacant(o) || s.Shown != o.Current || !s.next(o.Got) {
			return false, s
		}
		s.Head, s.Phase, s.Shown = o.Got, pointer.StatePublished, o.Got
		return true, s
	case o.Result == held:
		return s.mayLive(o) && s.Head == o.Got, s
	case o.Result == refused && o.Reason == pointer.ReasonPointerRetired:
		return s.Retired, s
	case o.Result == refused && o.Reason == pointer.ReasonSuperseded:
		return !s.Retired && s.vacant(o) && s.Shown != o.Current, s
	}
	return false, s
}

// end ends the newest generation's lease as the table says, when that is one of the ways this
// operation can end it.
func (s state) end(o *op, f fates, as phase) (bool, state) {
	switch fate := f[s.Head]; {
	case fate == as && s.mayLive(o), fate == pointer.StateExpired && s.mayBeOver(o):
		s.Phase = fate
		return true, s
	}
	return false, s
}

// stepEnd is release and break-lease.
func stepEnd(s state, o *op, f fates) (bool, state) {
	as := pointer.StateReleased
	if o.Kind == kindBreak {
		as = pointer.StateBroken
	}
	switch o.Result {
	case done:
		if s.Head.Compare(o.Token) < 0 || (o.Kind == kindBreak && s.Head != o.Token) {
			return false, s
		}
		if s.Head != o.Token || s.Phase != pointer.StateLeased {
			return true, s
		}
		return s.end(o, f, as)
	case mismatch:
		return s.Head != o.Token, s
	case unknown:
		if s.Head == o.Token && s.Phase == pointer.StateLeased {
			if ok, next := s.end(o, f, as); ok {
				return true, next
			}
		}
		return true, s
	}
	return false, s
}

func stepRetire(s state, o *op, f fates) (bool, state) {
	able := !s.Retired && s.Shown == o.Current
	switch {
	case o.Result == done && s.Retired:
		return true, s
	case o.Result == refused:
		return !s.Retired && s.Shown != o.Current, s
	case o.Result == unknown && !able:
		return true, s
	case !able || (o.Result != done && o.Result != unknown):
		return false, s
	}
	if s.Phase == pointer.StateLeased {
		ok, next := s.end(o, f, pointer.StateBroken)
		if !ok {
			return o.Result == unknown, s
		}
		s = next
	}
	s.Shown, s.Retired = pointer.Token{}, true
	return true, s
}

func stepCreate(s state, o *op) (bool, state) {
	was := s.Retired
	s.Retired = false
	switch o.Result {
	case done:
		return was, s
	case existed:
		return !was, s
	case unknown:
		return true, s
	}
	return false, s
}

func stepRead(s state, o *op) bool {
	switch {
	case o.Kind == kindLease && o.Result == free:
		return s.vacant(o)
	case o.Kind == kindLease && o.Result == held:
		return s.mayLive(o) && s.Head == o.Got
	case o.Result == done:
		return !s.Retired && s.Shown == o.Got
	case o.Result == nothing:
		return !s.Retired && s.Shown.IsZero()
	case o.Result == retired:
		return s.Retired
	}
	return false
}

// matches compares with the row itself. An expiry may have been recorded by a call whose answer
// nobody got.
func (s state) matches(o *op) bool {
	row := o.Row
	if s.Phase == pointer.StateLeased && row.Phase == pointer.StateExpired && s.mayBeOver(o) {
		s.Phase = row.Phase
	}
	if s.Phase == pointer.StateLeased && (row.ExpMin < s.ExpMin-clockSlack || row.ExpMax > s.ExpMax+clockSlack) {
		return false
	}
	s.ExpMin, s.ExpMax = row.ExpMin, row.ExpMax
	return s == row
}
