package main

import (
	"bytes"
	"context"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// fill publishes versions on the shelves until the campaign ends.
func (a *actor) fill() {
	for a.c.running() {
		s := a.c.shelves[a.rng.IntN(len(a.c.shelves))]
		if a.chance(10) {
			a.step(func() { a.goBack(s) })
		} else {
			a.volume(s)
		}
	}
}

// staged is a file on its way.
type staged struct {
	path   string
	digest artifacts.Digest
}

// volume is one life of a lease on a shelf: a tree that keeps some files of the version before, and
// is published, or left half-way.
func (a *actor) volume(s *shelf) {
	// On a busy machine too, who means to publish has the time for it.
	abandon := a.chance(15)
	a.ttl = a.wholeTTL()
	if abandon {
		a.ttl = 0
	}
	var l lease
	ok := false
	a.step(func() {
		if a.chance(50) {
			a.glance(s)
		}
		l, ok = a.acquire(s.index)
	})
	if !ok {
		return
	}
	tree := a.tree(s)
	if a.chance(15) { // a path of it is staged with other bytes before
		other, _ := a.c.library.write(a.rng)
		a.step(func() { a.put(&l, []staged{{tree[0].path, other}}, a.chance(50)) })
	}
	if a.chance(20) {
		a.step(func() { a.renew(l, false) })
	}
	whole := false
	a.step(func() { whole = a.put(&l, tree, !abandon) })
	switch {
	case abandon && a.chance(50):
		return // until its lease runs out
	case abandon || !whole:
		a.step(func() { a.release(l) })
		return
	}
	m := manifest{}
	for _, f := range tree {
		m[f.path] = f.digest
	}
	s.promise(l.Token, m)
	published := false
	a.step(func() { published = a.publish([]lease{l}, false) })
	if !published && a.chance(90) {
		a.step(func() { a.release(l) })
	}
}

// wholeTTL is of a lease that is meant to publish.
func (a *actor) wholeTTL() time.Duration {
	return 15 * time.Second * time.Duration(max(a.c.options.calm, 1))
}

// glance sees what a shelf shows, without reading it.
func (a *actor) glance(s *shelf) {
	if out := a.send(http.MethodGet, "/v1/pointers/"+s.name, nil, uuid.Nil); out.status == http.StatusOK {
		a.shown[s.index] = parse(out.Version)
	}
}

// tree is what the next version is to hold.
func (a *actor) tree(s *shelf) []staged {
	var tree []staged
	before, _ := s.holds(a.shown[s.index])
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if a.chance(60) {
			tree = append(tree, staged{path, before[path]})
		}
	}
	for len(tree) < 6 && (len(tree) == 0 || a.chance(60)) {
		path := string(rune('a' + len(tree)))
		if slices.ContainsFunc(tree, func(f staged) bool { return f.path == path }) {
			path += "-" + a.uuid().String()
		}
		d, _ := a.c.library.write(a.rng)
		tree = append(tree, staged{path, d})
	}
	return tree
}

// put stages files and sends the bytes of those that are not there already, through the service or
// straight to the store; it reports whether all are there. One that is not to be finished leaves a
// file out, or sends it when nobody can want it any more.
func (a *actor) put(l *lease, files []staged, finish bool) bool {
	items := make([]map[string]any, len(files))
	for i, f := range files {
		b, _ := a.c.library.blob(f.digest)
		items[i] = map[string]any{"path": f.path, "digest": f.digest.String(), "size": b.size}
	}
	out := a.send(http.MethodPost, "/v1/leases/"+l.ID+"/files", map[string]any{"token": l.Token.String(), "files": items}, uuid.Nil)
	o := &op{Kind: kindStage, Pointer: l.Pointer, Token: l.Token}
	if !a.onLease(o, out, http.StatusCreated) || o.Result != done || len(out.Files) != len(files) {
		l.Whole = perhaps
		return false
	}
	l.Whole = complete
	for i, f := range out.Files {
		if f.State == "stored" {
			a.c.adopted.Add(1)
			continue
		}
		b, _ := a.c.library.blob(files[i].digest)
		switch {
		case !finish && a.chance(50):
			l.Whole = incomplete
			if f.Upload.direct() && a.chance(80) {
				a.late(f.Upload, b)
			}
			continue
		case f.Upload.direct() && a.chance(50):
			if !a.direct(f.Upload, b) || a.send(http.MethodPost, "/v1/artifacts/"+f.ArtifactID+"/complete", map[string]any{}, uuid.Nil).status != http.StatusOK {
				l.Whole = perhaps
			}
		case a.upload(f.ArtifactID, b.bytes()) != http.StatusOK:
			l.Whole = perhaps
		}
		a.c.uploaded.Add(1)
	}
	return l.Whole == complete
}

// direct sends bytes to the store itself, with what the service signed. What broke, if something
// did, the service finds out by itself.
func (a *actor) direct(u signedUpload, b blob) bool {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return sendSigned(ctx, a.c.http, u, b)
}

func sendSigned(ctx context.Context, client *http.Client, u signedUpload, b blob) bool {
	req, err := http.NewRequestWithContext(ctx, u.Method, u.URL, bytes.NewReader(b.bytes()))
	if err != nil {
		return false
	}
	for name, value := range u.Headers {
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // so that the connection can be used again
	return resp.StatusCode == http.StatusOK
}

// An upload that comes too late comes so long after its lease has ended, or longer: shorter than its
// URL lives.
const (
	lateShortest = 2 * time.Second
	lateLongest  = 20 * time.Second
)

// late sends bytes after their generation has died, and maybe after it was collected: the URL is
// still good for that.
func (a *actor) late(u signedUpload, b blob) {
	wait := lateShortest + time.Duration(math.Pow(a.rng.Float64(), 3)*float64(lateLongest)) // mostly soon
	due := a.c.clock.now() + int64(wait)
	a.c.lates.Go(func() {
		for a.c.running() && a.c.clock.now() < due {
			time.Sleep(settlePause)
		}
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		defer cancel()
		if sendSigned(ctx, a.c.http, u, b) {
			a.c.landed.Add(1)
		}
	})
}

// goBack goes back to an older version of a shelf, if it is still kept.
func (a *actor) goBack(s *shelf) {
	to, ok := a.c.someVersion(s.index, a.rng)
	current := a.shown[s.index]
	if !ok || current.IsZero() {
		return
	}
	m, ok := s.holds(to)
	if !ok {
		return // another's, who has not been told yet
	}
	r := a.request(kindRollback, "/v1/pointers/"+s.name+"/rollback", map[string]any{"to": to.String(), "current_token": current.String()}, s.index)
	_, _, v := a.conclude(r)
	if v.published() {
		a.shown[s.index] = v.token(s.name)
		s.promise(v.token(s.name), m)
		a.c.published(s.index, v.token(s.name))
	}
}
