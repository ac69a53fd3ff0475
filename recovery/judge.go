package recovery

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactd/artifactd/pointer"
)

// view is what the bucket says.
type view struct {
	epochs     []pointer.EpochID
	keys       []string // of the witnesses
	newestSeen int64    // the epoch of the newest witness; 0 without one
	fault      error    // something unreadable
}

// look reads the epochs and the names of the witnesses.
func (b bucket) look(ctx context.Context) (view, error) {
	var v view
	var err error
	if v.epochs, err = b.epochs(ctx); err == nil {
		v.keys, err = b.witnessKeys(ctx)
	}
	if bad := (*unreadable)(nil); errors.As(err, &bad) {
		v.fault = bad
		return v, nil
	}
	if len(v.keys) > 0 {
		v.newestSeen, _, _ = b.parseWitness(v.keys[len(v.keys)-1])
	}
	return v, err
}

// memory is the most that one replica has seen of the database.
type memory struct {
	epoch   pointer.EpochID
	counter int64
}

func (m *memory) note(h pointer.History) {
	if m.epoch != h.Epoch {
		if h.Epoch.Number < m.epoch.Number {
			return
		}
		*m = memory{epoch: h.Epoch}
	}
	m.counter = max(m.counter, h.Counter)
}

// verdict is what comparing says.
type verdict int

const (
	unsure    verdict = iota // it cannot be told now; nothing is written down, and no write is admitted
	quiet                    // the one history that everybody knows
	unarmed                  // an installation's first start
	restarted                // the same server, started again; nothing is missing
	changed                  // another server or timeline; nothing is known to be missing
	lost                     // something is known to be missing: a person decides
)

var verdictNames = map[verdict]string{
	unsure: "unsure", quiet: "unchanged", unarmed: "not armed yet", restarted: "server restarted", changed: "history changed", lost: "history lost",
}

func (v verdict) String() string { return verdictNames[v] }

// judgement is a verdict with what led to it.
type judgement struct {
	verdict
	why   string
	ahead int64 // the counter that is known to have been reached; 0 when none is above the table's
}

func judged(v verdict, format string, args ...any) judgement {
	return judgement{verdict: v, why: fmt.Sprintf(format, args...)}
}

// judge compares. The bucket must have been read before the database. w is the newest witness of the
// database's epoch.
func judge(v view, w *witness, h pointer.History, m memory) judgement {
	if v.fault != nil {
		return judged(unsure, "%v", v.fault)
	}
	if w != nil && w.Installation != h.Installation {
		return judged(unsure, "the bucket's witness is of installation %s and this database is %s: give the service its own bucket or --s3-prefix", w.Installation, h.Installation)
	}
	if !h.Armed {
		return judgeUnarmed(v, h)
	}
	if j, ok := judgeEpoch(v, h, m); !ok {
		return j
	}
	if j, ok := judgeCounter(v, w, h, m); !ok {
		return j
	}
	switch {
	case h.LossKnown || h.KnownAhead > h.Counter:
		return judgement{lost, h.ChangedWhy, h.KnownAhead}
	case h.ChangedAt != nil:
		return judgement{verdict: changed, why: h.ChangedWhy}
	case !h.SameSystem || !h.SameTimeline:
		return judged(changed, "the database was promoted or restored (it was %s; it is %s)", h.Was, h.Now)
	case !h.SameServer:
		return judged(restarted, "the database server was started again (it was %s; it is %s)", h.Was, h.Now)
	}
	if top, _ := newest(v.epochs); top != h.Epoch {
		return judged(unsure, "epoch %s is being raised", top)
	}
	return judgement{verdict: quiet}
}

// judgeUnarmed looks at a database that never took part in a history of this bucket.
func judgeUnarmed(v view, h pointer.History) judgement {
	for _, e := range v.epochs {
		if e.UUID != h.Pending {
			return judged(lost, "the bucket is in epoch %s and this database never took part in that: it is older than the guard, or not the one that this bucket belongs to", e)
		}
	}
	if h.ChangedAt != nil {
		return judgement{lost, h.ChangedWhy, h.KnownAhead}
	}
	return judgement{verdict: unarmed}
}

// judgeEpoch compares the epoch with the bucket's and with what was seen; ok when they agree, or when
// what the bucket has above is being raised from here.
func judgeEpoch(v view, h pointer.History, m memory) (j judgement, ok bool) {
	top, alone := newest(v.epochs)
	switch {
	case m.epoch.Number > h.Epoch.Number:
		return judged(lost, "this service has seen the database in epoch %s, and it is in epoch %s", m.epoch, h.Epoch), false
	case len(v.epochs) == 0:
		return judged(unsure, "the bucket holds no epoch and the database is in epoch %s: is it the right bucket and prefix, or was it emptied?", h.Epoch), false
	case top.Number < h.Epoch.Number:
		return judged(unsure, "the bucket is in epoch %s and the database in epoch %s: is it the right bucket, or was it restored?", top, h.Epoch), false
	case top.Number > h.Epoch.Number && alone && top.UUID == h.Pending:
		return j, true
	case top.Number > h.Epoch.Number:
		return judged(lost, "another database goes on with this bucket: it is in epoch %s, and this one in epoch %s", top, h.Epoch), false
	case !alone || top.UUID != h.Epoch.UUID:
		return judged(lost, "another database has issued epoch %d too (%s), and this one is in epoch %s", top.Number, top.UUID, h.Epoch), false
	}
	return j, true
}

// judgeCounter compares the counter with the witness and with what was seen.
func judgeCounter(v view, w *witness, h pointer.History, m memory) (j judgement, ok bool) {
	top, _ := newest(v.epochs)
	ahead := int64(0)
	switch {
	case v.newestSeen > top.Number:
		return judged(unsure, "the bucket's newest witness is of epoch %d, which was never issued: it comes from elsewhere; remove it when you know where, or run `artifactd recover`", v.newestSeen), false
	case w == nil:
		return judged(unsure, "the bucket holds no witness of epoch %s: it was removed; nobody can tell what the database lacks. Run `artifactd recover`", h.Epoch), false
	case w.EpochUUID != h.Epoch.UUID:
		return judged(lost, "the bucket's witness is of epoch %s, and the database in epoch %s", w.epoch(), h.Epoch), false
	}
	if w.Counter > h.Counter {
		ahead = w.Counter
	}
	if m.epoch == h.Epoch && m.counter > h.Counter {
		ahead = max(ahead, m.counter)
	}
	if ahead > max(h.KnownAhead, h.Counter) {
		j := judged(lost, "the database has counted %d decisions and %d are known to have been made: at least %d are lost", h.Counter, ahead, ahead-h.Counter)
		j.ahead = ahead
		return j, false
	}
	return j, true
}
