package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/faultproxy"
	"github.com/artifactd/artifactd/pointer"
)

// track is what is known of one pointer over all windows.
type track struct {
	start  state // of the window under way
	fates  fates // of every generation, as the table had it at the last barrier
	issued map[pointer.Token]bool
	// The highest tokens shown to a reader and given to an owner in earlier windows.
	shown, owned pointer.Token
}

const (
	// quiet is how long no connection of a service must be left, with the proxies broken, before
	// nothing of them can take effect any more.
	quiet = 100 * time.Millisecond
	// quiesceTimeout is longer than the services and Postgres let any statement run.
	quiesceTimeout = 3 * time.Minute
)

// barrier ends a window: everybody pauses, nothing of theirs is under way any more, and the rows
// are read. The window's histories go to be checked.
func (c *campaign) barrier(ctx context.Context, number int) error {
	c.chaos.Lock()
	defer c.chaos.Unlock()
	c.gate.Lock()
	defer c.gate.Unlock()
	ctx, cancel := context.WithTimeout(ctx, quiesceTimeout)
	defer cancel()
	conn, err := c.stack.owner(ctx)
	if err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	if err := c.quiesce(ctx, conn); err != nil {
		return fmt.Errorf("barrier: end the services' connections: %w", err)
	}
	if err := c.noneUnplanted(ctx, conn); err != nil {
		return fmt.Errorf("barrier: read what was condemned: %w", err)
	}
	call := c.clock.now()
	rows, err := c.readRows(ctx, conn)
	if err != nil {
		return fmt.Errorf("barrier: read the rows: %w", err)
	}
	ops := c.history.take()
	c.total += int64(len(ops))
	ret := c.clock.now()
	for p, t := range c.tracks {
		holders, err := c.readFates(ctx, conn, p)
		if err != nil {
			return fmt.Errorf("barrier: read the generations: %w", err)
		}
		if number != 0 {
			w := c.window(number, p, ops, rows[p], holders, call, ret)
			c.inOrder(t, w)
			c.windows <- w
		}
		t.start = rows[p]
	}
	c.wholeSnapshots(ops)
	return nil
}

