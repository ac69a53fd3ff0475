package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Bounds of one request with many artifacts. The document states the first three.
const (
	maxBulkFiles = 1000
	maxBulkFile  = 256 << 10 // bytes of one artifact
	maxBulkBody  = 32 << 20  // bytes of the archive
	// bulkDeadline is how long an archive may take to arrive, bulkPutDeadline how long what did may
	// then take into the store.
	bulkDeadline    = 5 * time.Minute
	bulkPutDeadline = 2 * time.Minute
	// So many artifacts, of so many bytes, are gathered before the catalogue is asked about them, and
	// so many are on their way into the store at once.
	bulkChunkFiles = 64
	bulkChunkBytes = 1 << 20
	bulkPuts       = 8
	// bulkRequests archives are taken at once, of one caller bulkOfCaller: each may hold three and a
	// quarter mebibytes in memory.
	bulkRequests = 16
	bulkOfCaller = 8
)

// PutLeaseContent takes the bytes of many small artifacts, passes them on to the store as they come,
// and records at the end what was proved, in one statement. A crash, or a connection that breaks,
// leaves artifacts that are still pending, whose objects the collector knows by the artifacts' rows;
// what had come whole before a connection broke is recorded.
func (s *Server) PutLeaseContent(c echo.Context, id types.LeaseId) error {
	if err := s.mayUseLease(c, id); err != nil {
		return err
	}
	if c.Request().ContentLength > maxBulkBody {
		return &http.MaxBytesError{Limit: maxBulkBody}
	}
	leave, err := s.enterBulk(c)
	if err != nil {
		return err
	}
	defer leave()
	if _, err := s.catalogue.LiveLease(c.Request().Context(), id); err != nil {
		return err // before a byte is taken
	}
	body := newArrival(c)
	defer body.end()
	// What came whole is stored even if the caller has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), bulkDeadline+bulkPutDeadline)
	defer cancel()
	b := &bulk{
		s: s, lease: id, archive: newBulkArchive(body), arrived: make(chan bulkPut),
		known: map[uuid.UUID]pointer.Artifact{}, faults: map[uuid.UUID]error{},
	}
	for range bulkPuts {
		b.puts.Go(func() { b.putArrived(ctx) })
	}
	err = b.take(ctx)
	close(b.arrived)
	b.puts.Wait()
	s.metrics.received.Add(float64(body.count.Load()))
	if recordErr := b.record(ctx); recordErr != nil {
		return recordErr // it is the graver one
	}
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.CompleteManyResponse{Items: b.answer(c)})
}

// enterBulk counts the request among those of its caller and of all. What it returns is to be called
// when it is answered.
func (s *Server) enterBulk(c echo.Context) (leave func(), err error) {
	release, err := s.hold(c, maxBodies/bulkOfCaller)
	if err != nil {
		return nil, err
	}
	if !s.bulks.TryAcquire(1) {
		release()
		return nil, s.bucketOf(c).tooMany(c, fmt.Sprintf("%d archives are being taken already, as many as there can be; send yours a little later.", bulkRequests))
	}
	return func() {
		s.bulks.Release(1)
		release()
	}, nil
}

// bulk is one archive on its way into the store.
type bulk struct {
	s       *Server
	lease   uuid.UUID
	archive *bulkArchive
	items   []bulkItem // as they came; of the goroutine that reads
	known   map[uuid.UUID]pointer.Artifact
	arrived chan bulkPut
	puts    sync.WaitGroup // of those that take from arrived

	mu     sync.Mutex
	proofs []pointer.Proof
	faults map[uuid.UUID]error
}

// bulkPut is a file on its way into the store.
type bulkPut struct {
	artifact pointer.Artifact
	content  []byte
}

// bulkItem is a file of the archive. One with a fault of its own has no content.
type bulkItem struct {
	id      uuid.UUID
	content []byte
	fault   error
}

