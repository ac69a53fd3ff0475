package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// contents are the bytes that workers publish: few, so that most are adopted.
var contents = [][]byte{[]byte("one\n"), []byte("two\n"), []byte("three\n")}

// ttls of leases: mostly short, so that many end by themselves.
var ttls = []time.Duration{time.Second, time.Second, time.Second, 1100 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond}

// someTTL is longer where everything is slower.
func (a *actor) someTTL() time.Duration {
	return ttls[a.rng.IntN(len(ttls))] * time.Duration(max(a.c.options.calm, 1))
}

// acquire takes a lease, or does not get one.
func (a *actor) acquire(p int) (lease, bool) {
	a.serial++
	holder := fmt.Sprintf("actor-%d-%d", a.id, a.serial)
	ttl := a.someTTL()
	if a.ttl != 0 {
		ttl = a.ttl
	}
	body := map[string]any{"holder": holder, "ttl_seconds": ttl.Seconds()}
	if a.chance(25) {
		body["wait_seconds"] = a.between(20*time.Millisecond, 500*time.Millisecond).Seconds()
	}
	path := "/v1/pointers/" + a.c.names[p] + "/leases"
	o := op{Kind: kindAcquire, Pointer: p, TTL: ttl, Holder: holder}
	if a.chance(35) {
		return a.acquireOnce(o, path, body)
	}
	r := a.request(kindAcquire, path, body, p)
	r.holder, o.Operation = holder, r.id
	out, v := a.attempt(r)
	if v.outcome == "" && a.notAcquired(o, out) {
		return lease{}, false
	}
	ret := out
	if v.outcome == "" {
		ret, v = a.settle(r)
	}
	if v.outcome == "aborted" || v.outcome == "" {
		return lease{}, false
	}
	told := v.reply
	if told.Lease != nil {
		told = *told.Lease
	}
	o.Call, o.Return, o.Result, o.Got = out.call, ret.ret, done, v.token(a.c.names[p])
	if told.State == string(pointer.StateLeased) {
		o.Expires = a.c.at(told.ExpiresAt)
	}
	a.record(&o)
	return lease{ID: told.LeaseID, Pointer: p, Token: o.Got, TTL: ttl, Whole: incomplete}, true
}

// notAcquired records an answer that says that nothing was, and reports whether it does.
func (a *actor) notAcquired(o op, out answer) bool {
	o.Call, o.Return = out.call, out.ret
	switch {
	case out.status == http.StatusLocked:
		o.Result, o.Got = held, parse(out.CurrentToken)
	case out.status == http.StatusGone:
		o.Result = retired
	default:
		return out.unavailable()
	}
	a.record(&o)
	return true
}

// acquireOnce is an acquisition that cannot be repeated. Where no answer comes, the tables say at
// the next barrier who the holder was.
func (a *actor) acquireOnce(o op, path string, body map[string]any) (lease, bool) {
	out := a.send(http.MethodPost, path, body, uuid.Nil)
	o.Call, o.Return = out.call, out.ret
	switch {
	case out.status == http.StatusCreated:
		o.Result, o.Got, o.Expires = done, parse(out.Token), a.c.at(out.ExpiresAt)
		a.record(&o)
		return lease{ID: out.LeaseID, Pointer: o.Pointer, Token: o.Got, TTL: o.TTL, Whole: incomplete}, true
	case a.notAcquired(o, out):
		if out.unavailable() {
			a.c.promise(o.Holder)
		}
	case out.silent():
		o.Result = unknown
		a.record(&o)
	default:
		a.unexpected("acquire", out)
	}
	return lease{}, false
}

func parse(text string) pointer.Token {
	t, _ := pointer.ParseToken(text) // no token is the zero one, which nothing matches
	return t
}

// sent is the token that goes with a call on a lease.
func (l lease) sent(wrong bool) pointer.Token {
	t := l.Token
	if wrong {
		t.Generation++
	}
	return t
}

// onLease interprets an answer to renew, stage or release; false when there is nothing to record.
func (a *actor) onLease(o *op, out answer, good int) bool {
	o.Call, o.Return = out.call, out.ret
	switch {
	case out.status == good:
		o.Result = done
	case out.status == http.StatusConflict && out.Code == "lease-lost":
		o.Result, o.Reason = lost, pointer.Reason(out.Reason)
	case out.silent() || out.unavailable():
		// May have been carried out all the same: these calls may simply be repeated.
		o.Result = unknown
	default:
		a.unexpected(string(o.Kind), out)
		return false
	}
	return true
}

func (a *actor) unexpected(what string, out answer) {
	a.c.violate("%s was answered %d %s: %s", what, out.status, out.Code, out.Detail)
}

func (a *actor) renew(l lease, wrong bool) {
	ttl := a.someTTL()
	out := a.send(http.MethodPost, "/v1/leases/"+l.ID+"/renew",
		map[string]any{"token": l.sent(wrong).String(), "ttl_seconds": ttl.Seconds()}, uuid.Nil)
	o := &op{Kind: kindRenew, Pointer: l.Pointer, Token: l.Token, Wrong: wrong, TTL: ttl}
	if a.onLease(o, out, http.StatusOK) && !(o.Result == unknown && wrong) {
		if o.Result == done {
			o.Expires = a.c.at(out.ExpiresAt)
		}
		a.record(o)
	}
}

func (a *actor) release(l lease) {
	out := a.send(http.MethodDelete, "/v1/leases/"+l.ID, nil, uuid.Nil)
	o := &op{Kind: kindRelease, Pointer: l.Pointer, Token: l.Token}
	if a.onLease(o, out, http.StatusNoContent) {
		a.record(o)
	}
}

// stage declares one file and sends its bytes where they are not there already.
func (a *actor) stage(l *lease, wrong bool) {
	body := contents[a.rng.IntN(len(contents))]
	digest := sha256.Sum256(body)
	out := a.send(http.MethodPost, "/v1/leases/"+l.ID+"/files", map[string]any{
		"token": l.sent(wrong).String(),
		"files": []map[string]any{{"path": "data", "digest": "sha256:" + hex.EncodeToString(digest[:]), "size": len(body)}},
	}, uuid.Nil)
	o := &op{Kind: kindStage, Pointer: l.Pointer, Token: l.Token, Wrong: wrong}
	if !a.onLease(o, out, http.StatusCreated) {
		return
	}
	if o.Result != done {
		if o.Result == unknown {
			l.Whole = perhaps
		} else {
			a.record(o)
		}
		return
	}
	a.record(o)
	l.Whole = complete
	for _, f := range out.Files {
		if f.State != "stored" && a.upload(f.ArtifactID, body) != http.StatusOK {
			l.Whole = perhaps
		}
	}
}

func (a *actor) upload(artifact string, body []byte) int {
	return a.send(http.MethodPut, "/v1/artifacts/"+artifact+"/content", body, uuid.Nil, "Content-Type", "application/octet-stream").status
}
