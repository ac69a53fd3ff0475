package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

const (
	// openTries bounds how often a lost upload is begun anew within one call.
	openTries = 3

	partPending, partUploaded = "pending", "uploaded"

	contentDigest                           = "Content-Digest"
	contentDigestPrefix, contentDigestClose = "sha-256=:", ":"
)

// partPlan is how an artifact is cut; an artifact that is sent in one PUT has no parts.
func (s *Server) partPlan(a pointer.Artifact) (artifacts.PartPlan, error) {
	plan, err := s.partition.Plan(a.Size)
	if err == nil && !plan.Multipart() {
		err = invalid("artifact_id", "artifact_id: a file of %d bytes is not sent in parts; send it as its upload says", a.Size)
	}
	return plan, err
}

// plannedParts checks that parts are pieces of the plan, each named once. member is where they
// stand in the request.
func plannedParts(plan artifacts.PartPlan, member string, in []types.Part) ([]artifacts.Part, error) {
	out := make([]artifacts.Part, len(in))
	seen := make(map[int]bool, len(in))
	for i, p := range in {
		fault := func(of, format string, args ...any) error {
			field := fmt.Sprintf("%s[%d].%s", member, i, of)
			return invalid(field, "%s: %s", field, fmt.Sprintf(format, args...))
		}
		r, err := plan.Range(int(p.Number))
		switch {
		case err != nil:
			return nil, fault("number", "%v", err)
		case seen[int(p.Number)]:
			return nil, fault("number", "part %d stands twice in this call", p.Number)
		case p.Size != r.Length:
			return nil, fault("size", "part %d has %d bytes, not %d", p.Number, r.Length, p.Size)
		}
		digest, err := parseDigest(fmt.Sprintf("%s[%d].sha256", member, i), p.Sha256)
		if err != nil {
			return nil, err
		}
		seen[int(p.Number)] = true
		out[i] = artifacts.Part{Number: int(p.Number), Size: p.Size, SHA256: digest}
	}
	return out, nil
}

// openedUpload is the upload of an artifact and the parts of it that are there. Once its object is
// there, or even proved, nothing more is to be sent.
type openedUpload struct {
	artifact pointer.Artifact
	parts    []artifacts.Part
	whole    bool
}

// RequestParts says where parts go and which need not go anywhere.
func (s *Server) RequestParts(c echo.Context, id types.ArtifactId) error {
	in, err := decode[types.PartsRequest](c)
	if err != nil {
		return err
	}
	a, err := s.usableArtifact(c, id)
	if err != nil {
		return err
	}
	plan, err := s.partPlan(a)
	if err != nil {
		return err
	}
	wanted, err := plannedParts(plan, "parts", in.Parts)
	if err != nil {
		return err
	}
	up, err := s.openUpload(c.Request().Context(), a, len(wanted) > 0)
	if err != nil {
		return err
	}
	out := types.PartsResponse{PartSize: plan.PartSize, Parts: make([]types.PartUpload, 0, len(wanted)), Uploaded: uploadedParts(plan, up)}
	for _, p := range wanted {
		part := types.PartUpload{Number: int32(p.Number), State: partUploaded, Size: &p.Size, Sha256: new(p.SHA256.String())}
		if !up.has(p) {
			if part, err = s.pendingPart(c.Request().Context(), up.artifact, p); err != nil {
				return err
			}
		}
		out.Parts = append(out.Parts, part)
	}
	return writeJSON(c, http.StatusOK, out)
}

// has reports whether a part is there. Where the store does not tell the digest of a part, its
// size has to do: the whole is proved in any case.
func (u openedUpload) has(p artifacts.Part) bool {
	if u.whole {
		return true
	}
	for _, there := range u.parts {
		if there.Number == p.Number {
			return there.Size == p.Size && (there.SHA256 == p.SHA256 || there.SHA256.IsZero())
		}
	}
	return false
}

