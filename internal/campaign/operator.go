package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

const (
	// lagSQL is since when the oldest record waits that is not in the bucket: whatever was committed
	// before has its record there.
	lagSQL = `SELECT coalesce(min(enqueued_at), clock_timestamp()), clock_timestamp() FROM artifactd.outbox`
	// staleSQL is every version of an epoch that was published after a later one had begun.
	staleSQL = `SELECT p.name || ' ' || g.epoch || '.' || g.generation FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		WHERE g.state = 'published' AND g.recovered_from IS NULL
		  AND EXISTS (SELECT 1 FROM artifactd.history h WHERE h.epoch > g.epoch AND h.begun_at <= g.published_at)`
	// rowsOfLossSQL is every generation that could have a token.
	rowsOfLossSQL = `SELECT p.name, g.generation_id, g.epoch, g.generation, g.state = 'published', g.recovered_from
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)`
	// operatorTimeout bounds everything that an operator waits for.
	operatorTimeout = 3 * time.Minute
	operatorPause   = 50 * time.Millisecond
	// operatorQuarantine outlasts the campaign.
	operatorQuarantine = 24 * time.Hour
)

// rollback takes the database back once, sees that the services notice, does what an operator does,
// and looks at what is there and what is lost.
func (l *losses) rollback(ctx context.Context, kind takeBack) error {
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	f, err := l.past.copy(ctx, kind)
	if errors.Is(err, errUnwitnessed) {
		l.report.Idle++
		return nil
	}
	if err != nil {
		return err
	}
	recorded, err := l.recorded(ctx)
	if err != nil {
		return err
	}
	ended := l.clock.now()
	if err := l.past.put(ctx, f); err != nil {
		return err
	}
	l.report.Rollbacks++
	l.report.Kinds[string(kind)]++
	m, err := daemon.OpenMaintenance(ctx, l.stack.config())
	if err != nil {
		return err
	}
	defer m.Close()
	raised, err := l.recover(ctx, m)
	if err != nil {
		return err
	}
	l.report.LongestStop = max(l.report.LongestStop, seconds(l.clock.now()-ended))
	return l.account(ctx, m, recorded, ended, raised)
}

