package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/faultproxy"
)

// injector makes faults with its own randomness.
type injector struct {
	c   *campaign
	rng *rand.Rand
}

// streams of randomness apart from the actors'.
const (
	streamReplica  = 1 << 20
	streamPostgres = 1 << 21
	streamCrash    = 1 << 22
)

func (c *campaign) injector(stream int) *injector {
	return &injector{c, rand.New(seeded(c.options.seed, stream))}
}

func (i *injector) between(low, high time.Duration) time.Duration {
	return low + time.Duration(i.rng.Int64N(int64(high-low)))
}

// disturb injects faults until the campaign ends. The channel tells when Postgres cannot be
// brought back, which ends the campaign.
func (c *campaign) disturb(ctx context.Context, running *sync.WaitGroup) <-chan error {
	failed := make(chan error, 1)
	for n, r := range c.stack.replicas {
		i := c.injector(streamReplica + n)
		running.Go(func() {
			calm := time.Duration(max(c.options.calm, 1))
			i.loop(calm*time.Second, calm*4*time.Second, func() { i.network(r) })
		})
	}
	i := c.injector(streamPostgres)
	running.Go(func() { i.loop(300*time.Millisecond, 1500*time.Millisecond, func() { i.server(ctx) }) })
	crash := c.injector(streamCrash)
	running.Go(func() {
		answered := int64(0)
		crash.loop(c.options.crashes/2, c.options.crashes*3/2, func() {
			if c.answered.Load()-answered < crashAfter {
				return // still busy with the last one
			}
			defer func() { answered = c.answered.Load() }()
			immediate, kind := crash.rng.IntN(2) == 0, "Postgres killed"
			if immediate {
				kind = "Postgres stopped immediately"
			}
			if err := c.stack.crashPostgres(ctx, immediate); err != nil {
				failed <- err
				// A barrier waits for those who ask what became of their operations.
				c.abandoned.Store(true)
				return
			}
			c.faults.add(kind)
		})
	})
	return failed
}

// crashAfter is how many calls have to be answered between two crashes: on a busy machine the services
// would be back from one only when the next one came.
const crashAfter = 300

// loop makes a fault, whole with its end, at random times. A barrier waits for that end.
func (i *injector) loop(low, high time.Duration, fault func()) {
	for next := i.c.clock.now(); i.c.running(); {
		next += int64(i.between(low, high))
		for i.c.running() && i.c.clock.now() < next {
			time.Sleep(20 * time.Millisecond)
		}
		if !i.c.running() {
			return
		}
		i.c.chaos.RLock()
		fault()
		i.c.chaos.RUnlock()
		next = max(next, i.c.clock.now())
	}
}

// network does something to one service or to its way to the database or the store.
func (i *injector) network(r *replica) {
	short, long := i.between(10*time.Millisecond, 150*time.Millisecond), i.between(100*time.Millisecond, 900*time.Millisecond)
	set := func(kind string, f faultproxy.Fault, d time.Duration) {
		i.c.faults.add(kind)
		r.proxy.Set(f)
		time.Sleep(d)
		r.proxy.Set(faultproxy.Fault{})
	}
	store := func(kind string, f faultproxy.Fault, d time.Duration) {
		i.c.faults.add(kind)
		r.store.Set(f)
		time.Sleep(d)
		r.store.Set(faultproxy.Fault{})
	}
	switch i.rng.IntN(14) {
	case 10:
		store("connections to the store reset", faultproxy.Fault{Reset: true}, short)
	case 11:
		store("answers of the store lost", faultproxy.Fault{LoseAnswer: true}, short)
	case 12:
		store("black hole to the store", faultproxy.Fault{HoldToServer: true}, long)
	case 13:
		store("delay of the store", faultproxy.Fault{Delay: i.between(time.Millisecond, 20*time.Millisecond)}, long)
	case 0, 1:
		set("connections reset", faultproxy.Fault{Reset: true}, short)
	case 2, 3:
		set("answers lost", faultproxy.Fault{LoseAnswer: true}, short/4)
	case 4:
		set("black hole to the database", faultproxy.Fault{HoldToServer: true}, long)
	case 5:
		set("black hole from the database", faultproxy.Fault{HoldToClient: true}, long)
	case 6:
		// What was on its way is lost for good.
		i.c.faults.add("black hole, then reset")
		r.proxy.Set(faultproxy.Fault{HoldToServer: true})
		time.Sleep(long)
		r.proxy.Set(faultproxy.Fault{Reset: true})
		r.proxy.Set(faultproxy.Fault{})
	case 7:
		set("delay", faultproxy.Fault{Delay: i.between(time.Millisecond, 20*time.Millisecond)}, long)
	default:
		i.c.faults.add("service killed")
		r.kill()
	}
}

// lockHold is for how long a row is held locked: sometimes longer than a lease lives.
const (
	lockHoldMin = 20 * time.Millisecond
	lockHoldMax = 1200 * time.Millisecond
)

// server does something to the services' backends, from a connection of its own. Errors are
// those of a server that is down: then there is nothing to disturb.
func (i *injector) server(ctx context.Context) {
	conn, err := i.c.stack.owner(ctx)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.Background()) }() // it holds nothing any more
	if i.rng.IntN(2) == 0 {
		victims := 1 + i.rng.IntN(3)
		tag, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE usename = $1 ORDER BY state = 'active' DESC, random() LIMIT $2`, login, victims)
		for range tag.RowsAffected() {
			if err == nil {
				i.c.faults.add("backend terminated")
			}
		}
		return
	}
	if err := i.holdRow(ctx, conn); err == nil {
		i.c.faults.add("row held locked")
	}
}

// holdRow keeps everybody waiting for one pointer's row, so that leases end while they wait. The
// blocker either changes the row or does not, which Postgres treats differently.
func (i *injector) holdRow(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // after a commit it does nothing
	name := i.c.names[i.rng.IntN(len(i.c.names))]
	if _, err := tx.Exec(ctx, `UPDATE artifactd.pointer SET updated_at = updated_at WHERE name = $1`, name); err != nil {
		return fmt.Errorf("hold %s: %w", name, err)
	}
	time.Sleep(i.between(lockHoldMin, lockHoldMax))
	if i.rng.IntN(2) == 0 {
		return tx.Commit(ctx)
	}
	return tx.Rollback(ctx)
}