// uploadedParts spells what is there; of a whole object that is every part.
func uploadedParts(plan artifacts.PartPlan, u openedUpload) []types.UploadedPart {
	out := make([]types.UploadedPart, 0, len(u.parts))
	if u.whole {
		for n := 1; n <= plan.Count; n++ {
			r, _ := plan.Range(n) // n is within the plan
			out = append(out, types.UploadedPart{Number: int32(n), Size: r.Length})
		}
		return out
	}
	for _, p := range u.parts {
		part := types.UploadedPart{Number: int32(p.Number), Size: p.Size}
		if !p.SHA256.IsZero() {
			part.Sha256 = new(p.SHA256.String())
		}
		out = append(out, part)
	}
	return out
}

// openUpload finds an artifact's upload and what is there of it. With begin it makes one where
// there is none, and records, before any URL leaves, how long URLs can be used. An upload that the
// store has lost is forgotten. A crash after the store began one and before its id is recorded
// leaves an upload without parts, which reconcile finds.
func (s *Server) openUpload(ctx context.Context, a pointer.Artifact, begin bool) (openedUpload, error) {
	for range openTries {
		if begin {
			var err error
			if a, err = s.recordUpload(ctx, a); err != nil {
				return openedUpload{}, err
			}
		}
		if a.Stored || a.UploadID == "" {
			return openedUpload{artifact: a, whole: a.Stored}, nil
		}
		up, err := s.lookAtUpload(ctx, a)
		if !errors.Is(err, artifacts.ErrUploadGone) {
			return up, err
		}
		if err := s.catalogue.CloseUpload(ctx, a.ID, a.UploadID); err != nil {
			return openedUpload{}, err
		}
		a.UploadID = ""
	}
	return openedUpload{}, fmt.Errorf("%w: it loses the upload of artifact %s as soon as that has begun", artifacts.ErrStoreUnavailable, a.ID)
}

// recordUpload prolongs the time for sending, and begins an upload if there is none. Of two that
// begin at once one is recorded, and the other dropped.
func (s *Server) recordUpload(ctx context.Context, a pointer.Artifact) (pointer.Artifact, error) {
	opened, err := s.catalogue.OpenUpload(ctx, a, "")
	if err != nil || opened.Stored || opened.UploadID != "" {
		return opened, err
	}
	id, err := s.store.CreateMultipart(ctx, s.storeUpload(a))
	if errors.Is(err, artifacts.ErrNoMultipart) {
		return a, &fault{kind: errTooLarge, field: "size", detail: fmt.Sprintf(
			"The store takes nothing in parts; send the bytes to content, which takes up to %d.", int64(artifacts.MaxSinglePut))}
	}
	if err != nil {
		return a, err
	}
	opened, err = s.catalogue.OpenUpload(ctx, a, id)
	if err != nil || opened.UploadID != id {
		// After an error it may be recorded all the same. Then it is found gone, and begun anew.
		s.dropUpload(ctx, artifacts.Multipart{Key: s.storeUpload(a).Key, UploadID: id})
	}
	return opened, err
}

// dropUpload aborts an upload that nobody knows of. What cannot be aborted is left to reconcile.
func (s *Server) dropUpload(ctx context.Context, m artifacts.Multipart) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callDeadline)
	defer cancel()
	if err := s.store.AbortMultipart(ctx, m); err != nil {
		s.logger.WarnContext(ctx, "an upload that lost a race could not be aborted; reconcile finds it", "key", m.Key, "upload", m.UploadID, "error", err)
	}
}

// lookAtUpload lists the parts. ErrUploadGone when neither they nor the whole object are there.
func (s *Server) lookAtUpload(ctx context.Context, a pointer.Artifact) (openedUpload, error) {
	m := s.multipart(a)
	parts, err := s.store.ListParts(ctx, m)
	if !errors.Is(err, artifacts.ErrUploadGone) {
		return openedUpload{artifact: a, parts: parts}, err
	}
	switch _, headErr := s.store.Head(ctx, m.Key); {
	case headErr == nil:
		return openedUpload{artifact: a, whole: true}, nil
	case !errors.Is(headErr, artifacts.ErrNotFound):
		return openedUpload{}, headErr
	}
	return openedUpload{}, err
}

func (s *Server) multipart(a pointer.Artifact) artifacts.Multipart {
	return artifacts.Multipart{Key: s.layout.ArtifactKey(a.Digest, a.ID), UploadID: a.UploadID}
}

