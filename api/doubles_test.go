package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
)

// fakeCollector stands in for package gc, which has tests of its own.
type fakeCollector struct {
	Collector
	mu   sync.Mutex
	runs []types.GcRun
	err  error
}

func (f *fakeCollector) Collect(ctx context.Context, r CollectRequest) (types.GcRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	run := types.GcRun{RunId: uuid.New(), State: "done", StartedAt: now, FinishedAt: &now, DryRun: r.DryRun, PlanId: r.PlanID,
		DeletedObjects: 2, DeletedBytes: 7, ByReason: map[string]int64{"superseded": 2}}
	f.runs = append([]types.GcRun{run}, f.runs...)
	if ctx.Err() != nil {
		return types.GcRun{RunId: run.RunId, State: "running"}, ErrStillCollecting
	}
	return run, f.err
}

func (f *fakeCollector) CollectRun(_ context.Context, id uuid.UUID) (types.GcRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.runs {
		if r.RunId == id {
			return r, nil
		}
	}
	return types.GcRun{}, ErrRunNotFound
}

func (f *fakeCollector) CollectPlan(context.Context, uuid.UUID) (types.GcPlan, error) {
	return types.GcPlan{}, ErrPlanNotFound
}

func (f *fakeCollector) CollectPlans(context.Context, int) ([]types.GcPlan, error) { return nil, nil }

func (f *fakeCollector) CollectRuns(_ context.Context, limit int) ([]types.GcRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[:min(limit, len(f.runs))], nil
}

// lockedBuffer is a log that tests read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// brokenStore ends every read half-way, or refuses it.
type brokenStore struct {
	artifacts.Store
	after  int64
	fail   error
	before func() // is called first
}

func (b brokenStore) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if b.before != nil {
		b.before()
	}
	if b.fail != nil {
		return nil, artifacts.Object{}, b.fail
	}
	body, o, err := b.Store.Get(ctx, key, r)
	if err != nil {
		return nil, o, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, b.after), failing{}), body}, o, nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the source broke") }

// forgetfulStore can lose the store's own checksums.
type forgetfulStore struct {
	artifacts.Store
	checksum bool
}

func (s *forgetfulStore) Head(ctx context.Context, key string) (artifacts.Object, error) {
	o, err := s.Store.Head(ctx, key)
	if !s.checksum {
		o.SHA256 = artifacts.Digest{}
	}
	return o, err
}

// laxStore does not enforce what it signs.
type laxStore struct{ artifacts.Store }

func (laxStore) EnforcesSignedDigest(context.Context) (bool, error) { return false, nil }

// countingStore hands out a body that tells how much is read of it at once, and that nobody can
// seek in.
type countingStore struct {
	artifacts.Store
	largest *int64
}

func (s *countingStore) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	if _, ok := body.(io.Seeker); ok {
		return errors.New("the body is in memory or on disk")
	}
	return s.Store.Put(ctx, u, readerFunc(func(p []byte) (int, error) {
		*s.largest = max(*s.largest, int64(len(p)))
		return body.Read(p)
	}))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// afterPut does something between the store's answer and the service's.
type afterPut struct {
	artifacts.Store
	then func()
}

func (s afterPut) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	err := s.Store.Put(ctx, u, body)
	s.then()
	return err
}

// lossyStore forgets what a listing of parts says of their digests, as some stores do.
type lossyStore struct{ artifacts.Store }

func (s lossyStore) ListParts(ctx context.Context, m artifacts.Multipart) ([]artifacts.Part, error) {
	parts, err := s.Store.ListParts(ctx, m)
	for i := range parts {
		parts[i].SHA256 = artifacts.Digest{}
	}
	return parts, err
}

// gatedStore lets nothing be read, or an upload be begun, before its gates open.
type gatedStore struct {
	artifacts.Store
	create, read func()
}

func (s gatedStore) CreateMultipart(ctx context.Context, u artifacts.Upload) (string, error) {
	id, err := s.Store.CreateMultipart(ctx, u)
	if s.create != nil {
		s.create()
	}
	return id, err
}

func (s gatedStore) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if s.read != nil {
		s.read()
	}
	return s.Store.Get(ctx, key, r)
}
