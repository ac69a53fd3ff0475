package gc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// loadFor is how long the schedule under load runs; long enough for retention to pass many times. On a
// busy machine it goes on until everybody has done something.
const (
	loadFor       = 8 * time.Second
	loadAtLongest = 3 * time.Minute
)

// retention is how long displaced versions stay readable meanwhile, in seconds: longer than a
// reader takes for one version, on a busy machine too.
const retention = 3

// Collectors loop while workers publish, abandon, adopt and roll back, and readers read: whatever
// a reader resolves reads back with its digest, and in the end no garbage is left.
func TestScheduleG1CollectorUnderLoad(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	const pointers, workers, readers, collectors = 4, 8, 8, 2
	name := func(i int) string { return fmt.Sprintf("p%d", i%pointers) }
	for i := range pointers {
		s.pointer(name(i), 1, retention)
	}
	ctx, cancel := context.WithTimeout(t.Context(), loadAtLongest)
	defer cancel()
	var published, abandoned, read, collected atomic.Int64
	var wg sync.WaitGroup
	for i := range workers {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				if s.work(name(i), r) {
					published.Add(1)
				} else {
					abandoned.Add(1)
				}
			}
		})
	}
	for i := range readers {
		wg.Go(func() {
			for ctx.Err() == nil {
				read.Add(s.readCurrent(name(i)))
			}
		})
	}
	for range collectors {
		c := s.collector(s.store)
		wg.Go(func() {
			for ctx.Err() == nil {
				report, err := c.RunOnce(context.Background(), gc.RunOptions{ResumeGrace: new(time.Duration)})
				if err != nil {
					t.Error(err)
					return
				}
				collected.Add(report.Deleted.Objects)
			}
		})
	}
	wg.Go(func() {
		defer cancel()
		for began := time.Now(); ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			if time.Since(began) > loadFor && min(published.Load(), abandoned.Load(), read.Load(), collected.Load()) > 0 {
				return
			}
		}
	})
	wg.Wait()
	t.Logf("%d versions published, %d generations abandoned, %d files read, %d objects collected meanwhile",
		published.Load(), abandoned.Load(), read.Load(), collected.Load())
	if published.Load() == 0 || abandoned.Load() == 0 || read.Load() == 0 || collected.Load() == 0 {
		t.Error("the load was none")
	}
	// Everybody has gone. What is shown stays, and nothing else.
	for i := range pointers {
		s.pointer(name(i), 0, 0)
	}
	s.exec(`UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp()`)
	s.exec(`UPDATE artifactd.generation SET collect_at = clock_timestamp() WHERE state = 'leased'`)
	for range 3 {
		s.collect()
	}
	s.check()
	var garbage int
	err := s.owner.QueryRow(t.Context(), `SELECT count(*) FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		WHERE g.collected_at IS NULL AND g.generation_id <> p.current_id`).Scan(&garbage)
	if err != nil || garbage != 0 {
		t.Errorf("%d generations are neither shown nor collected (%v)", garbage, err)
	}
}

// work takes a lease and publishes a version of a few files, some of them unchanged, or abandons
// it half-way. It reports which.
func (s *site) work(name string, r *rand.Rand) bool {
	ctx := context.Background()
	l, err := s.catalogue.Acquire(ctx, pointer.AcquireRequest{Pointer: name, Holder: "load", Wait: 10 * time.Second})
	if err != nil {
		return false
	}
	bodies := []string{"never changes", fmt.Sprint("of ", r.IntN(3)), fmt.Sprint(uuid.New())}
	files := make([]pointer.StageFile, len(bodies))
	for i, b := range bodies {
		files[i] = pointer.StageFile{Path: fmt.Sprintf("f%d", i), Digest: artifacts.DigestOf([]byte(b)), Size: int64(len(b))}
	}
	staged, err := s.catalogue.Stage(ctx, l.ID, l.Token, files)
	if err != nil {
		s.t.Errorf("stage: %v", err)
		return false
	}
	abandon := r.IntN(3) == 0
	for i, f := range staged {
		if f.Artifact.Stored || (abandon && i == len(staged)-1) {
			continue
		}
		u := artifacts.Upload{Key: s.layout.ArtifactKey(f.Artifact.Digest, f.Artifact.ID), Digest: f.Artifact.Digest, Size: f.Artifact.Size}
		err := s.store.Put(ctx, u, strings.NewReader(bodies[i]))
		if err == nil {
			err = s.catalogue.MarkStored(ctx, f.Artifact.ID, pointer.VerifiedOnTransfer)
		}
		if err != nil {
			s.t.Errorf("upload: %v", err)
			return false
		}
	}
	if abandon {
		if err := s.catalogue.Release(ctx, l.ID); err != nil {
			s.t.Error(err)
		}
		return false
	}
	_, err = s.catalogue.Publish(ctx, pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}})
	if err != nil {
		s.t.Errorf("publish: %v", err)
	}
	return err == nil
}

// readCurrent resolves a pointer and reads every file of the version; it returns how many.
func (s *site) readCurrent(name string) int64 {
	ctx, began := context.Background(), time.Now()
	v, err := s.catalogue.Resolve(ctx, name)
	if errors.Is(err, pointer.ErrNothingPublished) {
		return 0
	}
	if err != nil {
		s.t.Error(err)
		return 0
	}
	for _, f := range v.Files {
		body, _, err := s.store.Get(ctx, f.Key(s.layout), artifacts.WholeObject)
		var b bytes.Buffer
		if err == nil {
			_, err = io.Copy(&b, body)
			_ = body.Close()
		}
		if time.Since(began) > retention*time.Second {
			return 0 // this machine was too slow for the retention: nothing is promised
		}
		if err != nil || artifacts.DigestOf(b.Bytes()) != f.Digest {
			s.t.Errorf("%s %s %s does not read back: %v", name, v.Token, f.Path, err)
		}
	}
	return int64(len(v.Files))
}
