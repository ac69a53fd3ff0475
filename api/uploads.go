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
		hide(c, a.Pointer)
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
	if length > artifacts.MaxSinglePut {
		return &fault{kind: errTooLarge, field: "body", detail: fmt.Sprintf(
			"A file above %d bytes is sent in parts: ask for them with POST /v1/artifacts/%s/parts.", int64(artifacts.MaxSinglePut), a.ID)}
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
	// The bytes are there; a caller who hangs up now must not make the proof worthless.
	ctx = context.WithoutCancel(ctx)
	if err := s.endUpload(ctx, a); err != nil {
		return err
	}
	if a, err = s.markStored(ctx, a, pointer.VerifiedOnTransfer); err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, artifact(a))
}

// endUpload aborts an upload in parts of a file that then came in one PUT. It is done before the
// artifact is stored, which forgets the upload's id.
func (s *Server) endUpload(ctx context.Context, a pointer.Artifact) error {
	if plan, err := s.partition.Plan(a.Size); err != nil || !plan.Multipart() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	a, err := s.catalogue.OpenUpload(ctx, a, "") // it may have begun since
	if err != nil || a.Stored || a.UploadID == "" {
		return err
	}
	return s.store.AbortMultipart(ctx, s.multipart(a))
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

// CompleteArtifact proves an upload that went straight to the store, or in parts.
func (s *Server) CompleteArtifact(c echo.Context, id types.ArtifactId) error {
	in, err := decode[types.CompleteRequest](c)
	if err != nil {
		return err
	}
	a, err := s.usableArtifact(c, id)
	if err != nil {
		return err
	}
	if a.Stored {
		return writeJSON(c, http.StatusOK, artifact(a))
	}
	if a.UploadID != "" {
		if err := s.assemble(c.Request().Context(), a, in.Parts); err != nil {
			return err
		}
	}
	return s.prove(c, a)
}

// prove has the object in the store proved and answers the artifact.
func (s *Server) prove(c echo.Context, a pointer.Artifact) error {
	proved, err := s.proofs.join(c.Request().Context(), a.ID, func(ctx context.Context) (pointer.Artifact, error) {
		return s.proveObject(ctx, a)
	})
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, artifact(proved))
}

// proveObject holds the object in the store against what was declared and records that it is the
// same.
func (s *Server) proveObject(ctx context.Context, a pointer.Artifact) (pointer.Artifact, error) {
	verified, err := s.examine(ctx, a)
	if err != nil {
		return a, err
	}
	return s.markStored(ctx, a, verified)
}

// examine holds the object in the store against what was declared and says how. An object that is
// not the same will never be: its key is taken for good, and the file has to be staged again, for
// another one.
func (s *Server) examine(ctx context.Context, a pointer.Artifact) (string, error) {
	key := s.layout.ArtifactKey(a.Digest, a.ID)
	object, err := s.store.Head(ctx, key)
	if errors.Is(err, artifacts.ErrNotFound) {
		return "", errNotUploaded
	}
	if err != nil {
		return "", err
	}
	if object.Size != a.Size {
		return "", s.reject(ctx, a, &fault{kind: errSizeMismatch, detail: fmt.Sprintf("The store holds %d bytes, the artifact was staged with %d.", object.Size, a.Size)})
	}
	digest, verified := object.SHA256, pointer.VerifiedByStore
	if digest.IsZero() {
		verified = pointer.VerifiedByRead
		digest, err = s.readBack(ctx, key, a.Size)
	}
	switch {
	case errors.Is(err, artifacts.ErrNotFound):
		return "", errNotUploaded
	case errors.Is(err, artifacts.ErrSizeMismatch):
		return "", s.reject(ctx, a, err)
	case err != nil:
		return "", err
	case digest != a.Digest:
		return "", s.reject(ctx, a, errDigestMismatch)
	}
	return verified, nil
}

// reject records that an artifact's object is not what was declared, and returns why.
func (s *Server) reject(ctx context.Context, a pointer.Artifact, why error) error {
	if err := s.catalogue.RejectUpload(ctx, a.ID); err != nil {
		return err
	}
	return why
}

// readBack hashes an object, as long as there is progress. So many at once that they neither take
// much memory nor all of the store.
func (s *Server) readBack(ctx context.Context, key string, size int64) (artifacts.Digest, error) {
	if err := s.readBacks.Acquire(ctx, 1); err != nil {
		return artifacts.Digest{}, err
	}
	defer s.readBacks.Release(1)
	return artifacts.ReadDigest(ctx, s.store, key, size)
}

// markStored records the proof.
func (s *Server) markStored(ctx context.Context, a pointer.Artifact, verified string) (pointer.Artifact, error) {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	err := s.catalogue.MarkStored(ctx, a.ID, verified)
	if errors.Is(err, pointer.ErrArtifactNotFound) {
		s.removeLate(ctx, a)
	}
	if err != nil {
		return a, err
	}
	a.Stored, a.Verified = true, verified
	return a, nil
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