// recorded is a time, on the campaign's clock, before which everything that was acknowledged has its
// record in the bucket.
func (l *losses) recorded(ctx context.Context) (int64, error) {
	conn, err := l.stack.owner(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	before := l.clock.now()
	var oldest, now time.Time
	if err := conn.QueryRow(ctx, lagSQL).Scan(&oldest, &now); err != nil {
		return 0, err
	}
	l.report.LongestLag = max(l.report.LongestLag, now.Sub(oldest).Seconds())
	return before - int64(now.Sub(oldest)), nil
}

// recover is the operator's part: it waits until the services have noticed, raises the epoch when
// something is known to be lost, and returns when every service takes writes.
func (l *losses) recover(ctx context.Context, m *daemon.Maintenance) (raised bool, err error) {
	before := l.epoch.Load()
	for {
		r, err := m.History.Inspect(ctx)
		switch {
		case ctx.Err() != nil:
			return false, fmt.Errorf("the history is not settled: %+v, %w; a service said:\n%s", r, errors.Join(err, ctx.Err()), l.stack.replicas[0].tail())
		case err != nil:
		case r.State == "history lost":
			if err := l.awaitNoticed(ctx); err != nil {
				return false, err
			}
			e, err := m.History.Raise(ctx, r)
			if err != nil {
				return false, fmt.Errorf("raise the epoch: %w", err)
			}
			l.epoch.Store(e.Number)
			l.report.Raised++
			raised = true
			continue
		case r.State == "unchanged":
			if err := l.awaitWrites(ctx); err != nil {
				return false, err
			}
			if r.Epoch > before && !raised {
				l.report.Automatic++
				raised = true
			}
			l.epoch.Store(max(l.epoch.Load(), r.Epoch))
			return raised, nil
		}
		time.Sleep(operatorPause)
	}
}

// awaitNoticed waits until every service says that it takes no writes.
func (l *losses) awaitNoticed(ctx context.Context) error {
	return l.everyReplica(ctx, "says that it takes no writes", func(r *replica) bool {
		resp, err := l.http.Get(r.url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var answer struct{ Status any }
		return json.NewDecoder(resp.Body).Decode(&answer) == nil && answer.Status == "read-only"
	})
}

func (l *losses) awaitWrites(ctx context.Context) error {
	a := newActor(l.campaign, readBackStream)
	return l.everyReplica(ctx, "takes writes", func(r *replica) bool {
		return a.exchange(r, http.MethodPut, "/v1/pointers/"+l.shelves[0].name, map[string]any{}, callTimeout, nil).status == http.StatusOK
	})
}

func (l *losses) everyReplica(ctx context.Context, what string, holds func(*replica) bool) error {
	for i, r := range l.stack.replicas {
		for !holds(r) {
			if ctx.Err() != nil {
				return fmt.Errorf("service %d never %s after a rollback: %w; it said:\n%s", i, what, ctx.Err(), r.tail())
			}
			time.Sleep(operatorPause)
		}
	}
	return nil
}

// lostTable is the database after a rollback.
type lostTable struct {
	published map[uuid.UUID]bool // generations, by the ids they have and by those they had once
}

// account compares what callers were told with what is there, and with what recover lists.
func (l *losses) account(ctx context.Context, m *daemon.Maintenance, recorded, ended int64, raised bool) error {
	l.mu.Lock()
	told, aborted := append([]*publication(nil), l.told...), append([]*abortion(nil), l.aborted...)
	l.mu.Unlock()
	epoch := l.epoch.Load()
	list := map[uuid.UUID]recovery.LostVersion{}
	rebuild := func(dry bool) error {
		_, err := m.Rebuild(recovery.RebuildOptions{DryRun: dry, Version: func(v recovery.LostVersion) { l.heard(list, v) }}).Run(ctx)
		return err
	}
	table, err := l.look(ctx)
	if err != nil {
		return err
	}
	if err := rebuild(true); err != nil {
		return fmt.Errorf("list what was lost: %w", err)
	}
	for _, p := range told {
		if table.published[p.generation] || p.beyond || p.token.Epoch >= epoch && (raised || p.told > ended) {
			continue
		}
		first := !p.lost
		if p.lost = true; first {
			l.report.Lost++
		}
		if !raised {
			l.violate("unnoticed: %s: version %s was acknowledged and is lost, and no epoch was raised", p.shelf.name, p.token)
		}
		v, listed := list[l.origin(p.generation)]
		switch {
		case !listed && p.told < recorded:
			l.violate("%s: version %s was acknowledged at %.3f, before the oldest record that was missing (%.3f), and is neither there nor listed as lost",
				p.shelf.name, p.token, seconds(p.told), seconds(recorded))
		case !listed:
			p.beyond = true
			l.report.Beyond++
		case v.Status != recovery.LostRestorable:
			l.violate("%s: version %s was acknowledged, is lost and cannot be brought back: %s %s", p.shelf.name, p.token, v.Status, v.Detail)
		case first:
			l.report.Listed++
		}
	}
	for _, x := range aborted {
		if x.told > recorded && x.token.Epoch < epoch {
			x.beyond = true // the word itself may be lost
		}
		if table.published[x.generation] && !x.beyond {
			l.violate("%s: operation %s was settled as aborted, and its version %s is there", x.shelf.name, x.operation, x.token)
		}
	}
	if _, err := m.Verifier.Run(ctx, gc.VerifyOptions{}); err != nil {
		return fmt.Errorf("verify: %w", err)
	}
	// The manual has collection go on only when everything has been brought back. Somebody who is
	// faster loses nothing for as long as the quarantine.
	if l.past.rng.IntN(100) < 50 {
		if err := resume(ctx, m, operatorQuarantine); err != nil {
			return err
		}
	}
	if l.past.rng.IntN(100) < 30 {
		return nil
	}
	clear(list)
	if err := rebuild(false); err != nil {
		return fmt.Errorf("bring back what was lost: %w", err)
	}
	for _, v := range list {
		if v.Status == recovery.LostLeaseHeld {
			return nil // the next one may bring it back
		}
	}
	return resume(ctx, m, 0)
}

func resume(ctx context.Context, m *daemon.Maintenance, quarantine time.Duration) error {
	if _, err := m.History.Resume(ctx, quarantine); err != nil && !errors.Is(err, pointer.ErrHistoryChanged) {
		return fmt.Errorf("resume collection: %w", err)
	}
	return nil
}

// heard notes what recover says of a version. Its id is that of the first history that published it.
func (l *losses) heard(list map[uuid.UUID]recovery.LostVersion, v recovery.LostVersion) {
	list[l.origin(v.GenerationID)] = v
	if v.Status != recovery.LostRestored {
		return
	}
	for _, s := range l.shelves {
		if s.name != v.Pointer {
			continue
		}
		if m, ok := s.holds(v.Token); ok {
			s.promise(v.Restored, m)
		} else {
			l.violate("%s: version %s was brought back, and nobody had ever published it", s.name, v.Token)
		}
	}
	l.report.BroughtBack++
}

// origin is the generation that a version was when it was published.
func (l *losses) origin(id uuid.UUID) uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		before, ok := l.origins[id]
		if !ok {
			return id
		}
		id = before
	}
}

