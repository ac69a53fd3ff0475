package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// settlePause is how long a caller waits before it asks again what it was left not to know.
const settlePause = 20 * time.Millisecond

// verdict is what an attempt says about an operation.
type verdict struct {
	outcome string // canonical; empty when it is still open
	reply   reply
}

// judge reads an answer to publish, rollback or acquire, or to settling and asking for an
// operation. The spelling is canonical, so that two answers about one operation can be compared.
func (c *campaign) judge(r *request, a answer) verdict {
	text := ""
	switch {
	case a.status == http.StatusCreated && r.kind == kindAcquire:
		text = "acquired " + a.Token
	case a.status == http.StatusConflict && a.Code == "publish-refused":
		text = spellRefusal(a.reply)
	case a.status == http.StatusConflict && a.Code == "lease-lost" && a.Reason == "aborted":
		text = "aborted"
	case a.status == http.StatusOK && (a.Outcome == "published" || a.Outcome == "refused" || a.Outcome == "aborted"):
		text = a.Outcome
		if a.Outcome == "published" {
			text = c.spellPublished(r, a.reply)
		} else if a.Outcome == "refused" {
			text = spellRefusal(a.reply)
		}
	case a.status == http.StatusOK && a.Outcome == "acquired" && a.Lease != nil:
		text = "acquired " + a.Lease.Token
	}
	return verdict{text, a.reply}
}

func spellRefusal(r reply) string {
	if r.Reason == "aborted" {
		return "aborted"
	}
	var parts []string
	for _, x := range r.Refusals {
		parts = append(parts, x.Pointer+"="+x.Reason)
	}
	slices.Sort(parts)
	return "refused " + strings.Join(parts, " ")
}

func (c *campaign) spellPublished(r *request, a reply) string {
	var parts []string
	for _, v := range a.Versions {
		parts = append(parts, v.Pointer+"="+v.Version)
	}
	if len(a.Versions) == 0 {
		parts = append(parts, c.names[r.pointers[0]]+"="+a.Version)
	}
	slices.Sort(parts)
	return "published " + strings.Join(parts, " ")
}

func (v verdict) published() bool { return strings.HasPrefix(v.outcome, "published ") }

// token is the one that an outcome gives to a pointer.
func (v verdict) token(name string) pointer.Token {
	for _, word := range strings.Fields(v.outcome)[1:] {
		text := strings.TrimPrefix(word, name+"=")
		if t, err := pointer.ParseToken(text); err == nil {
			return t
		}
	}
	return pointer.Token{}
}

// reason is why an outcome refused a pointer, empty when that was not the reason.
func (v verdict) reason(name string) pointer.Reason {
	for _, word := range strings.Fields(v.outcome) {
		if reason, ok := strings.CutPrefix(word, name+"="); ok {
			return pointer.Reason(reason)
		}
	}
	return ""
}

// request starts an operation with an id of its own.
func (a *actor) request(k kind, path string, body map[string]any, pointers ...int) *request {
	r := &request{id: a.uuid(), kind: k, pointers: pointers, path: path, body: body}
	body["operation_id"] = r.id
	a.requests = append(a.requests, r)
	return r
}

// attempt sends a request, for the first time or again. The verdict is open when the answer leaves
// it open; a 503 and a 423 say that nothing was recorded.
func (a *actor) attempt(r *request) (answer, verdict) {
	r.sent++
	out := a.send(http.MethodPost, r.path, r.body, r.id)
	v := a.c.judge(r, out)
	if v.outcome != "" {
		r.told = append(r.told, v.outcome)
	} else if !out.silent() {
		r.nothing++
	}
	return out, v
}

// settle asks for the final outcome until somebody answers; now and then it repeats the request
// instead, which must come to the same. Nobody is left not to know, unless the campaign is
// abandoned: then the verdict is open.
func (a *actor) settle(r *request) (answer, verdict) {
	a.c.unknowns.Add(1)
	for !a.c.abandoned.Load() {
		var out answer
		var v verdict
		if r.outcome() == "" && a.chance(30) {
			out, v = a.attempt(r)
		} else {
			out = a.send(http.MethodPost, "/v1/operations/"+r.id.String()+"/settle",
				map[string]any{"pointer": a.c.names[r.pointers[0]]}, uuid.Nil)
			if v = a.c.judge(r, out); v.outcome != "" {
				r.told = append(r.told, v.outcome)
			} else if !out.silent() && !out.unavailable() {
				a.c.violate("operation %s: settling answered %d %s %s", r.id, out.status, out.Code, out.Detail)
				return out, v
			}
		}
		if v.outcome != "" {
			r.settled = true
			a.c.settled.Add(1)
			return out, v
		}
		time.Sleep(settlePause)
	}
	return answer{}, verdict{}
}

// askAgain asks for an outcome that was told before: by operation, by settling or by repeating the
// request as it was. The invariants compare the answers.
func (a *actor) askAgain() {
	if len(a.requests) == 0 {
		return
	}
	r := a.requests[max(0, len(a.requests)-1-a.rng.IntN(50))]
	if r.outcome() == "" {
		return
	}
	var out answer
	switch path := "/v1/operations/" + r.id.String(); a.rng.IntN(3) {
	case 0:
		out = a.send(http.MethodGet, path, nil, uuid.Nil)
	case 1:
		out = a.send(http.MethodPost, path+"/settle", map[string]any{"pointer": a.c.names[r.pointers[0]]}, uuid.Nil)
	default:
		if r.kind == kindAcquire {
			return // answers how the lease stands now
		}
		out = a.send(http.MethodPost, r.path, r.body, uuid.Nil)
	}
	if v := a.c.judge(r, out); v.outcome != "" {
		r.told = append(r.told, v.outcome)
	} else if !out.silent() && !out.unavailable() && !(out.Code == "operation-mismatch" && r.mayDiffer()) {
		r.told = append(r.told, fmt.Sprintf("%d %s", out.status, out.Code))
	}
}

// mayDiffer reports whether the same call may be another request by now. A manifest is part of what
// a publish asks for, and a refusal that leaves a lease alive leaves it open to staging.
func (r *request) mayDiffer() bool {
	reasons, refused := strings.CutPrefix(r.outcome(), "refused ")
	if !refused || r.kind != kindPublish {
		return false
	}
	if len(strings.Fields(reasons)) < len(r.pointers) {
		return true // one of the leases was in order
	}
	return slices.ContainsFunc(strings.Fields(reasons), func(word string) bool {
		_, reason, _ := strings.Cut(word, "=")
		switch pointer.Reason(reason) {
		case pointer.ReasonIncomplete, pointer.ReasonSourceStale, pointer.ReasonTokenMismatch:
			return true
		}
		return false
	})
}
