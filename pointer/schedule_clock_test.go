package pointer

import (
	"errors"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
)

// The database's own clock is set, as by an operator or a bad time server.
func TestScheduleH3DatabaseClockIsSteppedBack(t *testing.T) {
	t.Parallel()
	clock, env := testenv.NewClock(t)
	w := newWorldOn(t, testenv.Postgres(t, devstack.PostgresOptions{Env: env}))
	w.pointer("p", "q", "r")
	a := w.worker()
	seen, unseen, long := w.ready(a, "p", "A"), w.ready(a, "q", "A"), w.ready(a, "r", "A")

	clock.Set(2 * time.Minute) // past every lease
	_, err := a.Publish(t.Context(), publish(seen))
	refusedFor(t, err, ReasonExpired)
	next := w.ready(a, "q", "B")

	clock.Set(0)
	_, err = a.Publish(t.Context(), publish(seen))
	refusedFor(t, err, ReasonExpired)
	_, err = a.Renew(t.Context(), seen.ID, seen.Token, 0)
	lostFor(t, err, ReasonExpired)
	_, err = a.Publish(t.Context(), publish(unseen))
	refusedFor(t, err, ReasonSuperseded)

	// B's lease was given by the clock that ran ahead: it has no more than its ttl left now.
	held := &LeaseHeldError{}
	if _, err := a.Acquire(t.Context(), AcquireRequest{Pointer: "q", Holder: "C"}); !errors.As(err, &held) || held.ExpiresIn > next.TTL {
		t.Errorf("after the step: %v", err)
	}
	w.published(a, next)
	w.shows("p", "")
	w.shows("q", "1.2")
	// Nobody saw this one's end while the clock was ahead, so nobody acted on it.
	w.published(a, long)
}
