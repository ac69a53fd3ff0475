package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// settleTime is how long the client tries to learn an outcome after the caller's own time ended.
const settleTime = 30 * time.Second

// Publication is what a publish says besides its lease.
type Publication struct {
	// OperationID names this publish; zero lets the client choose. Repeating a publish with the
	// same id and the same content answers the recorded outcome.
	OperationID uuid.UUID
	// FileCount, when not 0, is refused as incomplete unless so many files are staged.
	FileCount int
	// SourceRevision orders sources; nil leaves it out.
	SourceRevision *int64
	// Metadata is a JSON object of up to 16 KiB, or nil.
	Metadata json.RawMessage
}

// Publish makes what is staged under the lease the pointer's current version. A lost answer is asked
// for again with the same operation id; when none comes, the operation is settled. An error that is
// [ErrPublishRefused] is a durable refusal.
func (c *Client) Publish(ctx context.Context, l Lease, p Publication) (types.Published, error) {
	id, err := operationID(p.OperationID)
	if err != nil {
		return types.Published{}, err
	}
	body := types.PublishRequest{OperationId: id, Token: l.Token, SourceRevision: p.SourceRevision}
	if p.FileCount > 0 {
		n := int32(p.FileCount)
		body.FileCount = &n
	}
	if p.Metadata != nil {
		body.Metadata = &p.Metadata
	}
	return c.decide(ctx, id, l.Pointer, func(ctx context.Context) (types.Published, error) {
		return answer[types.Published](c.raw.PublishLease(ctx, l.LeaseId, body))
	})
}

// Rollback publishes an old version's files again as a new version, if current is what is published
// now. It is repeated and settled as [Client.Publish] is.
func (c *Client) Rollback(ctx context.Context, pointer, to, current string, id uuid.UUID) (types.Published, error) {
	id, err := operationID(id)
	if err != nil {
		return types.Published{}, err
	}
	body := types.RollbackRequest{To: to, CurrentToken: current, OperationId: id}
	return c.decide(ctx, id, pointer, func(ctx context.Context) (types.Published, error) {
		return answer[types.Published](c.raw.Rollback(ctx, pointer, body))
	})
}

// Operation answers the recorded outcome of an operation. [ErrOperationNotFound] means that there is
// none yet: it may still happen (see [Client.Settle]).
func (c *Client) Operation(ctx context.Context, id uuid.UUID) (types.Operation, error) {
	return get[types.Operation](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetOperation(ctx, id) })
}

// Settle ends an operation for good: it answers its outcome, or makes sure that it never happens
// (outcome "aborted"). pointer is needed when there is no outcome yet.
func (c *Client) Settle(ctx context.Context, id uuid.UUID, pointer string) (types.Operation, error) {
	body := types.SettleRequest{}
	if pointer != "" {
		body.Pointer = &pointer
	}
	return ask(ctx, c, 0, func(ctx context.Context) (types.Operation, error) {
		op, err := answer[types.Operation](c.raw.SettleOperation(ctx, id, body))
		if errors.Is(err, ErrOutcomeUnknown) { // settling is repeatable, unlike what it settles
			err = &unknownError{err}
		}
		return op, err
	})
}

// decide carries out one operation and does not come back before its outcome is known, or until it
// has tried for long enough. Every attempt carries the same operation id, so at most one takes effect.
func (c *Client) decide(ctx context.Context, id uuid.UUID, pointer string, attempt func(context.Context) (types.Published, error)) (types.Published, error) {
	maybe := false
	published, err := ask(ctx, c, 0, func(ctx context.Context) (types.Published, error) {
		v, err := attempt(ctx)
		if ambiguous(err) {
			maybe = true
			err = &unknownError{err}
		}
		return v, err
	})
	if err == nil || final(err) || !maybe {
		return published, err
	}
	// The caller's context may have ended; what was sent under it may have happened all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	op, settleErr := c.Settle(ctx, id, pointer)
	if settleErr != nil {
		return types.Published{}, &Problem{
			Code: ErrOutcomeUnknown, Status: http.StatusGatewayTimeout, OperationID: id.String(),
			Detail: fmt.Sprintf("whether operation %s happened is not known: %v", id, settleErr),
		}
	}
	return publishedBy(op)
}

// final reports whether the service decided.
func final(err error) bool {
	p, ok := asProblem(err)
	return ok && !p.temporary() && p.Code != ErrOutcomeUnknown
}

// ambiguous reports whether a publish that failed like this may have taken effect, now or later.
func ambiguous(err error) bool {
	if err == nil {
		return false
	}
	if p, ok := asProblem(err); ok {
		// A gateway's own answer says nothing about the service behind it.
		return p.Code == ErrOutcomeUnknown || p.Status == http.StatusBadGateway || p.Status == http.StatusGatewayTimeout || p.Status == http.StatusInternalServerError
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return false // nothing was sent
	}
	return true
}

// publishedBy is a settled operation as its publish would have answered.
func publishedBy(op types.Operation) (types.Published, error) {
	if op.Outcome == "published" {
		p := types.Published{Outcome: op.Outcome, OperationId: op.OperationId}
		switch {
		case op.Version != nil:
			p.Version = *op.Version
		case len(op.Versions) > 0:
			p.Version = op.Versions[0].Version
		}
		return p, nil
	}
	refused := &Problem{
		Code: ErrPublishRefused, Status: http.StatusConflict, OperationID: op.OperationId.String(), Reason: op.Outcome,
		Detail: "nothing was published; start over with a new operation id",
	}
	if op.Reason != nil {
		refused.Reason = *op.Reason
	}
	for _, r := range op.Refusals {
		refused.Refusals = append(refused.Refusals, Refusal{Pointer: r.Pointer, Reason: r.Reason})
	}
	return types.Published{}, refused
}