// look reads the generations: none has a token that was given to somebody else, and none was
// published when its epoch was over.
func (l *losses) look(ctx context.Context) (lostTable, error) {
	t := lostTable{published: map[uuid.UUID]bool{}}
	conn, err := l.stack.owner(ctx)
	if err != nil {
		return t, err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	stale, err := texts(ctx, conn, staleSQL)
	if err != nil {
		return t, err
	}
	for _, v := range stale {
		l.violate("stale: %s was published after a later epoch had begun", v)
	}
	rows, err := conn.Query(ctx, rowsOfLossSQL)
	if err != nil {
		return t, err
	}
	var name string
	var id uuid.UUID
	var token pointer.Token
	var published bool
	var from *uuid.UUID
	var versions []uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&name, &id, &token.Epoch, &token.Generation, &published, &from}, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if owner, ok := l.issued[name+" "+token.String()]; ok && owner != id {
			l.violate("%s: token %s was issued twice, to lease %s and to generation %s", name, token, owner, id)
		}
		if from != nil {
			l.origins[id] = *from
		}
		if published {
			versions = append(versions, id)
		}
		return nil
	})
	for _, id := range versions {
		t.published[id], t.published[l.origin(id)] = true, true
	}
	return t, err
}

// verifyAll brings everything back that is still lost, and compares all that was ever told with what
// is there.
func (l *losses) verifyAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	m, err := daemon.OpenMaintenance(ctx, l.stack.config())
	if err != nil {
		return err
	}
	defer m.Close()
	if _, err := l.recover(ctx, m); err != nil {
		return err
	}
	list := map[uuid.UUID]recovery.LostVersion{}
	for waits := true; waits; {
		clear(list)
		if _, err := m.Rebuild(recovery.RebuildOptions{Version: func(v recovery.LostVersion) { l.heard(list, v) }}).Run(ctx); err != nil {
			return fmt.Errorf("bring back what was lost: %w", err)
		}
		waits = false
		for _, v := range list { // nobody works any more, and leases end by themselves
			waits = waits || v.Status == recovery.LostLeaseHeld
		}
	}
	table, err := l.look(ctx)
	if err != nil {
		return err
	}
	for _, p := range l.told {
		switch {
		case table.published[p.generation]:
			l.report.Present++
		case !p.beyond:
			v := list[l.origin(p.generation)]
			l.violate("%s: version %s was acknowledged, and was not brought back: %s %s", p.shelf.name, p.token, v.Status, v.Detail)
		}
	}
	a := newActor(l.campaign, readBackStream)
	for _, s := range l.shelves {
		a.fetchCurrent(s)
		for _, problem := range s.unclaimed() {
			l.violate("%s", problem)
		}
	}
	v, err := m.Verifier.Run(ctx, gc.VerifyOptions{Deep: true})
	l.report.Verified = v.Checked
	return errors.Join(err, l.publishedWhole(ctx))
}

// publishedWhole: every file of every version has its object, whatever happened to the database.
// What a dead generation had uploaded may be gone.
func (l *losses) publishedWhole(ctx context.Context) error {
	conn, err := l.stack.owner(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }() // has done its work
	missing, err := texts(ctx, conn, `SELECT DISTINCT p.name || ' ' || g.epoch || '.' || g.generation || ' ' || m.path
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id) JOIN artifactd.manifest_file m USING (manifest_id)
		JOIN artifactd.artifact a USING (artifact_id) WHERE g.state = 'published' AND a.missing_at IS NOT NULL LIMIT 20`)
	for _, f := range missing {
		l.violate("missing: %s", f)
	}
	return err
}

// tail is the end of what a service logged.
func (r *replica) tail() string {
	said := r.said()
	return strconv.Itoa(len(said)) + " bytes, ending:\n" + string(said[max(0, len(said)-4000):])
}
