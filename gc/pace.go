package gc

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// publishingSQL tells whether anybody has published or acquired lately, through whichever replica.
	publishingSQL = `SELECT coalesce((SELECT recorded_at FROM artifactd.operation ORDER BY recorded_at DESC LIMIT 1) > clock_timestamp() - $1::interval, false)`
	// publishedLately is how long after the last outcome the next one is expected.
	publishedLately = 5 * time.Second
	// lookEvery is how long an answer to that is believed.
	lookEvery = 100 * time.Millisecond

	// A step of a collection takes about so long, alone and beside publishers: its size follows how
	// long the one before took.
	stepAlone  = 250 * time.Millisecond
	stepBeside = 25 * time.Millisecond
	// leastStep, in rows or keys, keeps a store that is far away from being asked for next to nothing
	// each time. The first step has it.
	leastStep = 50
	// patience is how long a run makes way. Garbage that comes faster than it goes beside publishers
	// would otherwise grow for as long as they go on.
	patience = 5 * time.Minute
	// longestRest bounds the pause after a step that took long for another reason than its size.
	longestRest = time.Second
)

// pacer has a collection leave the machines to those who publish. While nobody does, its steps run as
// many at once as there are goroutines for them. Beside publishers they are small, run one at a time,
// and each is followed by a rest as long as it took: half of one processor at most. After a while it
// stops making way.
type pacer struct {
	ask   func(context.Context) (bool, error) // whether somebody publishes
	alone chan struct{}                       // held for a step beside publishers, and its rest
	until time.Time                           // makes way
	mu    sync.Mutex
	asked time.Time
	busy  bool
}

func newPacer(ask func(context.Context) (bool, error)) *pacer {
	return &pacer{ask: ask, alone: make(chan struct{}, 1), until: time.Now().Add(patience)}
}

// publishing asks the database whether somebody publishes.
func publishing(pool *pgxpool.Pool) func(context.Context) (bool, error) {
	return func(ctx context.Context) (busy bool, err error) {
		err = pool.QueryRow(ctx, publishingSQL, publishedLately).Scan(&busy)
		return busy, err
	}
}

// beside reports whether somebody publishes. One who cannot find out is not held up by that.
func (p *pacer) beside(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().After(p.until) {
		return false
	}
	if time.Since(p.asked) > lookEvery {
		busy, err := p.ask(ctx)
		p.busy, p.asked = busy && err == nil, time.Now()
	}
	return p.busy
}

// pace is the pace of one goroutine's steps.
type pace struct {
	*pacer
	size, most int // of the next step, of any
}

func (p *pacer) pace(most int) pace { return pace{p, min(leastStep, most), most} }

// step does something of that size when its turn comes.
func (p *pace) step(ctx context.Context, do func(size int) error) error {
	beside := p.beside(ctx)
	if beside {
		select {
		case p.alone <- struct{}{}:
			defer func() { <-p.alone }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	began := time.Now()
	if err := do(p.size); err != nil {
		return err
	}
	took := time.Since(began)
	p.size = nextSize(p.size, p.most, took, beside)
	if !beside {
		return nil
	}
	rest := time.NewTimer(min(took, longestRest))
	defer rest.Stop()
	select {
	case <-rest.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nextSize is the size at which a step would have taken as long as it should. It at most doubles: a
// step that found little to do took little time.
func nextSize(size, most int, took time.Duration, beside bool) int {
	target := stepAlone
	if beside {
		target = stepBeside
	}
	next := 2 * size
	if took > 0 {
		next = int(min(float64(next), float64(size)*float64(target)/float64(took)))
	}
	return min(max(next, leastStep), most)
}