// quiesce breaks every connection of the services and waits until the server has ended them all:
// what it had received is done or undone by then.
func (c *campaign) quiesce(ctx context.Context, conn *pgx.Conn) error {
	for _, r := range c.stack.replicas {
		r.proxy.Set(faultproxy.Fault{Reset: true})
		defer r.proxy.Set(faultproxy.Fault{})
	}
	for since := time.Now(); time.Since(since) < quiet; {
		var left int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE usename = $1`, login).Scan(&left); err != nil {
			return err
		}
		if left > 0 {
			since = time.Now()
		}
		time.Sleep(quiet / 20)
	}
	return nil
}

const rowsSQL = `SELECT p.epoch, p.generation, coalesce(g.state, ''), coalesce(p.lease_expires_at, p.created_at),
		coalesce(p.current_epoch, 0), coalesce(p.current_generation, 0), p.retired_at IS NOT NULL,
		coalesce(p.highest_revision, 0), clock_timestamp()
	FROM artifactd.pointer p LEFT JOIN artifactd.generation g ON g.generation_id = p.head_id
	WHERE p.name = $1`

// readRows reads the pointers as they are, and compares the clocks.
func (c *campaign) readRows(ctx context.Context, conn *pgx.Conn) ([]state, error) {
	names := c.fenced()
	rows := make([]state, len(names))
	for p, name := range names {
		s := &rows[p]
		var expires, at time.Time
		before := c.clock.now()
		err := conn.QueryRow(ctx, rowsSQL, name).Scan(&s.Head.Epoch, &s.Head.Generation, &s.Phase, &expires,
			&s.Shown.Epoch, &s.Shown.Generation, &s.Retired, &s.Revision, &at)
		if err != nil {
			return nil, err
		}
		c.adjust(c.clock.at(at, 0), before, c.clock.now())
		if s.Phase == pointer.StateLeased {
			s.ExpMin = c.at(expires)
			s.ExpMax = s.ExpMin
		}
	}
	return rows, nil
}

// adjust corrects the offset between the clocks by as much as a reading proves it wrong: the
// database read its clock between two readings of ours, which may be far apart on a busy machine.
func (c *campaign) adjust(database, before, after int64) {
	c.offset.Store(min(max(c.offset.Load(), database-after), database-before))
}

const fatesSQL = `SELECT g.epoch, g.generation, g.state, g.holder
	FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
	WHERE p.name = $1 AND (g.epoch, g.generation) >= ($2, $3)`

// readFates brings a pointer's fates up to date and tells who held the window's generations. Only
// the newest generation at the window's start can have changed its fate since.
func (c *campaign) readFates(ctx context.Context, conn *pgx.Conn, p int) (map[string]pointer.Token, error) {
	t := c.tracks[p]
	rows, err := conn.Query(ctx, fatesSQL, c.names[p], t.start.Head.Epoch, t.start.Head.Generation)
	if err != nil {
		return nil, err
	}
	holders := map[string]pointer.Token{}
	var token pointer.Token
	var fate phase
	var holder string
	_, err = pgx.ForEachRow(rows, []any{&token.Epoch, &token.Generation, &fate, &holder}, func() error {
		t.fates[token] = fate
		holders[holder] = token
		return nil
	})
	return holders, err
}

// window makes one pointer's share of the history whole.
func (c *campaign) window(number, p int, ops []*op, row state, holders map[string]pointer.Token, call, ret int64) *window {
	t := c.tracks[p]
	w := &window{Number: number, Pointer: c.names[p], Start: t.start, Fates: fates{}}
	for _, o := range ops {
		if o.Pointer != p {
			continue
		}
		if o.Result == unknown && !c.resolve(o, t, holders, call, ret) {
			continue
		}
		w.Ops = append(w.Ops, o)
		for _, token := range []pointer.Token{o.Token, o.Got} {
			if fate, ok := t.fates[token]; ok {
				w.Fates[token] = fate
			}
		}
	}
	w.Fates[t.start.Head] = t.fates[t.start.Head]
	w.Ops = append(w.Ops, &op{Client: -1, Kind: kindBarrier, Pointer: p, Call: call + 1, Return: ret, Row: row})
	return w
}

// resolve completes an operation whose caller never learned of it. It can have taken effect until
// the barrier, and not at all if it is explained after that. The result is false where it can have
// changed nothing: leaving it out then allows no more and is decided faster.
func (c *campaign) resolve(o *op, t *track, holders map[string]pointer.Token, call, ret int64) bool {
	o.Return = ret + 1 // after the barrier's own read: it never happened
	current := o.Token.Compare(t.start.Head) >= 0
	switch o.Kind {
	case kindAcquire:
		got, happened := holders[o.Holder]
		o.Result, o.Got, o.Return = done, got, call
		return happened
	case kindRenew:
		return current
	case kindRelease:
		return current && t.fates[o.Token] == pointer.StateReleased
	case kindBreak:
		return current && t.fates[o.Token] == pointer.StateBroken
	}
	return true
}

// inOrder checks what must hold in real time over the whole campaign: no token is issued twice,
// tokens rise, and what is shown never goes back, nor behind an acknowledged publication.
func (c *campaign) inOrder(t *track, w *window) {
	t.shown = c.rises(w, "shown", t.shown, func(o *op) (got pointer.Token, gives, sees bool) {
		reads := o.Kind == kindResolve && o.Result == done
		gives = reads || (o.Result == done && (o.Kind == kindPublish || o.Kind == kindRollback))
		return o.Got, gives, reads
	}, func(earlier, later pointer.Token) bool { return later.Compare(earlier) >= 0 })
	t.owned = c.rises(w, "installed", t.owned, func(o *op) (got pointer.Token, gives, sees bool) {
		installs := o.Result == done && (o.Kind == kindAcquire || o.Kind == kindRollback)
		if installs && t.issued[o.Got] {
			c.violate("%s: token %s was issued twice: %s", w.Pointer, o.Got, o)
		}
		if installs {
			t.issued[o.Got] = true
		}
		return o.Got, installs, installs
	}, func(earlier, later pointer.Token) bool { return later.Compare(earlier) > 0 })
}

// rises checks that no operation sees less than one that had returned before it began, and returns
// the highest that was given. pick is called once for every operation.
func (c *campaign) rises(w *window, what string, highest pointer.Token,
	pick func(*op) (got pointer.Token, gives, sees bool), inOrder func(earlier, later pointer.Token) bool) pointer.Token {
	type event struct {
		at   int64
		call bool
		op   *op
	}
	var events []event
	for _, o := range w.Ops {
		_, gives, sees := pick(o)
		if sees {
			events = append(events, event{o.Call, true, o})
		}
		if gives {
			events = append(events, event{o.Return, false, o})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return int(min(max(a.at-b.at, -1), 1)) })
	for _, e := range events {
		if e.call {
			if !inOrder(highest, e.op.Got) {
				c.violate("%s: %s after %s was %s already: %s", w.Pointer, e.op.Got, highest, what, e.op)
			}
		} else if e.op.Got.Compare(highest) > 0 {
			highest = e.op.Got
		}
	}
	return highest
}

// wholeSnapshots checks that no snapshot shows one pointer's share of a publish of several and not
// another's.
func (c *campaign) wholeSnapshots(ops []*op) {
	c.mu.Lock()
	snapshots := c.snapshots
	c.snapshots = nil
	c.mu.Unlock()
	groups := map[uuid.UUID][]*op{}
	for _, o := range ops {
		if o.Kind == kindPublish && o.Result == done {
			groups[o.Operation] = append(groups[o.Operation], o)
		}
	}
	for id, group := range groups {
		for _, shown := range snapshots {
			newer, older := 0, 0
			for _, o := range group {
				switch at := shown[o.Pointer]; {
				case at.IsZero(): // retired or nothing: says nothing
				case at.Compare(o.Got) >= 0:
					newer++
				default:
					older++
				}
			}
			if newer > 0 && older > 0 {
				c.violate("operation %s was seen half: one snapshot shows %v", id, shown)
			}
		}
	}
}
