package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// fetch reads versions, whole, until the campaign ends: what is shown, what is kept, and what is
// pinned.
func (a *actor) fetch() {
	for a.c.running() {
		s := a.c.shelves[a.rng.IntN(len(a.c.shelves))]
		switch n := a.rng.IntN(100); {
		case n < 60:
			a.step(func() { a.fetchCurrent(s) })
		case n < 80:
			a.step(func() {
				if t, ok := a.c.someVersion(s.index, a.rng); ok {
					a.fetchVersion(s, t)
				}
			})
		default:
			a.step(func() { a.keep(s) })
		}
	}
}

// fetchCurrent resolves and reads what is shown. The version may be displaced meanwhile.
func (a *actor) fetchCurrent(s *shelf) {
	out := a.send(http.MethodGet, "/v1/pointers/"+s.name, nil, uuid.Nil)
	if out.status != http.StatusOK {
		return // nothing is published yet, or nobody answers
	}
	m := manifest{}
	for _, f := range out.Files {
		d, err := artifacts.ParseDigest(f.Digest)
		if err != nil {
			a.c.violate("%s: version %s has a file of the digest %q", s.name, out.Version, f.Digest)
			return
		}
		m[f.Path] = d
	}
	t := parse(out.Version)
	a.shown[s.index] = t
	if err := s.seen(t, m); err != nil {
		a.c.violate("%v", err)
	}
	a.fetchFiles(s, t, m)
}

// fetchVersion reads a version that was published, if it is still kept.
func (a *actor) fetchVersion(s *shelf, t pointer.Token) {
	if m, ok := s.holds(t); ok {
		a.fetchFiles(s, t, m)
	}
}

func (a *actor) fetchFiles(s *shelf, t pointer.Token, m manifest) {
	for path, d := range m {
		status, body := a.readFile(s, t, path)
		switch {
		case status == http.StatusOK:
			a.c.fetched.Add(1)
			if err := a.c.library.compare(d, body); err != nil {
				a.c.violate("%s: %s of version %s: %v", s.name, path, t, err)
			}
		case definite(status):
			a.c.unreadable(s, t, path, status)
			return
		}
	}
}

// readFile reads one file through the service, or straight from the store where the service sends it.
// Status 0: no answer, or one that broke off.
func (a *actor) readFile(s *shelf, t pointer.Token, path string) (int, []byte) {
	r := a.c.stack.replicas[a.rng.IntN(len(a.c.stack.replicas))]
	via := []string{"", "?via=proxy", "?via=redirect"}[a.rng.IntN(3)]
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	status, body, location := a.get(r.url+"/v1/pointers/"+s.name+"/versions/"+t.String()+"/files/"+strings.Join(parts, "/")+via, a.c.stack.token)
	if status == http.StatusTemporaryRedirect {
		status, body, _ = a.get(location, "")
	}
	a.c.answers.add(fmt.Sprintf("read of a file %d", status))
	a.c.expected(fmt.Sprintf("a read of %s of version %s of %s", path, t, s.name), status, string(body))
	return status, body
}

// get reads a whole body.
func (a *actor) get(address, token string) (status int, body []byte, location string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		panic(err) // of addresses that are ours
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := a.c.http.Do(req)
	if err != nil {
		return 0, nil, ""
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, ""
	}
	return resp.StatusCode, body, resp.Header.Get("Location")
}

// maxPins is how many versions of a shelf are held at most.
const maxPins = 4

// keep pins a version, reads one that is pinned, or lets one go.
func (a *actor) keep(s *shelf) {
	pins := s.pins()
	switch {
	case len(pins) > 0 && a.chance(50):
		a.fetchVersion(s, pins[a.rng.IntN(len(pins))])
	case len(pins) > 0 && (len(pins) >= maxPins || a.chance(30)):
		t := pins[a.rng.IntN(len(pins))]
		s.unpin(t)
		a.setPin(s, http.MethodDelete, t)
	default:
		t, ok := a.c.someVersion(s.index, a.rng)
		if _, known := s.holds(t); ok && known && s.mayPin(t) && a.setPin(s, http.MethodPut, t) {
			s.pin(t)
		}
	}
}

// setPin asks until it is known whether the pin is as it should be.
func (a *actor) setPin(s *shelf, method string, t pointer.Token) bool {
	for !a.c.abandoned.Load() {
		out := a.send(method, "/v1/pointers/"+s.name+"/versions/"+t.String()+"/pin", nil, uuid.Nil)
		switch {
		case out.status == http.StatusNoContent:
			return true
		case out.status == http.StatusNotFound:
			return false
		case !out.silent() && !out.unavailable():
			a.unexpected("pin", out)
			return false
		}
		time.Sleep(settlePause)
	}
	return false
}

// fateSQL is what became of a version: whether its collection has begun, and whether it had to be
// kept then.
const fateSQL = `SELECT g.collecting_at IS NOT NULL,
		g.displaced_at IS NULL OR g.pinned OR g.collecting_at < g.displaced_at + make_interval(secs => p.keep_seconds)
		OR (SELECT count(*) FROM artifactd.generation h WHERE h.pointer_id = g.pointer_id AND h.displaced_at <= g.collecting_at
		       AND (h.epoch, h.generation) > (g.epoch, g.generation)) < p.keep_versions
	FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
	WHERE p.name = $1 AND g.epoch = $2 AND g.generation = $3`

// mayBeCollected decides whether a version that was published may have become unreadable. The database
// is asked around all proxies, after the answer: what nobody collects now nobody had collected then.
func (c *campaign) mayBeCollected(s *shelf, t pointer.Token, path string, status int) {
	pinned := s.isPinned(t)
	var collecting, entitled bool
	err := c.untilAnswered(func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, fateSQL, s.name, t.Epoch, t.Generation).Scan(&collecting, &entitled)
	})
	switch {
	case err != nil:
		c.violate("%s: what became of version %s, whose %s was answered %d, cannot be told: %v", s.name, t, path, status, err)
	case !collecting:
		c.violate("missing: %s: %s of version %s was answered %d, and nobody collects it", s.name, path, t, status)
	case entitled || pinned && s.isPinned(t):
		c.violate("missing: %s: version %s was collected although it had to be kept (pinned: %v); %s was answered %d", s.name, t, pinned, path, status)
	default:
		c.displaced.Add(1)
	}
}

// untilAnswered asks the database as its owner, again while it is down.
func (c *campaign) untilAnswered(ask func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), quiesceTimeout)
	defer cancel()
	for {
		conn, err := c.stack.owner(ctx)
		if err == nil {
			err = ask(ctx, conn)
			_ = conn.Close(context.Background()) // has done its work
		}
		if err == nil || ctx.Err() != nil || c.abandoned.Load() {
			return err
		}
		time.Sleep(settlePause)
	}
}
