package main

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

// read looks at one pointer, or at all from one snapshot.
func (a *actor) read() {
	switch n := a.rng.IntN(100); {
	case n < 75:
		a.resolve(a.pointer())
	case n < 90:
		a.look(a.pointer())
	default:
		a.resolveMany()
	}
}

// resolve asks what a pointer shows, now and then on the condition that it has changed.
func (a *actor) resolve(p int) {
	path := "/v1/pointers/" + a.c.names[p]
	var header []string
	known := a.shown[p]
	if !known.IsZero() && a.chance(30) {
		header = []string{"If-None-Match", `"` + known.String() + `"`}
		if a.chance(5) {
			path += "?wait=0.1"
		}
	}
	out := a.send(http.MethodGet, path, nil, uuid.Nil, header...)
	switch out.status {
	case http.StatusNotModified:
		a.saw(p, out, "", known.String())
	case http.StatusOK, http.StatusNotFound, http.StatusGone:
		a.saw(p, out, out.Code, out.Version)
	default:
		if !out.silent() && !out.unavailable() {
			a.unexpected("resolve", out)
		}
	}
}

// saw records what a resolve said of one pointer.
func (a *actor) saw(p int, out answer, code, version string) *op {
	o := &op{Kind: kindResolve, Pointer: p, Call: out.call, Return: out.ret, Result: done}
	switch code {
	case "":
		o.Got = parse(version)
	case string(nothing), string(retired):
		o.Result = result(code)
	default:
		a.unexpected("resolve", out)
		return o
	}
	a.shown[p] = o.Got
	a.record(o)
	return o
}

// resolveMany asks for all pointers from one snapshot.
func (a *actor) resolveMany() {
	names := a.c.fenced()
	out := a.send(http.MethodPost, "/v1/resolve", map[string]any{"names": names}, uuid.Nil)
	if out.silent() || out.unavailable() {
		return
	}
	if out.status != http.StatusOK || len(out.Items) != len(names) {
		a.unexpected("resolve of several", out)
		return
	}
	snapshot := make([]pointer.Token, len(out.Items))
	for p, item := range out.Items {
		snapshot[p] = a.saw(p, out, item.Code, item.Version).Got
	}
	a.c.snapshot(snapshot)
}

// look asks whether a pointer's lease is live, and gives its token.
func (a *actor) look(p int) pointer.Token {
	out := a.send(http.MethodGet, "/v1/pointers/"+a.c.names[p]+"/lease", nil, uuid.Nil)
	if out.status != http.StatusOK {
		if !out.silent() && !out.unavailable() {
			a.unexpected("look at a lease", out)
		}
		return pointer.Token{}
	}
	o := &op{Kind: kindLease, Pointer: p, Call: out.call, Return: out.ret, Result: free}
	if out.Live {
		o.Result, o.Got = held, parse(out.Token)
	}
	a.record(o)
	return o.Got
}