// pendingPart says where a part goes: as [Server.upload] does for a whole file.
func (s *Server) pendingPart(ctx context.Context, a pointer.Artifact, p artifacts.Part) (types.PartUpload, error) {
	out := types.PartUpload{Number: int32(p.Number), State: partPending}
	direct, err := s.store.EnforcesSignedDigest(ctx)
	if err != nil {
		return out, err
	}
	if !direct {
		out.Method, out.ExpiresAt = new(http.MethodPut), new(a.WritableTil.UTC())
		out.Url = new(fmt.Sprintf("%s/v1/artifacts/%s/parts/%d", s.publicURL, a.ID, p.Number))
		out.Headers = map[string]string{
			echo.HeaderContentType: "application/octet-stream",
			contentDigest:          contentDigestPrefix + p.SHA256.Base64() + contentDigestClose,
		}
		return out, nil
	}
	signed, err := s.store.SignPart(ctx, s.multipart(a), p, untilWritable(a))
	if err != nil {
		return out, err
	}
	out.Method, out.Url, out.Headers, out.ExpiresAt = &signed.Method, &signed.URL, plainHeaders(signed.Header), new(signed.ExpiresAt.UTC())
	return out, nil
}

// PutArtifactPart takes one part and passes it on to the store, hashing on the way.
func (s *Server) PutArtifactPart(c echo.Context, id types.ArtifactId, number types.PartNumber, params types.PutArtifactPartParams) error {
	a, err := s.usableArtifact(c, id)
	if err != nil {
		return err
	}
	part, err := s.arrivingPart(c, a, number, params.ContentDigest)
	if err != nil {
		return err
	}
	answer := types.Part{Number: number, Size: part.Size, Sha256: part.SHA256.String()}
	if a.Stored {
		return writeJSON(c, http.StatusOK, answer)
	}
	ctx := c.Request().Context()
	if a.UploadID == "" {
		if a, err = s.recordUpload(ctx, a); err != nil {
			return err
		}
	}
	body := newArrival(c)
	defer body.end()
	err = s.store.PutPart(ctx, s.multipart(a), part, body)
	s.metrics.received.Add(float64(body.count.Load()))
	switch {
	case body.err() != nil:
		return invalid("body", "body: it ended early, after %d of %d bytes; the part was not stored", body.count.Load(), part.Size)
	case errors.Is(err, artifacts.ErrUploadGone):
		return &fault{kind: errNotUploaded, field: "number", detail: "The store has lost this upload; ask for parts again and send what is pending."}
	case err != nil:
		return err
	}
	return writeJSON(c, http.StatusOK, answer)
}

// arrivingPart is the part that a request says it carries.
func (s *Server) arrivingPart(c echo.Context, a pointer.Artifact, number types.PartNumber, header string) (artifacts.Part, error) {
	plan, err := s.partPlan(a)
	if err != nil {
		return artifacts.Part{}, err
	}
	r, err := plan.Range(int(number))
	if err != nil {
		return artifacts.Part{}, invalid("number", "number: %v", err)
	}
	switch length := c.Request().ContentLength; {
	case length < 0:
		return artifacts.Part{}, &fault{kind: errLengthRequired, field: echo.HeaderContentLength, detail: errLengthRequired.Error()}
	case length != r.Length:
		return artifacts.Part{}, &fault{kind: errSizeMismatch, field: echo.HeaderContentLength,
			detail: fmt.Sprintf("Content-Length is %d, part %d has %d bytes.", length, number, r.Length)}
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(strings.TrimPrefix(header, contentDigestPrefix), contentDigestClose))
	if err != nil {
		return artifacts.Part{}, invalid(contentDigest, "%s: %v", contentDigest, err)
	}
	digest, err := artifacts.DigestFromSum(sum)
	if err != nil {
		return artifacts.Part{}, invalid(contentDigest, "%s: %v", contentDigest, err)
	}
	if _, err := parseDigest(contentDigest, digest.String()); err != nil {
		return artifacts.Part{}, err
	}
	return artifacts.Part{Number: int(number), Size: r.Length, SHA256: digest}, nil
}
