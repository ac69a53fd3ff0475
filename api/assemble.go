package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// assemble makes the object of its parts, or finds it made. given are the parts as the caller
// declares them; nil leaves that to what the store tells. A crash after it leaves an object that
// the next complete proves.
func (s *Server) assemble(ctx context.Context, a pointer.Artifact, given []types.Part) error {
	plan, err := s.partPlan(a)
	if err != nil {
		return err
	}
	declared, err := declaredParts(plan, given)
	if err != nil {
		return err
	}
	up, err := s.lookAtUpload(ctx, a)
	if errors.Is(err, artifacts.ErrUploadGone) {
		return s.lostUpload(ctx, a)
	}
	if err != nil || up.whole {
		return err
	}
	parts, err := up.all(plan, declared)
	if err != nil {
		return err
	}
	err = s.store.CompleteMultipart(ctx, s.storeUpload(a), a.UploadID, parts)
	switch {
	case errors.Is(err, artifacts.ErrExists):
		// The file came in one PUT too. That object is proved; the key takes no other.
		return s.store.AbortMultipart(ctx, s.multipart(a))
	case errors.Is(err, artifacts.ErrUploadGone):
		return s.lostUpload(ctx, a)
	case errors.Is(err, artifacts.ErrPartMismatch):
		return &fault{kind: errNotUploaded, field: "parts", detail: "A part was replaced meanwhile; ask for parts again and send what is pending."}
	}
	return err
}

// lostUpload forgets an upload that the store does not know any more.
func (s *Server) lostUpload(ctx context.Context, a pointer.Artifact) error {
	if err := s.catalogue.CloseUpload(ctx, a.ID, a.UploadID); err != nil {
		return err
	}
	return &fault{kind: errNotUploaded, field: "parts[0].number", detail: "The store has lost this upload; ask for parts again, from part 1, and send what is pending."}
}

// declaredParts are all parts, by number from 1, or nil when the caller declares none.
func declaredParts(plan artifacts.PartPlan, given []types.Part) ([]artifacts.Part, error) {
	if given == nil {
		return nil, nil
	}
	parts, err := plannedParts(plan, "parts", given)
	if err != nil {
		return nil, err
	}
	if len(parts) != plan.Count {
		return nil, invalid("parts", "parts: %d of the %d parts are declared; declare all of them or none", len(parts), plan.Count)
	}
	out := make([]artifacts.Part, len(parts))
	for _, p := range parts {
		out[p.Number-1] = p
	}
	return out, nil
}

// all are the parts of the whole, each of which is there.
func (u openedUpload) all(plan artifacts.PartPlan, declared []artifacts.Part) ([]artifacts.Part, error) {
	there := make(map[int]artifacts.Part, len(u.parts))
	for _, p := range u.parts {
		there[p.Number] = p
	}
	parts := make([]artifacts.Part, plan.Count)
	for i := range parts {
		n := i + 1
		field := fmt.Sprintf("parts[%d]", i)
		r, err := plan.Range(n)
		if err != nil {
			return nil, err
		}
		got, ok := there[n]
		switch {
		case !ok || got.Size != r.Length:
			return nil, &fault{kind: errNotUploaded, field: field + ".number", detail: fmt.Sprintf("Part %d of %d is not there; ask for parts and send what is pending.", n, plan.Count)}
		case declared != nil && !got.SHA256.IsZero() && got.SHA256 != declared[i].SHA256:
			return nil, &fault{kind: errNotUploaded, field: field + ".sha256", detail: fmt.Sprintf("Part %d of %d hashes to %s; ask for parts and send it again.", n, plan.Count, got.SHA256)}
		case declared != nil:
			got = declared[i]
		case got.SHA256.IsZero():
			return nil, invalid("parts", "parts: this store does not tell the digests of parts; declare all parts")
		}
		parts[i] = got
	}
	return parts, nil
}
