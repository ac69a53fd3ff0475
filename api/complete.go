package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// proofsAtOnce is how many objects of one call are looked at side by side.
const proofsAtOnce = 16

// CompleteLease proves many uploads that went straight to the store. Proofs run side by side; what
// they gave is recorded at once. A crash in between leaves artifacts to be completed again.
func (s *Server) CompleteLease(c echo.Context, id types.LeaseId) error {
	in, err := decode[types.CompleteManyRequest](c)
	if err != nil {
		return err
	}
	if err := s.mayUseLease(c, id); err != nil {
		return err
	}
	ctx := c.Request().Context()
	found, err := s.catalogue.LeaseArtifacts(ctx, id, in.ArtifactIds)
	if err != nil {
		return err
	}
	proofs, faults := s.examineMany(ctx, in.ArtifactIds, found)
	// What was proved is recorded even if the caller has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callDeadline)
	defer cancel()
	refused, err := s.recordProofs(ctx, proofs, found)
	if err != nil {
		return err
	}
	maps.Copy(faults, refused)
	out := types.CompleteManyResponse{Items: make([]types.CompletedArtifact, 0, len(in.ArtifactIds))}
	for _, id := range in.ArtifactIds {
		out.Items = append(out.Items, s.completed(c, id, faults[id]))
	}
	return writeJSON(c, http.StatusOK, out)
}

// completed is the answer for one artifact of many, with err as its problem.
func (s *Server) completed(c echo.Context, id uuid.UUID, err error) types.CompletedArtifact {
	item := types.CompletedArtifact{ArtifactId: id}
	if err != nil {
		problem, _ := s.problem(c, err)
		item.Problem = &problem
	} else {
		item.State = new(artifactState(true))
	}
	return item
}

// recordProofs records what was proved of the artifacts found, and answers those that it was refused
// for.
func (s *Server) recordProofs(ctx context.Context, proofs []pointer.Proof, found map[uuid.UUID]pointer.Artifact) (map[uuid.UUID]error, error) {
	if len(proofs) == 0 {
		return nil, nil
	}
	refused, err := s.catalogue.MarkStoredMany(ctx, proofs)
	if err != nil {
		return nil, err
	}
	for id, err := range refused {
		if errors.Is(err, pointer.ErrArtifactNotFound) {
			s.removeLate(ctx, found[id])
		}
	}
	return refused, nil
}

// examineMany looks at each artifact once, however often it is asked for. Those that are stored
// already are among the proofs: whether the lease still counts for them is for the catalogue to say.
func (s *Server) examineMany(ctx context.Context, ids []uuid.UUID, found map[uuid.UUID]pointer.Artifact) ([]pointer.Proof, map[uuid.UUID]error) {
	var mu sync.Mutex
	proofs, faults := make([]pointer.Proof, 0, len(ids)), make(map[uuid.UUID]error)
	var group errgroup.Group
	group.SetLimit(proofsAtOnce)
	seen := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		group.Go(func() error {
			a, ok := found[id]
			verified, err := a.Verified, error(nil)
			switch {
			case !ok:
				err = pointer.ErrArtifactNotFound
			case !a.Stored:
				verified, err = s.examineSingle(ctx, a)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults[id] = err
			} else {
				proofs = append(proofs, pointer.Proof{ArtifactID: id, Verified: verified})
			}
			return nil
		})
	}
	_ = group.Wait() // faults has them
	return proofs, faults
}

// examineSingle is examine of what was sent in one PUT.
func (s *Server) examineSingle(ctx context.Context, a pointer.Artifact) (string, error) {
	plan, err := s.partition.Plan(a.Size)
	if err != nil {
		return "", err
	}
	if plan.Multipart() {
		return "", invalid("artifact_ids", "artifact_ids: artifact %s is sent in parts; complete it by itself", a.ID)
	}
	return s.examine(ctx, a)
}
