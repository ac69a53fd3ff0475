package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// usableArtifact is an artifact of a pointer that the caller may publish; any other is unknown.
// The error says so too when its generation has ended: bytes for it could never be published.
func (s *Server) usableArtifact(c echo.Context, id uuid.UUID) (pointer.Artifact, error) {
	a, err := s.catalogue.Artifact(c.Request().Context(), id)
	if a.Pointer != "" && !callerOf(c).may(pointer.ScopePublish, a.Pointer) {
		return pointer.Artifact{}, pointer.ErrArtifactNotFound
	}
	return a, err
}

// PutArtifactContent takes an artifact's bytes and passes them on to the store, hashing on the
// way. A crash or a broken connection on the way leaves an artifact that is still pending, and at
// most an object that the collector knows by the artifact's row.
func (s *Server) PutArtifactContent(c echo.Context, id types.ArtifactId) error {
	ctx := c.Request().Context()
	a, err := s.usableArtifact(c, id)
	if err != nil {
		return err
	}
	length := c.Request().ContentLength
	if length < 0 {
		return &fault{kind: errLengthRequired, field: echo.HeaderContentLength, detail: errLengthRequired.Error()}
	}
	if length != a.Size {
		return &fault{kind: errSizeMismatch, field: echo.HeaderContentLength, detail: fmt.Sprintf("Content-Length is %d, the artifact was staged with %d bytes.", length, a.Size)}
	}
	body := newArrival(c)
	defer body.end()
	if a.Stored {
		return s.compareContent(c, a, body)
	}
	err = s.store.Put(ctx, s.storeUpload(a), body)
	s.metrics.received.Add(float64(body.count.Load()))
	switch {
	case body.err() != nil:
		return invalid("body", "body: it ended early, after %d of %d bytes; nothing was stored", body.count.Load(), a.Size)
	case errors.Is(err, artifacts.ErrExists):
		// An earlier upload of this artifact arrived, though its answer did not. What is there is
		// proved like any other upload; these bytes are not needed.
		return s.prove(c, a)
	case err != nil:
		return err
	}
	return s.markStored(c, a, pointer.VerifiedOnTransfer)
}

// compareContent answers an upload of bytes that are stored already: they have to be the same.
func (s *Server) compareContent(c echo.Context, a pointer.Artifact, body *arrival) error {
	hash := sha256.New()
	if _, err := io.Copy(hash, body); err != nil {
		return invalid("body", "body: it ended early, after %d of %d bytes", body.count.Load(), a.Size)
	}
	digest, err := artifacts.DigestFromSum(hash.Sum(nil))
	if err != nil {
		return err
	}
	if digest != a.Digest {
		return errDigestMismatch
	}
	return writeJSON(c, http.StatusOK, artifact(a))
}

// CompleteArtifact proves an upload that went straight to the store.
func (s *Server) CompleteArtifact(c echo.Context, id types.ArtifactId) error {
	a, err := s.usableArtifact(c, id)
	if err != nil {
		return err
	}
	if a.Stored {
		return writeJSON(c, http.StatusOK, artifact(a))
	}
	return s.prove(c, a)
}

// prove holds the object in the store against what was declared and records that it is the same.
func (s *Server) prove(c echo.Context, a pointer.Artifact) error {
	ctx := c.Request().Context()
	key := s.layout.ArtifactKey(a.Digest, a.ID)
	object, err := s.store.Head(ctx, key)
	if errors.Is(err, artifacts.ErrNotFound) {
		return errNotUploaded
	}
	if err != nil {
		return err
	}
	if object.Size != a.Size {
		if err := s.catalogue.RejectUpload(ctx, a.ID); err != nil {
			return err
		}
		return &fault{kind: errSizeMismatch, detail: fmt.Sprintf("The store holds %d bytes, the artifact was staged with %d.", object.Size, a.Size)}
	}
	digest, verified := object.SHA256, pointer.VerifiedByStore
	if digest.IsZero() {
		verified = pointer.VerifiedByRead
		if digest, err = s.readBack(ctx, key, a.Size); err != nil {
			return err
		}
	}
	if digest != a.Digest {
		// The key is taken for good: the file has to be staged again, for another one.
		if err := s.catalogue.RejectUpload(ctx, a.ID); err != nil {
			return err
		}
		return errDigestMismatch
	}
	return s.markStored(c, a, verified)
}

