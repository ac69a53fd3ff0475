package pointer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	publishSQL  = `SELECT status, answer FROM artifactd.publish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	rollbackSQL = `SELECT status, answer, holder, epoch, generation, expires_in
		FROM artifactd.rollback($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	settleSQL   = `SELECT kind, outcome, answer, pointers, generation_ids FROM artifactd.settle($1, $2)`
	recordedSQL = `SELECT kind, outcome, answer, pointers, generation_ids FROM artifactd.operation_outcome($1)`
)

// Publish makes one or several generations what their pointers show, all or none, and records
// the outcome in the same transaction. Repeated with the same operation id and request it gives
// the recorded answer again.
//
// [*RefusedError] is durable; [ErrOperationMismatch], [ErrLeaseNotFound] and [*InvalidError] say
// that nothing was recorded; [*OutcomeUnknownError] that the database did not tell, and
// [Catalogue.Settle] will.
func (c *Catalogue) Publish(ctx context.Context, req PublishRequest) ([]PublishedVersion, error) {
	args, err := publishArgs(&req)
	if err != nil {
		return nil, err
	}
	var status string
	var answer []byte
	for _, sealed := range []bool{false, true} {
		err = c.decide(ctx, publishSQL, append(args, sealed, InlineSealFiles), &status, &answer)
		if err != nil {
			return nil, unknownOutcome(req.OperationID, badMetadata(err))
		}
		if status != "needs-seal" {
			break
		}
		for _, l := range req.Leases {
			if err := c.seal(ctx, l.LeaseID); err != nil {
				return nil, err
			}
		}
	}
	versions, err := publishAnswer(req.OperationID, status, answer)
	for _, v := range versions {
		c.changes.announce(v.Pointer)
	}
	return versions, err
}

// badMetadata recognises JSON that Go reads and PostgreSQL cannot hold: what else a publish sends
// has been checked.
func badMetadata(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "22") {
		return &InvalidError{Field: "metadata", Detail: "PostgreSQL cannot store this JSON: " + pgErr.Message}
	}
	return err
}

// publishArgs validates a request and turns it into the column arrays of the database's function.
func publishArgs(req *PublishRequest) ([]any, error) {
	n := len(req.Leases)
	if n == 0 || n > MaxPublishLeases {
		return nil, &InvalidError{Field: "leases", Detail: fmt.Sprintf("1 to %d leases a publish", MaxPublishLeases)}
	}
	if req.OperationID == uuid.Nil {
		return nil, &InvalidError{Field: "operation_id", Detail: "a publish needs an operation id of the caller's choice, a UUID"}
	}
	// One order whatever the caller's, so that the same set is the same request.
	leases := slices.SortedFunc(slices.Values(req.Leases), func(a, b PublishLease) int { return bytes.Compare(a.LeaseID[:], b.LeaseID[:]) })
	ids, epochs, generations := make([]uuid.UUID, n), make([]int64, n), make([]int64, n)
	counts, revisions, metadata := make([]*int, n), make([]*int64, n), make([]*string, n)
	for i, l := range leases {
		field := func(name string) string {
			if n == 1 {
				return name
			}
			return fmt.Sprintf("leases[%d].%s", slices.IndexFunc(req.Leases, func(x PublishLease) bool { return x.LeaseID == l.LeaseID }), name)
		}
		if i > 0 && l.LeaseID == leases[i-1].LeaseID {
			return nil, &InvalidError{Field: field("lease_id"), Detail: "the same lease stands twice in this publish"}
		}
		if err := checkMetadata(field("metadata"), l.Metadata); err != nil {
			return nil, err
		}
		if l.FileCount != nil && (*l.FileCount < 0 || *l.FileCount > MaxFiles) {
			return nil, &InvalidError{Field: field("file_count"), Detail: fmt.Sprintf("a generation has at most %d files", MaxFiles)}
		}
		ids[i], epochs[i], generations[i] = l.LeaseID, l.Token.Epoch, l.Token.Generation
		counts[i], revisions[i] = l.FileCount, l.SourceRevision
		if len(l.Metadata) > 0 && string(l.Metadata) != "null" {
			text := string(l.Metadata)
			metadata[i] = &text
		}
	}
	return []any{req.OperationID, publishDigest(leases), ids, epochs, generations, counts, revisions, metadata}, nil
}

// publishDigest identifies what a publish asks for, the manifests apart, which the database adds.
// Metadata counts as a JSON value: white space and the order of members make no difference.
func publishDigest(leases []PublishLease) []byte {
	h := sha256.New()
	for _, l := range leases {
		h.Write(l.LeaseID[:])
		h.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(l.Token.Epoch)), uint64(l.Token.Generation)))
		canonical := []byte("null")
		if len(l.Metadata) > 0 {
			var v any
			d := json.NewDecoder(bytes.NewReader(l.Metadata))
			d.UseNumber()
			if err := d.Decode(&v); err == nil {
				canonical, _ = json.Marshal(v) // of a decoded value: cannot fail
			}
		}
		_ = json.NewEncoder(h).Encode([]any{l.FileCount, l.SourceRevision, string(canonical)}) // a hash takes every write
	}
	return h.Sum(nil)
}

// recordedAnswer is the JSON that the database keeps of an outcome.
type recordedAnswer struct {
	Versions []struct {
		Pointer string
		Version Token
	}
	Refusals []struct {
		Pointer      string
		Reason       Reason
		Token        Token
		CurrentToken *Token `json:"current_token"`
	}
	LeaseID *uuid.UUID `json:"lease_id"`
}

