package main

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// work runs episodes until the campaign ends: a pointer or two are acquired, something is staged
// and published, and at every step something else may be done.
func (a *actor) work() {
	for a.c.running() {
		switch n := a.rng.Float64() * 100; {
		case n < 62:
			a.episode()
		case n < 76:
			a.step(a.stale)
		case n < 82:
			a.step(a.rollback)
		case n < 84:
			a.step(a.retire)
		case n < 88:
			a.step(a.breakLease)
		case n < 94:
			a.step(a.askAgain)
		default:
			a.step(a.read)
		}
	}
}

// observe is what a reader does.
func (a *actor) observe() {
	for a.c.running() {
		a.step(a.read)
		time.Sleep(a.between(0, 3*time.Millisecond))
	}
}

// step does one thing between two barriers.
func (a *actor) step(f func()) {
	a.c.gate.RLock()
	defer a.c.gate.RUnlock()
	f()
}

func (a *actor) record(ops ...*op) {
	if a.unrecorded {
		return
	}
	for _, o := range ops {
		o.Client = a.id
	}
	a.c.history.add(ops...)
}

func (a *actor) pointer() int { return a.rng.IntN(a.c.options.pointers) }

// episode is one life of a lease, or of two.
func (a *actor) episode() {
	wanted := []int{a.pointer()}
	if second := a.pointer(); a.chance(20) && second != wanted[0] {
		wanted = append(wanted, second)
	}
	var leases []lease
	for _, p := range wanted {
		a.step(func() {
			if l, ok := a.acquire(p); ok {
				leases = append(leases, l)
			}
		})
	}
	for i := range leases {
		if a.chance(25) {
			a.step(func() { a.renew(leases[i], false) })
		}
		if a.chance(92) {
			a.step(func() { a.stage(&leases[i], false) })
		}
	}
	if len(leases) == 0 {
		return
	}
	if a.chance(6) { // a worker that was paused, mostly for too long
		time.Sleep(a.between(leases[0].TTL*97/100, leases[0].TTL*108/100))
	}
	a.leases = append(a.leases, leases...)
	a.leases = a.leases[max(0, len(a.leases)-20):]
	switch n := a.rng.IntN(100); {
	case n < 82:
		published := false
		a.step(func() { published = a.publish(leases, false) })
		if a.chance(5) {
			a.step(func() { a.publish(leases, false) })
		}
		if !published && a.chance(90) {
			a.releaseAll(leases)
		}
	case n < 96:
		a.releaseAll(leases)
	default: // abandoned
	}
}

func (a *actor) releaseAll(leases []lease) {
	for _, l := range leases {
		a.step(func() { a.release(l) })
	}
}

// stale acts on an old lease, or with a token that is not the lease's.
func (a *actor) stale() {
	if len(a.leases) == 0 {
		return
	}
	l := a.leases[a.rng.IntN(len(a.leases))]
	wrong := a.chance(15)
	switch a.rng.IntN(6) {
	case 0, 1, 2:
		a.publish([]lease{l}, wrong)
	case 3:
		a.renew(l, wrong)
	case 4:
		a.stage(&l, wrong)
	default:
		a.release(l)
	}
}

// publish publishes one or several leases under a new operation, and reports whether it did.
func (a *actor) publish(leases []lease, wrong bool) bool {
	var items []map[string]any
	var pointers []int
	for i := range leases {
		l := &leases[i]
		item := map[string]any{"lease_id": l.ID, "token": l.sent(wrong).String()}
		l.Revision = 0
		if a.chance(50) {
			l.Revision = max(a.c.revisions[l.Pointer].Add(1)-a.rng.Int64N(4), 1)
			item["source_revision"] = l.Revision
		}
		items, pointers = append(items, item), append(pointers, l.Pointer)
	}
	var r *request
	if len(items) == 1 {
		delete(items[0], "lease_id")
		r = a.request(kindPublish, "/v1/leases/"+leases[0].ID+"/publish", items[0], pointers...)
	} else {
		r = a.request(kindPublish, "/v1/publish", map[string]any{"leases": items}, pointers...)
	}
	r.leases = append([]lease(nil), leases...)
	first, last, v := a.conclude(r)
	if v.outcome == "" || v.outcome == "aborted" {
		return false
	}
	for _, l := range leases {
		o := &op{Kind: kindPublish, Pointer: l.Pointer, Call: first.call, Return: last.ret, Token: l.Token, Wrong: wrong,
			Revision: l.Revision, Whole: l.Whole, Operation: r.id}
		a.conclusion(o, v)
		a.record(o)
	}
	return v.published()
}