// readBack hashes an object. It takes as long as reading it takes.
func (s *Server) readBack(ctx context.Context, key string, size int64) (artifacts.Digest, error) {
	body, _, err := s.store.Get(ctx, key, artifacts.WholeObject)
	if errors.Is(err, artifacts.ErrNotFound) {
		return artifacts.Digest{}, errNotUploaded
	}
	if err != nil {
		return artifacts.Digest{}, err
	}
	defer body.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, body)
	if err != nil {
		return artifacts.Digest{}, fmt.Errorf("%w: reading %s back: %w", artifacts.ErrStoreUnavailable, key, err)
	}
	if n != size {
		return artifacts.Digest{}, errSizeMismatch
	}
	return artifacts.DigestFromSum(hash.Sum(nil))
}

// markStored records the proof and answers the artifact.
func (s *Server) markStored(c echo.Context, a pointer.Artifact, verified string) error {
	// The bytes are there; a caller who hangs up now must not make the proof worthless.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Request().Context()), callDeadline)
	defer cancel()
	err := s.catalogue.MarkStored(ctx, a.ID, verified)
	if errors.Is(err, pointer.ErrArtifactNotFound) {
		s.removeLate(ctx, a)
	}
	if err != nil {
		return err
	}
	a.Stored, a.Verified = true, verified
	return writeJSON(c, http.StatusOK, artifact(a))
}

// removeLate deletes the object of an artifact whose row the collector has taken while the bytes
// were on their way, for so long that its key may have left the deletion ledger before they
// landed. Nothing can name the object any more. A crash before this leaves it to reconcile.
func (s *Server) removeLate(ctx context.Context, a pointer.Artifact) {
	key := s.layout.ArtifactKey(a.Digest, a.ID)
	deleted, err := s.store.Delete(ctx, []string{key})
	if err == nil && len(deleted) == 1 {
		err = deleted[0].Err
	}
	if err != nil {
		s.logger.WarnContext(ctx, "a late upload's object could not be deleted; reconcile finds it", "key", key, "error", err)
	}
}

const (
	// stallLimit is how long a transfer of bytes may go without any progress.
	stallLimit = 60 * time.Second
	// stallRefresh is how often the connection's deadline is pushed ahead at most.
	stallRefresh = 5 * time.Second
)

// arrival reads a request's body for as long as it makes progress. It counts the bytes and keeps
// the body's own error, so that a caller who broke off is told from a store that did. A store's
// transport may still read from it when the handler is done.
type arrival struct {
	body    io.Reader
	control *http.ResponseController
	count   atomic.Int64
	failure atomic.Pointer[error]
	over    atomic.Bool

	deadline time.Time // of the reading goroutine
}

func newArrival(c echo.Context) *arrival {
	return &arrival{body: c.Request().Body, control: http.NewResponseController(c.Response().Writer)}
}

// err is what the body itself failed with, if it did.
func (a *arrival) err() error {
	if e := a.failure.Load(); e != nil {
		return *e
	}
	return nil
}

// end keeps late reads away from the connection, which may serve another request by then.
func (a *arrival) end() {
	if !a.over.Swap(true) {
		// An old deadline would look like a caller who hung up.
		_ = a.control.SetReadDeadline(time.Time{})
	}
}

// Read implements io.Reader.
func (a *arrival) Read(p []byte) (int, error) {
	if a.over.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if now := time.Now(); a.deadline.Sub(now) < stallLimit-stallRefresh {
		a.deadline = now.Add(stallLimit)
		_ = a.control.SetReadDeadline(a.deadline)
	}
	n, err := a.body.Read(p)
	a.count.Add(int64(n))
	if err != nil {
		a.end()
		if !errors.Is(err, io.EOF) {
			a.failure.Store(&err)
		}
	}
	return n, err
}
