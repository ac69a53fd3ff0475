package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Timing is how fast a change is noticed and for how long the bucket's word counts. All replicas and
// operators of an installation must have the same one.
type Timing struct {
	// Confirm is how long after the bucket was asked a write may be acknowledged on its answer
	// (T). Raising an epoch waits that long and a twentieth more, for clocks that drift.
	Confirm time.Duration
}

// DefaultTiming is the one for production.
var DefaultTiming = Timing{Confirm: 10 * time.Second}

func (t Timing) drift() time.Duration  { return t.Confirm / 20 }
func (t Timing) tick() time.Duration   { return min(t.Confirm/10, time.Second) } // between two looks at the database
func (t Timing) bucket() time.Duration { return t.Confirm / 4 }                  // between two looks at the bucket
func (t Timing) hold() time.Duration   { return 3 * t.tick() }                   // for replicas to object to a release

// request bounds one look at the bucket: what it says is worth nothing later anyway.
func (t Timing) request() time.Duration { return max(t.Confirm/2, 5*time.Second) }

// Options of a [Watch].
type Options struct {
	// Table is the database's side, and Store with Layout the bucket's.
	Table  *pointer.Histories
	Store  HistoryStore
	Layout artifacts.Layout
	// Claim makes sure that the bucket is this installation's, before the first epoch is issued in it.
	Claim func(context.Context) error
	// Replica is this replica's name; the zero value makes a new one. A service that knows itself to
	// be the only one with a name may keep it over restarts: nobody then waits for its predecessor.
	Replica  uuid.UUID
	Timing   Timing // zero means DefaultTiming
	Logger   *slog.Logger
	Registry prometheus.Registerer // nil registers nothing
}

// Watch compares the database's history with the bucket's, for as long as the service runs.
type Watch struct {
	o       Options
	bucket  bucket
	raiser  raiser
	metrics *metrics

	first  sync.Once
	looked chan struct{} // closed when the first look is over, or goes on for long

	looking sync.Mutex // held while looking
	memory  memory     // under looking
	asked   time.Time  // when the bucket was last asked; under looking
	told    string     // what was logged last; under looking

	mu      sync.Mutex
	epoch   pointer.EpochID // what the bucket confirmed
	until   time.Time       // for how long that counts
	blocked error           // why nothing is confirmed although the bucket answered
	fault   error           // of the last look, when it failed
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// NewWatch makes a Watch, which confirms nothing until it has looked.
func NewWatch(o Options) (*Watch, error) {
	if o.Timing.Confirm <= 0 {
		o.Timing = DefaultTiming
	}
	if o.Logger == nil {
		o.Logger = discard()
	}
	if o.Replica == uuid.Nil {
		o.Replica = uuid.New()
	}
	w := &Watch{o: o, bucket: bucket{o.Store, o.Layout.Prefix}, looked: make(chan struct{})}
	w.raiser = raiser{bucket: w.bucket, table: o.Table, timing: o.Timing, logger: o.Logger, owner: uuid.New()}
	var err error
	w.metrics, err = newMetrics(o.Registry, w.confirmedFor)
	return w, err
}

// Confirm is [pointer.Options].Confirm.
func (w *Watch) Confirm() (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.blocked != nil:
		return 0, w.blocked
	case w.left(time.Now()) > 0:
		return w.epoch.Number, nil
	}
	return 0, &unconfirmed{w.o.Timing.Confirm, w.fault}
}

// left is for how long the last confirmation still counts, by the monotonic clock and by the wall
// clock: the first may stand still while a machine is suspended, the second may be set back.
func (w *Watch) left(now time.Time) time.Duration {
	return min(w.until.Sub(now), w.until.Round(0).Sub(now.Round(0)))
}

// unconfirmed says that the bucket was not heard of for too long.
type unconfirmed struct {
	within time.Duration
	fault  error
}

func (e *unconfirmed) Error() string {
	if e.fault == nil {
		return fmt.Sprintf("the bucket did not confirm the epoch within %s", e.within)
	}
	return fmt.Sprintf("the bucket did not confirm the epoch within %s: %v", e.within, e.fault)
}

// Is makes it a case of [pointer.ErrUnconfirmed], and of [pointer.ErrUnavailable].
func (e *unconfirmed) Is(target error) bool {
	return target == pointer.ErrUnconfirmed || target == pointer.ErrUnavailable
}

// Sign says why no write is admitted at this moment, and what to look at; empty when they are.
func (w *Watch) Sign() string {
	_, err := w.Confirm()
	switch {
	case err == nil:
		return ""
	case errors.Is(err, pointer.ErrUnconfirmed):
		return err.Error() + "; nothing is written until it does: look at the object store and at the service's --s3-… settings, `artifactd doctor` tries both"
	}
	return err.Error()
}

// confirmedFor is for how long the last confirmation still counts.
func (w *Watch) confirmedFor() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocked != nil {
		return 0
	}
	return max(0, w.left(time.Now()))
}

// Looked is closed when Run has looked once: writes are admitted, or it is known why they are not.
func (w *Watch) Looked() <-chan struct{} { return w.looked }

func (w *Watch) sayLooked() { w.first.Do(func() { close(w.looked) }) }

// Run looks until ctx ends, then says goodbye. What fails is logged and tried again.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(w.o.Timing.tick())
	defer tick.Stop()
	for {
		err := w.step(ctx)
		w.sayLooked()
		if err != nil && ctx.Err() == nil {
			w.tellFault(err)
		}
		select {
		case <-ctx.Done():
			w.leave(context.WithoutCancel(ctx))
			return
		case <-tick.C:
		}
	}
}

// step looks at the database, and at the bucket too when that is due or something is odd.
func (w *Watch) step(ctx context.Context) error {
	w.looking.Lock()
	due := time.Since(w.asked) >= w.o.Timing.bucket()
	memory := w.memory
	w.looking.Unlock()
	if !due {
		h, err := w.now(ctx)
		if err != nil {
			return err
		}
		due = h.ChangedAt != nil || !h.SameServer || !h.SameTimeline || !h.SameSystem || h.Epoch != memory.epoch || h.Counter < memory.counter
		if !due {
			w.looking.Lock()
			w.memory.note(h)
			w.looking.Unlock()
			return nil
		}
	}
	return w.Look(ctx)
}

func (w *Watch) now(ctx context.Context) (pointer.History, error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Timing.request())
	defer cancel()
	return w.o.Table.Now(ctx)
}

// leave writes down what was seen last, so that nothing is missed while no replica runs.
func (w *Watch) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if _, err := w.Confirm(); err != nil {
		return // this history is not one to bear witness of
	}
	if err := w.Look(ctx); err == nil {
		err = w.o.Table.Leave(ctx, w.o.Replica)
		if err != nil {
			w.o.Logger.Warn("could not say goodbye; after a restart of the database the others wait a moment longer", "error", err)
		}
	}
}

// leaveTimeout bounds the last look of a replica that ends.
const leaveTimeout = 3 * time.Second