// conclude sends a request and finds out what became of it, unless the answer says that nothing
// did. It returns the first answer and the one that told.
func (a *actor) conclude(r *request) (first, last answer, v verdict) {
	first, v = a.attempt(r)
	switch {
	case v.outcome != "":
		return first, first, v
	case first.silent():
		last, v = a.settle(r)
		return first, last, v
	case first.unavailable() || (r.kind == kindRollback && first.status == http.StatusLocked):
		return first, first, v
	case first.Code == "version-not-found" && a.unrecorded: // collected
		return first, first, v
	}
	a.unexpected(string(r.kind), first)
	return first, first, v
}

// conclusion turns an outcome into one pointer's share of it.
func (a *actor) conclusion(o *op, v verdict) {
	name := a.c.names[o.Pointer]
	o.Result, o.Reason = refused, v.reason(name)
	if v.published() {
		o.Result, o.Reason, o.Got = done, "", v.token(name)
		a.c.published(o.Pointer, o.Got)
		a.shown[o.Pointer] = o.Got
	}
}

// rollback goes back to some version, from what was seen last.
func (a *actor) rollback() {
	p := a.pointer()
	if a.chance(80) {
		a.resolve(p)
	}
	to, ok := a.c.someVersion(p, a.rng)
	current := a.shown[p]
	if !ok || current.IsZero() {
		return
	}
	r := a.request(kindRollback, "/v1/pointers/"+a.c.names[p]+"/rollback",
		map[string]any{"to": to.String(), "current_token": current.String()}, p)
	first, last, v := a.conclude(r)
	o := &op{Kind: kindRollback, Pointer: p, Call: first.call, Return: last.ret, Current: current, Operation: r.id}
	switch {
	case v.outcome == "" && first.status == http.StatusLocked:
		o.Result, o.Got = held, parse(first.CurrentToken)
	case v.outcome == "" || v.outcome == "aborted":
		return
	default:
		a.conclusion(o, v)
	}
	a.record(o)
}

// retire takes a pointer away and makes it again.
func (a *actor) retire() {
	p := a.pointer()
	if a.chance(80) {
		a.resolve(p)
	}
	name := "/v1/pointers/" + a.c.names[p]
	current, query := a.shown[p], ""
	if !current.IsZero() {
		query = "?current_token=" + current.String()
	}
	out := a.send(http.MethodDelete, name+query, nil, uuid.Nil)
	o := &op{Kind: kindRetire, Pointer: p, Call: out.call, Return: out.ret, Current: current}
	switch {
	case out.status == http.StatusNoContent:
		o.Result = done
	case out.Code == "publish-refused" && out.Reason == string(pointer.ReasonSuperseded),
		out.status == http.StatusBadRequest && current.IsZero():
		o.Result = refused
	case out.silent():
		o.Result = unknown
	case out.unavailable():
		return
	default:
		a.unexpected("retire", out)
		return
	}
	a.record(o)
	for !a.c.abandoned.Load() && (o.Result == done || o.Result == unknown) {
		created := a.create(p)
		if created.Result != unknown {
			return
		}
		time.Sleep(settlePause)
	}
}

func (a *actor) create(p int) *op {
	out := a.send(http.MethodPut, "/v1/pointers/"+a.c.names[p], map[string]any{}, uuid.Nil)
	o := &op{Kind: kindCreate, Pointer: p, Call: out.call, Return: out.ret}
	switch {
	case out.status == http.StatusCreated:
		o.Result = done
	case out.status == http.StatusOK:
		o.Result = existed
	case out.silent() || out.unavailable():
		o.Result = unknown
	default:
		a.unexpected("create", out)
		return o
	}
	a.record(o)
	return o
}

// breakLease ends the lease that somebody holds, or held a moment ago.
func (a *actor) breakLease() {
	p := a.pointer()
	token := a.look(p)
	if token.IsZero() || a.chance(10) {
		if len(a.leases) == 0 {
			return
		}
		l := a.leases[a.rng.IntN(len(a.leases))]
		p, token = l.Pointer, l.Token
	}
	out := a.send(http.MethodPost, "/v1/pointers/"+a.c.names[p]+"/break-lease", map[string]any{"token": token.String()}, uuid.Nil)
	o := &op{Kind: kindBreak, Pointer: p, Token: token}
	if !a.onLease(o, out, http.StatusNoContent) {
		return
	}
	if o.Result == lost && o.Reason == pointer.ReasonTokenMismatch {
		o.Result, o.Reason = mismatch, ""
	}
	a.record(o)
}
