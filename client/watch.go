package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// Bounds of a watch.
const (
	// watchWait is how long one call is held by the service, below what proxies usually allow.
	watchWait = 30 * time.Second
	// watchFirst and watchLongest bound the pause before trying again.
	watchFirst   = 100 * time.Millisecond
	watchLongest = 15 * time.Second
	// watchUnmet is how long a service that never answered is tried: it is more likely misnamed than
	// restarting.
	watchUnmet = 2 * time.Second
)

// Watch walks the versions of a pointer as they are published: the current one first, then every newer
// one. after, when not empty, is the version after which to begin, so that a watch that ended goes on
// where it was; versions published meanwhile come in their order, those that are no longer kept are
// passed over. It goes on until ctx ends, with its cause as the last error, or the service refuses; a
// service that cannot be reached is tried again for as long as it takes, once it has answered.
func (c *Client) Watch(ctx context.Context, pointer, after string) iter.Seq2[types.ResolvedVersion, error] {
	return func(yield func(types.ResolvedVersion, error) bool) {
		w := watch{client: c, pointer: pointer, began: time.Now()}
		if after != "" {
			var err error
			if w.last, err = parseVersion(after); err != nil {
				yield(types.ResolvedVersion{}, err)
				return
			}
			w.seen = after
		}
		for {
			versions, err := w.next(ctx)
			for _, v := range versions {
				if !yield(v, nil) {
					return
				}
			}
			if err != nil {
				yield(types.ResolvedVersion{}, err)
				return
			}
		}
	}
}

// version is a token as numbers, which order versions.
type version struct{ epoch, generation int64 }

func parseVersion(token string) (version, error) {
	epoch, generation, ok := strings.Cut(token, ".")
	e, err1 := strconv.ParseInt(epoch, 10, 64)
	g, err2 := strconv.ParseInt(generation, 10, 64)
	if !ok || err1 != nil || err2 != nil || e < 1 || g < 1 {
		return version{}, fmt.Errorf("%w: a version is written like 3.42, not %q", ErrInvalidRequest, token)
	}
	return version{e, g}, nil
}

func (v version) newerThan(w version) bool {
	return v.epoch > w.epoch || v.epoch == w.epoch && v.generation > w.generation
}

// watch is one walk over a pointer's versions.
type watch struct {
	client  *Client
	pointer string
	began   time.Time
	last    version // that was given out; zero: none
	seen    string  // what the service showed last, which its answer is to differ from
}

// next waits for something newer than what was given out. Every try is a new call, so nothing is missed
// when one breaks off.
func (w *watch) next(ctx context.Context) ([]types.ResolvedVersion, error) {
	pause := watchFirst
	listening := w.listen()
	defer func() { listening.stop() }()
	for {
		var versions []types.ResolvedVersion
		var err error
		listening.attempt(ctx, func(ctx context.Context) error {
			versions, err = w.poll(ctx)
			return err
		})
		if err == nil { // the silence is over, and the next one is told again
			listening.stop()
			w.client.toldSilence.Store(false)
		}
		if len(versions) > 0 {
			return versions, nil
		}
		if err == nil {
			listening = w.listen()
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil: // the wait was over; one that was none must not be asked for without end
			pause = watchFirst
		case !worthRetrying(err), unmet(err) && time.Since(w.began) > watchUnmet:
			return nil, err
		default:
			pause = min(2*pause, watchLongest)
			if p, ok := asProblem(err); ok && p.RetryAfter > 0 {
				pause = min(p.RetryAfter, watchLongest)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// listen counts the silence of a watch. A service that answered once is tried for as long as it takes.
func (w *watch) listen() *listener {
	l := w.client.listen(watchWait)
	l.endless = w.client.met.Load()
	return l
}

// poll makes one call, which the service holds until there is something new, and answers what to give
// out: nothing when the wait was over.
func (w *watch) poll(ctx context.Context) ([]types.ResolvedVersion, error) {
	wait := watchWait.Seconds()
	resp, err := w.client.raw.ResolvePointer(ctx, w.pointer, &types.ResolvePointerParams{Wait: &wait}, func(_ context.Context, r *http.Request) error {
		if w.seen != "" {
			r.Header.Set("If-None-Match", `"`+w.seen+`"`)
		}
		return nil
	})
	if err == nil && resp.StatusCode == http.StatusNotModified {
		drain(resp)
		return nil, nil
	}
	v, err := answer[types.ResolvedVersion](resp, err)
	if errors.Is(err, ErrNothingPublished) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	now, err := parseVersion(v.Version)
	if err != nil {
		return nil, err
	}
	if !now.newerThan(w.last) {
		w.seen = v.Version
		return nil, nil
	}
	var versions []types.ResolvedVersion
	if w.last != (version{}) {
		if versions, err = w.between(ctx, now); err != nil {
			return nil, err
		}
	}
	w.seen, w.last = v.Version, now
	return append(versions, v), nil
}

// between answers the versions that were published after the last that was given out and before the
// current one, oldest first.
func (w *watch) between(ctx context.Context, now version) ([]types.ResolvedVersion, error) {
	var missed []types.ResolvedVersion
	for g, err := range w.client.History(ctx, w.pointer) {
		if errors.Is(err, ErrForbidden) || errors.Is(err, ErrUnauthenticated) {
			return nil, nil // a public pointer may be read, its history not
		}
		if err != nil {
			return nil, err
		}
		made, err := parseVersion(g.Version)
		if err != nil {
			return nil, err
		}
		if !made.newerThan(w.last) {
			break
		}
		if g.State != "published" || !now.newerThan(made) {
			continue
		}
		v, err := w.client.Version(ctx, w.pointer, g.Version)
		if errors.Is(err, ErrVersionNotFound) {
			continue // it is not kept any more
		}
		if err != nil {
			return nil, err
		}
		missed = append([]types.ResolvedVersion{v}, missed...)
	}
	return missed, nil
}

// Version answers one version, for as long as it is kept.
func (c *Client) Version(ctx context.Context, pointer, version string) (types.ResolvedVersion, error) {
	return get[types.ResolvedVersion](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.GetVersion(ctx, pointer, version)
	})
}