func (a *recordedAnswer) versions() []PublishedVersion {
	out := make([]PublishedVersion, 0, len(a.Versions))
	for _, v := range a.Versions {
		out = append(out, PublishedVersion{Pointer: v.Pointer, Version: v.Version})
	}
	slices.SortFunc(out, func(x, y PublishedVersion) int { return bytes.Compare([]byte(x.Pointer), []byte(y.Pointer)) })
	return out
}

func (a *recordedAnswer) refusals() []Refusal {
	out := make([]Refusal, 0, len(a.Refusals))
	for _, r := range a.Refusals {
		out = append(out, Refusal{Pointer: r.Pointer, Reason: r.Reason, Token: r.Token, CurrentToken: orZero(r.CurrentToken)})
	}
	return out
}

func publishAnswer(operation uuid.UUID, status string, answer []byte) ([]PublishedVersion, error) {
	var a recordedAnswer
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &a); err != nil {
			return nil, fmt.Errorf("recorded answer of operation %s: %w", operation, err)
		}
	}
	switch status {
	case "published":
		return a.versions(), nil
	case "refused":
		return nil, &RefusedError{OperationID: operation, Refusals: a.refusals()}
	case "aborted":
		return nil, &RefusedError{OperationID: operation, Aborted: true}
	case "operation-mismatch":
		return nil, ErrOperationMismatch
	case "lease-not-found":
		return nil, ErrLeaseNotFound
	case "duplicate-pointer":
		return nil, &InvalidError{Field: "leases", Detail: "two of these leases are of the same pointer; a publish names each pointer once"}
	case "pointer-not-found":
		return nil, ErrPointerNotFound
	case "version-not-found":
		return nil, ErrVersionNotFound
	}
	return nil, fmt.Errorf("publish: unexpected status %q", status)
}

// Rollback publishes an old version's manifest as a new generation of the pointer. It is fenced
// by what the caller believes is shown. Errors as Publish, and [*LeaseHeldError] (not recorded)
// while somebody holds the lease, [ErrVersionNotFound] when the old version is not readable.
func (c *Catalogue) Rollback(ctx context.Context, req RollbackRequest) (PublishedVersion, error) {
	if req.OperationID == uuid.Nil {
		return PublishedVersion{}, &InvalidError{Field: "operation_id", Detail: "a rollback needs an operation id of the caller's choice, a UUID"}
	}
	if err := checkHolder(req.Holder); err != nil {
		return PublishedVersion{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return PublishedVersion{}, err
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "rollback %s %s %s", req.Pointer, req.To, req.Current))
	var status string
	var answer []byte
	var row leaseRow
	err = c.decide(ctx, rollbackSQL, []any{req.Pointer, req.To.Epoch, req.To.Generation, req.Current.Epoch, req.Current.Generation,
		req.OperationID, digest[:], id, req.Holder}, &status, &answer, &row.holder, &row.epoch, &row.generation, &row.expiresIn)
	if err != nil {
		return PublishedVersion{}, unknownOutcome(req.OperationID, err)
	}
	if status == "lease-held" {
		return PublishedVersion{}, row.held()
	}
	versions, err := publishAnswer(req.OperationID, status, answer)
	if err != nil {
		return PublishedVersion{}, err
	}
	c.changes.announce(req.Pointer)
	return versions[0], nil
}

// Operation tells the recorded outcome of an operation, or [ErrOperationNotFound], which is no
// answer to "did it happen?": what is still under way may yet be recorded.
func (c *Catalogue) Operation(ctx context.Context, id uuid.UUID) (Outcome, error) {
	return c.tell(ctx, id, recordedSQL, id)
}

// Settle gives the final outcome of an operation. One in flight is waited for; when there is
// none, the operation is aborted for good. name says whom the operation concerns, and may be
// empty when an outcome is known to be there.
func (c *Catalogue) Settle(ctx context.Context, id uuid.UUID, name string) (Outcome, error) {
	var pointer *string
	if name != "" {
		pointer = &name
	}
	out, err := c.tell(ctx, id, settleSQL, id, pointer)
	if errors.Is(err, ErrOperationNotFound) && name == "" {
		return Outcome{}, &InvalidError{Field: "pointer", Detail: "nothing is recorded for this operation yet; name the pointer it was for, so that it can be aborted"}
	}
	return out, err
}

// tell reads a record in a transaction that also writes, so that what is told is as durable as
// what this server acknowledges at all.
func (c *Catalogue) tell(ctx context.Context, id uuid.UUID, sql string, args ...any) (Outcome, error) {
	out := Outcome{OperationID: id}
	var answer []byte
	var generations []uuid.UUID
	err := c.decideRows(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		var kind string
		return conn.QueryRow(ctx, sql, args...).Scan(&kind, &out.Kind, &answer, &out.Pointers, &generations)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Outcome{}, ErrOperationNotFound
	case err != nil:
		return Outcome{}, unknownOutcome(id, err)
	}
	var a recordedAnswer
	if len(answer) > 0 {
		if err := json.Unmarshal(answer, &a); err != nil {
			return Outcome{}, fmt.Errorf("recorded answer of operation %s: %w", id, err)
		}
	}
	out.Versions, out.Refusals = a.versions(), a.refusals()
	if out.Kind == "acquired" && len(generations) == 1 {
		lease, err := c.Lease(ctx, generations[0])
		if err != nil {
			return Outcome{}, err
		}
		out.Lease = &lease
	}
	return out, nil
}
