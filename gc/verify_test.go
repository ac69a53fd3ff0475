package gc_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// verify runs a verification and gives what is wrong, by key.
func (s *site) verify(o gc.VerifyOptions) (gc.VerifyReport, map[string]string) {
	s.t.Helper()
	faults := map[string]string{}
	o.Found = func(p gc.Problem) { faults[p.Key] = p.Pointer + " " + p.Fault }
	report, err := gc.NewVerifier(s.pool, s.store, s.layout).Run(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	if report.Wrong() != int64(len(faults)) {
		s.t.Errorf("%+v tells of %d problems", report, len(faults))
	}
	return report, faults
}

func (s *site) key(a pointer.Artifact) string { return s.layout.ArtifactKey(a.Digest, a.ID) }

// replace puts other bytes under a key, as a disk that fails does.
func (s *site) replace(key, body string) {
	s.t.Helper()
	s.remove(key)
	s.put(key, body, nil)
}

func (s *site) remove(key string) {
	s.t.Helper()
	fates, err := s.store.Delete(s.t.Context(), []string{key})
	if err != nil || fates[0].Err != nil {
		s.t.Fatal(err, fates)
	}
}

// A lost object is found, not adopted any more, and healed by publishing the same bytes again.
func TestVerifyFindsWhatIsLost(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		s.pointer("p", 0, 0)
		l := s.acquire("p")
		bodies := []string{"whole", "lost", "short", "altered"}
		staged := s.upload(l, bodies...)
		s.publish(l)
		s.upload(s.acquire("p"), "in work")
		if r, faults := s.verify(gc.VerifyOptions{Deep: true}); r.Checked != 5 || len(faults) != 0 || r.Recovered != 0 {
			t.Fatalf("before anything is wrong: %+v, %v", r, faults)
		}
		lost, short, altered := s.key(staged[1].Artifact), s.key(staged[2].Artifact), s.key(staged[3].Artifact)
		s.remove(lost)
		s.replace(short, "shor")
		s.replace(altered, "Altered")
		if _, faults := s.verify(gc.VerifyOptions{}); faults[lost] != "p missing" || faults[short] != "p wrong-size" {
			t.Errorf("%v", faults)
		}
		r, faults := s.verify(gc.VerifyOptions{Deep: true})
		if r.Missing != 1 || r.WrongSize != 1 || r.WrongHash != 1 || faults[altered] != "p wrong-digest" || r.Bytes != 28 {
			t.Errorf("deep: %+v, %v", r, faults)
		}
		// Bytes that were read and are wrong look right to whoever does not read them.
		if r, faults := s.verify(gc.VerifyOptions{}); r.Wrong() != 3 || faults[altered] == "" {
			t.Errorf("not deep, after it: %+v, %v", r, faults)
		}
		s.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp()`)
		s.version("p", bodies...) // uploads what is not adopted
		s.collect()
		if r, faults := s.verify(gc.VerifyOptions{Deep: true}); r.Checked != 4 || len(faults) != 0 {
			t.Errorf("after publishing again: %+v, %v", r, faults)
		}
		s.check()
	})
}

// An object that came back is trusted again once it was read back whole, and not before.
func TestVerifyFindsWhatCameBack(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 5, 86400)
	l := s.acquire("p")
	a := s.upload(l, "restored")[0].Artifact
	s.publish(l)
	s.remove(s.key(a))
	s.verify(gc.VerifyOptions{})
	s.put(s.key(a), "restored", nil)
	const missing = `SELECT count(*) FROM artifactd.artifact WHERE missing_at IS NOT NULL`
	if r, faults := s.verify(gc.VerifyOptions{}); r.Recovered != 0 || r.Suspect != 1 || faults[s.key(a)] != "p suspect" || s.number(missing) != 1 {
		t.Errorf("by size alone: %+v, %v", r, faults)
	}
	if r, faults := s.verify(gc.VerifyOptions{Deep: true}); r.Recovered != 1 || r.Suspect != 0 || len(faults) != 0 || s.number(missing) != 0 {
		t.Errorf("deep: %+v, %v", r, faults)
	}
	if r, faults := s.verify(gc.VerifyOptions{}); r.Suspect != 0 || len(faults) != 0 {
		t.Errorf("after it was read back: %+v, %v", r, faults)
	}
}

// A verification goes on where it is told to, over pages, and says how far it came.
func TestVerifyGoesOn(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	const rows = 2_100
	s.exec(`INSERT INTO artifactd.pointer (name) VALUES ('p')`)
	s.exec(`INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
		SELECT gen_random_uuid(), pointer_id, gen_random_uuid(), sha256(i::text::bytea), 1, 'x', now(), now()
		  FROM artifactd.pointer, generate_series(1, $1) i`, rows)
	store := &failing{VerifyStore: empty{}, after: 1_500}
	v := gc.NewVerifier(s.pool, store, s.layout)
	seen := map[uuid.UUID]bool{}
	o := gc.VerifyOptions{Parallel: 1, Found: func(p gc.Problem) {
		if seen[p.ArtifactID] {
			t.Errorf("%s is told of twice", p.ArtifactID)
		}
		seen[p.ArtifactID] = true
	}}
	r, err := v.Run(t.Context(), o)
	if !errors.Is(err, artifacts.ErrStoreUnavailable) || r.Checked != 1_000 || r.Last == uuid.Nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.artifact WHERE missing_at IS NOT NULL`); n != 1_000 {
		t.Errorf("%d artifacts are marked", n)
	}
	store.after = rows
	o.After = r.Last
	if r, err = v.Run(t.Context(), o); err != nil || r.Checked != rows-1_000 || len(seen) != rows {
		t.Errorf("%+v, %v; %d problems", r, err, len(seen))
	}
}

// empty is a store without objects.
type empty struct{ gc.VerifyStore }

func (empty) Head(context.Context, string) (artifacts.Object, error) {
	return artifacts.Object{}, artifacts.ErrNotFound
}

// failing is a store that is down after so many requests.
type failing struct {
	gc.VerifyStore
	after int
}

func (f *failing) Head(ctx context.Context, key string) (artifacts.Object, error) {
	if f.after--; f.after < 0 {
		return artifacts.Object{}, artifacts.ErrStoreUnavailable
	}
	return f.VerifyStore.Head(ctx, key)
}

// What is collected while it is being looked for is not missing.
func TestVerifyBesideCollection(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", 0, 0)
	s.version("p", "old")
	s.version("p", "new")
	store := &collecting{VerifyStore: s.store, collect: func() { s.collect() }}
	r, err := gc.NewVerifier(s.pool, store, s.layout).Run(t.Context(), gc.VerifyOptions{Parallel: 1})
	if err != nil || r.Checked != 2 || r.Wrong() != 0 || store.gone != 1 {
		t.Errorf("%+v, %v; %d objects were gone", r, err, store.gone)
	}
	s.check()
}

// collecting is a store that is collected before it is first asked.
type collecting struct {
	gc.VerifyStore
	collect func()
	gone    int
}

func (c *collecting) Head(ctx context.Context, key string) (artifacts.Object, error) {
	if c.collect != nil {
		c.collect()
		c.collect = nil
	}
	o, err := c.VerifyStore.Head(ctx, key)
	if errors.Is(err, artifacts.ErrNotFound) {
		c.gone++
	}
	return o, err
}
