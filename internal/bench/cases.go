package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
)

const (
	resolveConnections = 64
	commitWorkers      = 64
	uploadWorkers      = 16
	uploadSize         = 64 << 10
	// smallSize is the size in bytes of files whose bytes do not matter.
	smallSize = 1 << 10
	// prepareParallel is how many pointers are made at once.
	prepareParallel = 8
)

// pointers makes n pointers that each show a version of payload.
func pointers(ctx context.Context, s *stack, group string, n int, payload []byte) ([]string, error) {
	names := make([]string, n)
	making, ctx := errgroup.WithContext(ctx)
	making.SetLimit(prepareParallel)
	for i := range names {
		names[i] = fmt.Sprintf("bench.%s.%03d", group, i)
		making.Go(func() error {
			if err := s.api.createPointer(ctx, names[i]); err != nil {
				return err
			}
			return s.api.publishNew(ctx, names[i], payload)
		})
	}
	return names, making.Wait()
}

// prepareResolve compares resolves, every connection of a pointer of its own, with a handler that
// answers the same bytes from memory.
func prepareResolve(ctx context.Context, s *stack) (ours, peer side, err error) {
	names, err := pointers(ctx, s, "resolve", resolveConnections, make([]byte, smallSize))
	if err != nil {
		return nil, nil, err
	}
	bodies := make(map[string][]byte, len(names))
	for _, name := range names {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.api.base+"/v1/pointers/"+name, nil)
		if err != nil {
			return nil, nil, err
		}
		req.Header.Set("Authorization", s.api.bearer)
		if bodies[name], err = s.api.send(req); err != nil {
			return nil, nil, err
		}
	}
	bare, err := s.startChild(ctx, childConfig{Kind: childEcho, Bodies: bodies})
	if err != nil {
		return nil, nil, err
	}
	if ours, err = gets(s.api.base, s.api.bearer, names, bodies); err != nil {
		return nil, nil, err
	}
	peer, err = gets("http://"+bare.API, s.api.bearer, names, bodies)
	return s.withCPU("resolve", "artifactd", ours), s.withCPU("resolve", "echo", peer), err
}

// gets reads one pointer a connection, over and over, and wants its body every time.
func gets(base, bearer string, names []string, bodies map[string][]byte) (side, error) {
	type reader struct {
		req       *http.Request
		want, got []byte
	}
	readers := make([]reader, len(names))
	for i, name := range names {
		req, err := http.NewRequest(http.MethodGet, base+"/v1/pointers/"+name, nil)
		if err != nil {
			return nil, err
		}
		if bearer != "" {
			req.Header.Set("Authorization", bearer)
		}
		readers[i] = reader{req: req, want: bodies[name], got: make([]byte, len(bodies[name]))}
	}
	transport := newTransport(len(names))
	return func(ctx context.Context, d time.Duration) (sample, error) {
		s, err := load(ctx, len(readers), d, func(_ context.Context, w int) error {
			r := readers[w]
			return getBody(transport, r.req, r.want, r.got)
		})
		s.calls = s.operations
		return s, err
	}, nil
}

// getBody reads the body of an answer into got, which has want's length, and compares.
func getBody(transport *http.Transport, req *http.Request, want, got []byte) error {
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(want)) {
		return fmt.Errorf("GET %s: status %d, %d bytes; 200 and %d bytes were expected", req.URL, resp.StatusCode, resp.ContentLength, len(want))
	}
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("GET %s: other bytes than before", req.URL)
	}
	return nil
}

// prepareCommit compares the whole fence over HTTP, without bytes to move, with the least that a
// fence on the same Postgres could be.
func prepareCommit(ctx context.Context, s *stack) (ours, peer side, err error) {
	payload := make([]byte, smallSize)
	names, err := pointers(ctx, s, "commit", commitWorkers, payload)
	if err != nil {
		return nil, nil, err
	}
	digest := artifacts.DigestOf(payload)
	ours = s.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		return load(ctx, commitWorkers, d, func(ctx context.Context, w int) error {
			return s.api.publishSame(ctx, names[w], digest, len(payload))
		})
	})
	peer, err = preparePgbench(ctx, s, commitWorkers)
	return s.withCPU("commit", "artifactd", ours), s.withCPU("commit", "pgbench", peer), err
}

// prepareUpload compares a publish of new bytes with storing the same number of bytes under the
// same kind of keys.
func prepareUpload(ctx context.Context, s *stack) (ours, peer side, err error) {
	names, err := pointers(ctx, s, "upload", uploadWorkers, make([]byte, smallSize))
	if err != nil {
		return nil, nil, err
	}
	payloads := newPayloads(uploadWorkers, uploadSize)
	ours = s.api.counted(func(ctx context.Context, d time.Duration) (sample, error) {
		return load(ctx, uploadWorkers, d, func(ctx context.Context, w int) error {
			return s.api.publishNew(ctx, names[w], payloads.next(w))
		})
	})
	store, err := s.rawStore(ctx)
	if err != nil {
		return nil, nil, err
	}
	peer = func(ctx context.Context, d time.Duration) (sample, error) {
		s, err := load(ctx, uploadWorkers, d, func(ctx context.Context, w int) error {
			return putRaw(ctx, store, names[w], payloads.next(w))
		})
		s.calls = s.operations
		return s, err
	}
	return s.withCPU("upload", "artifactd", ours), s.withCPU("upload", "raw PUTs", peer), nil
}

// rawPrefix keeps the peer's objects apart from the service's.
const rawPrefix = "raw/"

// putRaw stores bytes as the service would, through the same driver.
func putRaw(ctx context.Context, store *s3store.Store, name string, payload []byte) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	digest := artifacts.DigestOf(payload)
	return store.Put(ctx, artifacts.Upload{
		Key: artifacts.Layout{Prefix: rawPrefix}.ArtifactKey(digest, id), Digest: digest, Size: int64(len(payload)),
		ContentType: "application/octet-stream", Metadata: map[string]string{"pointer": name, "token": "1.1"},
	}, bytes.NewReader(payload))
}

// payloads are bytes that are never the same twice, a buffer a worker.
type payloads struct {
	buffers [][]byte
	counts  []uint64
}

func newPayloads(workers, size int) *payloads {
	p := &payloads{buffers: make([][]byte, workers), counts: make([]uint64, workers)}
	for w := range p.buffers {
		p.buffers[w] = make([]byte, size)
		source := rand.NewPCG(uint64(w), uint64(size))
		for i := 0; i < size; i += 8 {
			binary.LittleEndian.PutUint64(p.buffers[w][i:], source.Uint64())
		}
	}
	return p
}

// next is worker w's next payload, valid until it asks again.
func (p *payloads) next(w int) []byte {
	p.counts[w]++
	binary.LittleEndian.PutUint64(p.buffers[w], p.counts[w])
	return p.buffers[w]
}
