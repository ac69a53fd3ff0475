package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// AcquireLease takes the next generation of a pointer, waiting in line if asked to.
func (s *Server) AcquireLease(c echo.Context, name types.Name) error {
	in, err := decode[types.AcquireRequest](c)
	if err != nil {
		return err
	}
	req := pointer.AcquireRequest{Pointer: name, Holder: in.Holder}
	if in.TtlSeconds != nil {
		req.TTL = seconds(*in.TtlSeconds)
	}
	if in.WaitSeconds != nil {
		req.Wait = seconds(min(*in.WaitSeconds, maxWait.Seconds()))
	}
	if in.OperationId != nil {
		if req.OperationID, err = operationID(*in.OperationId); err != nil {
			return err
		}
	}
	defer boundCall(c, req.Wait+callDeadline)()
	ctx, stop := s.untilDraining(c.Request().Context(), req.Wait > 0)
	defer stop()
	l, err := s.catalogue.Acquire(ctx, req)
	if err != nil {
		return err
	}
	c.Response().Header().Set(echo.HeaderLocation, s.publicURL+"/v1/leases/"+l.ID.String())
	return writeJSON(c, http.StatusCreated, lease(l))
}

// untilDraining is a context that also ends when the server shuts down, for calls that wait.
func (s *Server) untilDraining(ctx context.Context, waits bool) (context.Context, context.CancelFunc) {
	if !waits {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.draining:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// operationID refuses the one id that would mean "none".
func operationID(id uuid.UUID) (uuid.UUID, error) {
	if id == uuid.Nil {
		return id, invalid("operation_id", "operation_id: choose a random UUID")
	}
	return id, nil
}

// mayUseLease checks that the caller may publish the pointer that a lease belongs to. A lease of
// somebody else's pointer is as unknown as one that never was.
func (s *Server) mayUseLease(c echo.Context, id uuid.UUID) error {
	name, err := s.catalogue.LeasePointer(c.Request().Context(), id)
	if err != nil {
		return err
	}
	if !callerOf(c).may(pointer.ScopePublish, name) {
		hide(c, name)
		return pointer.ErrLeaseNotFound
	}
	return nil
}

// hiddenLease stands for the id of somebody else's lease: the catalogue does not know it, so what
// it answers is what it answers to any unknown id. The same id gives the same stand-in, so that
// repeating a call stays the same request. Lease ids are version 7; this is version 5.
func hiddenLease(id uuid.UUID) uuid.UUID { return uuid.NewSHA1(uuid.NameSpaceOID, id[:]) }

// usableLease is the id itself when the caller may use it, and a stand-in otherwise. Unknown ids
// stay as they are: with a token of an older epoch the catalogue has more to say about them.
func (s *Server) usableLease(c echo.Context, id uuid.UUID) (uuid.UUID, error) {
	name, err := s.catalogue.LeasePointer(c.Request().Context(), id)
	switch {
	case isUnknownLease(err):
		return id, nil
	case err != nil:
		return id, err
	case !callerOf(c).may(pointer.ScopePublish, name):
		hide(c, name)
		return hiddenLease(id), nil
	}
	return id, nil
}

// GetLease tells how a lease stands.
func (s *Server) GetLease(c echo.Context, id types.LeaseId) error {
	if err := s.mayUseLease(c, id); err != nil {
		return err
	}
	l, err := s.catalogue.Lease(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, lease(l))
}

// ReleaseLease ends a lease.
func (s *Server) ReleaseLease(c echo.Context, id types.LeaseId) error {
	if err := s.mayUseLease(c, id); err != nil {
		return err
	}
	if err := s.catalogue.Release(c.Request().Context(), id); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// RenewLease prolongs a lease.
func (s *Server) RenewLease(c echo.Context, id types.LeaseId) error {
	in, err := decode[types.RenewRequest](c)
	if err != nil {
		return err
	}
	token, err := parseToken("token", in.Token)
	if err != nil {
		return err
	}
	if id, err = s.usableLease(c, id); err != nil {
		return err
	}
	var ttl time.Duration
	if in.TtlSeconds != nil {
		ttl = seconds(*in.TtlSeconds)
	}
	l, err := s.catalogue.Renew(c.Request().Context(), id, token, ttl)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, lease(l))
}

// StageFiles declares files of a manifest and answers where their bytes go.
func (s *Server) StageFiles(c echo.Context, id types.LeaseId, params types.StageFilesParams) error {
	in, err := decode[types.StageRequest](c)
	if err != nil {
		return err
	}
	token, err := parseToken("token", in.Token)
	if err != nil {
		return err
	}
	files, err := stageFiles(in.Files)
	if err != nil {
		return err
	}
	if id, err = s.usableLease(c, id); err != nil {
		return err
	}
	staged, err := s.catalogue.Stage(c.Request().Context(), id, token, files)
	if err != nil {
		return err
	}
	out := types.StageResponse{Files: make([]types.StagedFile, 0, len(staged))}
	for _, f := range staged {
		file := stagedFile(f)
		if !f.Artifact.Stored {
			upload, err := s.upload(c.Request().Context(), f.Artifact, id, params.Bulk != nil && *params.Bulk)
			if err != nil {
				return err
			}
			file.Upload = &upload
		}
		out.Files = append(out.Files, file)
	}
	return writeJSON(c, http.StatusCreated, out)
}

// stageFiles reads the files of a stage call.
func stageFiles(in []types.StageFile) ([]pointer.StageFile, error) {
	out := make([]pointer.StageFile, 0, len(in))
	for i, f := range in {
		digest, err := parseDigest(fmt.Sprintf("files[%d].digest", i), f.Digest)
		if err != nil {
			return nil, err
		}
		file := pointer.StageFile{Path: f.Path, Digest: digest, Size: f.Size}
		if f.MediaType != nil {
			file.MediaType = *f.MediaType
		}
		out = append(out, file)
	}
	return out, nil
}

// parseDigest reads a digest that is to be uploaded. The one of zeros alone stands for "none" wherever
// digests are kept, and nobody knows bytes that have it.
func parseDigest(field, text string) (artifacts.Digest, error) {
	digest, err := artifacts.ParseDigest(text)
	if err == nil && digest.IsZero() {
		err = errors.New("no file hashes to zeros alone; send the SHA-256 of the bytes")
	}
	if err != nil {
		return digest, invalid(field, "%s: %v", field, err)
	}
	return digest, nil
}

// ListStagedFiles answers what is staged under a lease.
func (s *Server) ListStagedFiles(c echo.Context, id types.LeaseId, params types.ListStagedFilesParams) error {
	if err := s.mayUseLease(c, id); err != nil {
		return err
	}
	staged, next, err := s.catalogue.Staged(c.Request().Context(), id, page(params.Limit, params.Cursor))
	if err != nil {
		return err
	}
	out := types.StagedPage{Items: make([]types.StagedFile, 0, len(staged)), NextCursor: optional(next)}
	for _, f := range staged {
		out.Items = append(out.Items, stagedFile(f))
	}
	return writeJSON(c, http.StatusOK, out)
}

// stagedFile spells one staged file, without where its bytes go: only staging hands out URLs, since it
// is what records how long they can be used.
func stagedFile(f pointer.StagedFile) types.StagedFile {
	a := f.Artifact
	return types.StagedFile{
		Path: f.Path, ArtifactId: a.ID, Digest: a.Digest.String(), Size: a.Size, MediaType: f.MediaType, State: artifactState(a.Stored),
	}
}

// upload says where an artifact's bytes go: straight to the store where the store itself refuses
// any others, through this service everywhere else, and together with others for who can do that.
func (s *Server) upload(ctx context.Context, a pointer.Artifact, lease uuid.UUID, bulk bool) (types.Upload, error) {
	plan, err := s.partition.Plan(a.Size)
	if err != nil {
		return types.Upload{}, err
	}
	if plan.Multipart() {
		return types.Upload{Kind: "multipart", PartSize: &plan.PartSize, Parts: new(int32(plan.Count)), ExpiresAt: a.WritableTil.UTC()}, nil
	}
	if bulk && a.Size <= maxBulkFile {
		return types.Upload{
			Kind: "bulk", Method: new(http.MethodPut), Url: new(s.publicURL + "/v1/leases/" + lease.String() + "/content"), ExpiresAt: a.WritableTil.UTC(),
		}, nil
	}
	direct, err := s.store.EnforcesSignedDigest(ctx)
	if err != nil {
		return types.Upload{}, err
	}
	if !direct {
		return types.Upload{
			Kind: "single", Method: new(http.MethodPut), Url: new(s.publicURL + "/v1/artifacts/" + a.ID.String() + "/content"),
			Headers:   map[string]string{echo.HeaderContentType: "application/octet-stream"},
			ExpiresAt: a.WritableTil.UTC(),
		}, nil
	}
	// Signed up to the very time that is recorded, so that the collector knows when the last byte
	// can have been sent.
	signed, err := s.store.SignPut(ctx, s.storeUpload(a), untilWritable(a))
	if err != nil {
		return types.Upload{}, err
	}
	return types.Upload{
		Kind: "single", Method: &signed.Method, Url: &signed.URL, Headers: plainHeaders(signed.Header), ExpiresAt: signed.ExpiresAt.UTC(),
	}, nil
}

// untilWritable is how long a URL for an artifact can be signed for.
func untilWritable(a pointer.Artifact) time.Duration {
	return max(time.Until(a.WritableTil).Truncate(time.Second), time.Second)
}

// plainHeaders are a signed request's headers, but for the host, which every client takes from the URL.
func plainHeaders(h http.Header) map[string]string {
	out := make(map[string]string, len(h))
	for k, v := range h {
		if k != "Host" {
			out[k] = v[0]
		}
	}
	return out
}

// storeUpload describes an artifact to the store. Pointer and token let an operator tell whose
// bytes an object holds without the database.
func (s *Server) storeUpload(a pointer.Artifact) artifacts.Upload {
	return artifacts.Upload{
		Key: s.layout.ArtifactKey(a.Digest, a.ID), Digest: a.Digest, Size: a.Size, ContentType: a.MediaType,
		Metadata: map[string]string{"artifactd-pointer": a.Pointer, "artifactd-token": a.Token.String()},
	}
}