// take reads the archive to its end, and has its files put into the store meanwhile. An error is about
// the whole archive, or the lease.
func (b *bulk) take(ctx context.Context) error {
	for {
		chunk, readErr := b.archive.next()
		if err := b.put(ctx, chunk); err != nil {
			return err
		}
		switch {
		case readErr == io.EOF && b.archive.files == 0:
			return invalid("body", "body: the archive has no files in it")
		case readErr == io.EOF:
			return nil
		case readErr != nil:
			return readErr
		}
	}
}

// put starts to move a chunk; it waits while too many are on their way.
func (b *bulk) put(ctx context.Context, chunk []bulkItem) error {
	if len(chunk) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, 0, len(chunk))
	for _, item := range chunk {
		b.items = append(b.items, bulkItem{id: item.id, fault: item.fault})
		if item.fault == nil {
			ids = append(ids, item.id)
		}
	}
	if _, err := b.s.catalogue.LiveLease(ctx, b.lease); err != nil {
		return err
	}
	found, err := b.s.catalogue.StagedArtifacts(ctx, b.lease, ids)
	if err != nil {
		return err
	}
	for _, item := range chunk {
		if item.fault != nil {
			continue
		}
		a, ok := found[item.id]
		if !ok {
			b.done(item.id, "", pointer.ErrArtifactNotFound)
			continue
		}
		b.known[a.ID] = a
		b.arrived <- bulkPut{a, item.content}
	}
	return nil
}

// putArrived puts one file after another into the store until the archive has come to its end. A
// goroutine of its own for each would grow its stack anew for each.
func (b *bulk) putArrived(ctx context.Context) {
	for p := range b.arrived {
		verified, err := b.s.putSmall(ctx, p.artifact, p.content)
		b.done(p.artifact.ID, verified, err)
	}
}

// done notes what became of one artifact.
func (b *bulk) done(id uuid.UUID, verified string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.faults[id] = err
		return
	}
	b.proofs = append(b.proofs, pointer.Proof{ArtifactID: id, Verified: verified})
}

// record has what was proved recorded. The error says that nothing is: the lease has ended, or nobody
// knows.
func (b *bulk) record(ctx context.Context) error {
	refused, err := b.s.recordProofs(ctx, b.proofs, b.known)
	if err != nil {
		return err
	}
	for id, err := range refused {
		if lost := (*pointer.LeaseLostError)(nil); errors.As(err, &lost) {
			return err
		}
		b.faults[id] = err
	}
	return nil
}

func (b *bulk) answer(c echo.Context) []types.CompletedArtifact {
	out := make([]types.CompletedArtifact, 0, len(b.items))
	for _, item := range b.items {
		err := item.fault
		if err == nil {
			err = b.faults[item.id]
		}
		out = append(out, b.s.completed(c, item.id, err))
	}
	return out
}

// putSmall puts one artifact's bytes into the store and says how they were proved. Where the store's
// answer tells the SHA-256 of what it took nothing is left to ask; elsewhere it is asked.
func (s *Server) putSmall(ctx context.Context, a pointer.Artifact, content []byte) (string, error) {
	if int64(len(content)) != a.Size {
		return "", &fault{kind: errSizeMismatch, field: "size", detail: fmt.Sprintf("The archive has %d bytes of it, the artifact was staged with %d.", len(content), a.Size)}
	}
	if a.Stored {
		if artifacts.DigestOf(content) != a.Digest {
			return "", errDigestMismatch
		}
		return a.Verified, nil
	}
	digest, err := s.store.PutProving(ctx, s.storeUpload(a), bytes.NewReader(content))
	switch {
	case errors.Is(err, artifacts.ErrExists):
		// An earlier upload of this artifact arrived; what is there is proved like any other.
	case err != nil:
		return "", err
	case digest == a.Digest:
		return pointer.VerifiedByStore, nil
	}
	return s.examine(ctx, a)
}
