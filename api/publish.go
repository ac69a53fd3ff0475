package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// PublishLease publishes what is staged under one lease.
func (s *Server) PublishLease(c echo.Context, id types.LeaseId) error {
	in, err := decode[types.PublishRequest](c)
	if err != nil {
		return err
	}
	item := types.PublishLeaseItem{
		LeaseId: id, Token: in.Token, FileCount: in.FileCount, SourceRevision: in.SourceRevision, Metadata: in.Metadata,
	}
	versions, err := s.publish(c, in.OperationId, []types.PublishLeaseItem{item}, func(int) string { return "" })
	if err != nil {
		return err
	}
	if len(versions) != 1 {
		return fmt.Errorf("operation %s published %d versions of one pointer", in.OperationId, len(versions))
	}
	return writePublished(c, in.OperationId, versions[0])
}

// PublishMany publishes what is staged under several leases, all or nothing.
func (s *Server) PublishMany(c echo.Context) error {
	in, err := decode[types.PublishManyRequest](c)
	if err != nil {
		return err
	}
	versions, err := s.publish(c, in.OperationId, in.Leases, func(i int) string { return fmt.Sprintf("leases[%d].", i) })
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.PublishedMany{
		Outcome: "published", OperationId: in.OperationId, Versions: publishedVersions(versions),
	})
}

// publish is both of them. at spells where in the request a lease's members stand.
func (s *Server) publish(c echo.Context, operation uuid.UUID, leases []types.PublishLeaseItem, at func(int) string) ([]pointer.PublishedVersion, error) {
	if _, err := operationID(operation); err != nil {
		return nil, err
	}
	req := pointer.PublishRequest{OperationID: operation}
	for i, item := range leases {
		l, err := s.publishLease(c, item, at(i))
		if err != nil {
			return nil, err
		}
		req.Leases = append(req.Leases, l)
	}
	versions, err := s.catalogue.Publish(c.Request().Context(), req)
	return versions, nameToken(err, req)
}

// nameToken completes a refusal that the catalogue could not lay at one lease's door (the lease is
// not known any more, or the operation was aborted before it came) when there was only one.
func nameToken(err error, req pointer.PublishRequest) error {
	var refused *pointer.RefusedError
	if len(req.Leases) != 1 || !errors.As(err, &refused) {
		return err
	}
	if len(refused.Refusals) == 0 {
		refused.Refusals = []pointer.Refusal{{Reason: refused.Reason()}}
	}
	if refused.Refusals[0].Token.IsZero() {
		refused.Refusals[0].Token = req.Leases[0].Token
	}
	return err
}

func (s *Server) publishLease(c echo.Context, item types.PublishLeaseItem, at string) (l pointer.PublishLease, err error) {
	if l.Token, err = parseToken(at+"token", item.Token); err != nil {
		return l, err
	}
	if l.Metadata, err = publishMetadata(at+"metadata", item.Metadata); err != nil {
		return l, err
	}
	if l.LeaseID, err = s.usableLease(c, item.LeaseId); err != nil {
		return l, err
	}
	l.SourceRevision = item.SourceRevision
	if item.FileCount != nil {
		l.FileCount = new(int(*item.FileCount))
	}
	return l, nil
}

// writePublished answers the publish of one pointer.
func writePublished(c echo.Context, operation uuid.UUID, v pointer.PublishedVersion) error {
	return writeJSON(c, http.StatusOK, types.Published{
		Outcome: "published", OperationId: operation, Version: v.Version.String(),
	})
}

// GetOperation answers a recorded outcome.
func (s *Server) GetOperation(c echo.Context, id types.OperationId) error {
	outcome, err := s.catalogue.Operation(c.Request().Context(), id)
	if err != nil {
		return err
	}
	if err := s.mayKnow(c, outcome); err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, operationOutcome(outcome))
}

// SettleOperation ends an operation for good.
func (s *Server) SettleOperation(c echo.Context, id types.OperationId) error {
	in, err := decode[types.SettleRequest](c)
	if err != nil {
		return err
	}
	var name string
	if in.Pointer != nil {
		name = *in.Pointer
		if who := callerOf(c); !who.may(pointer.ScopePublish, name) {
			return who.refuse(pointer.ScopePublish, name)
		}
	}
	outcome, err := s.catalogue.Settle(c.Request().Context(), id, name)
	if err == nil {
		err = s.mayKnow(c, outcome)
	}
	if bad := (*pointer.InvalidError)(nil); name == "" && (errors.As(err, &bad) || errors.Is(err, pointer.ErrOperationNotFound)) {
		// The same whether there is no outcome or one that is not this caller's to know.
		return invalid("pointer", "pointer: nothing is recorded for this operation yet; name the pointer it was for, so that it can be aborted")
	}
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, operationOutcome(outcome))
}

// mayKnow lets those learn of an outcome who may publish every pointer it names. To anybody else
// the operation is unknown.
func (s *Server) mayKnow(c echo.Context, o pointer.Outcome) error {
	who := callerOf(c)
	for _, name := range o.Pointers {
		if !who.may(pointer.ScopePublish, name) {
			hide(c, name)
			return pointer.ErrOperationNotFound
		}
	}
	return nil
}

func isUnknownLease(err error) bool { return errors.Is(err, pointer.ErrLeaseNotFound) }
