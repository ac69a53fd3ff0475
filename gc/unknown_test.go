package gc_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// What no row knows is counted by the epoch that wrote it, also while nothing may be decided, and
// nothing is written down.
func TestUnknownObjectsByEpoch(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := marked(t, server)
		s.pointer("p", 5, 86400)
		s.version("p", "one", "two")
		s.upload(s.acquire("p"), "in work")
		s.orphan("lost", map[string]string{"artifactd-pointer": "p", "artifactd-token": "1.7"})
		s.orphan("and lost", map[string]string{"artifactd-pointer": "p", "artifactd-token": "1.8"})
		s.orphan("later", map[string]string{"artifactd-pointer": "p", "artifactd-token": "12.1"})
		s.orphan("whose?", nil)
		s.put(s.layout.ArtifactsPrefix()+"a stranger's", "not ours", nil)
		s.exec(`UPDATE artifactd.installation SET changed_at = now(), changed_why = 'for a test'`)
		r := newReconciler(t, s.pool, s.store, s.layout)
		var changed *pointer.HistoryChangedError
		if _, err := r.RunOnce(t.Context(), anyShare); !errors.As(err, &changed) {
			t.Fatalf("a pass while the history is unsettled: %v", err)
		}
		report, err := r.Unknown(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []gc.UnknownEpoch{
			{Epoch: 0, Count: gc.Count{Objects: 1, Bytes: 6}}, {Epoch: 1, Count: gc.Count{Objects: 2, Bytes: 12}}, {Epoch: 12, Count: gc.Count{Objects: 1, Bytes: 5}},
		}
		if report.Listed != 7 || report.Count != (gc.Count{Objects: 4, Bytes: 23}) || !slices.Equal(report.ByEpoch, want) {
			t.Errorf("%+v", report)
		}
		if n := s.number(`SELECT count(*) FROM artifactd.orphan`); n != 0 {
			t.Errorf("%d orphans were written down", n)
		}
	})
}

// tellTale is a store that fails at one request, or whose objects go before they are looked at.
type tellTale struct {
	gc.ReconcileStore
	cutShort, noHead, gone bool
}

var errTold = errors.New("the store fails")

func (s tellTale) List(ctx context.Context, prefix string) iter.Seq2[artifacts.Object, error] {
	return func(yield func(artifacts.Object, error) bool) {
		for o, err := range s.ReconcileStore.List(ctx, prefix) {
			if !yield(o, err) {
				return
			}
			if s.cutShort {
				yield(artifacts.Object{}, errTold)
				return
			}
		}
	}
}

func (s tellTale) Head(ctx context.Context, key string) (artifacts.Object, error) {
	switch {
	case s.noHead:
		return artifacts.Object{}, errTold
	case s.gone:
		return artifacts.Object{}, artifacts.ErrNotFound
	}
	return s.ReconcileStore.Head(ctx, key)
}

// A listing that was cut short is never told as the whole; what went meanwhile is not counted.
func TestUnknownObjectsOfAFailingStore(t *testing.T) {
	s := marked(t, testenv.Versitygw)
	s.orphan("one", nil)
	s.orphan("two", nil)
	for _, store := range []tellTale{{s.store, true, false, false}, {s.store, false, true, false}} {
		if r, err := newReconciler(t, s.pool, store, s.layout).Unknown(t.Context()); !errors.Is(err, errTold) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	r, err := newReconciler(t, s.pool, tellTale{s.store, false, false, true}, s.layout).Unknown(t.Context())
	if err != nil || r.Listed != 2 || r.Objects != 0 || len(r.ByEpoch) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
