package pointer

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// leaseRow receives what the lease functions of the database answer.
type leaseRow struct {
	status, reason, pointer, holder, state *string
	id                                     *uuid.UUID
	epoch, generation                      *int64
	acquiredAt, expiresAt                  *time.Time
	expiresIn, ttl                         *float64
}

func (r *leaseRow) lease() Lease {
	return Lease{
		ID: *r.id, Pointer: *r.pointer, Token: Token{*r.epoch, *r.generation}, Holder: *r.holder,
		State: State(*r.state), AcquiredAt: *r.acquiredAt, ExpiresAt: *r.expiresAt,
		ExpiresIn: seconds(*r.expiresIn), TTL: seconds(*r.ttl),
	}
}

func (r *leaseRow) held() *LeaseHeldError {
	return &LeaseHeldError{Holder: *r.holder, CurrentToken: Token{*r.epoch, *r.generation}, ExpiresIn: seconds(*r.expiresIn)}
}

func (r *leaseRow) lost() error { return &LeaseLostError{Reason: Reason(*r.reason)} }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

const (
	acquireSQL = `SELECT status, reason, lease_id, epoch, generation, holder, acquired_at, expires_at, expires_in, ttl
		FROM artifactd.acquire($1, $2, $3, $4, $5, $6, $7)`
	leaveLineSQL = `SELECT artifactd.leave_line($1, $2)`
	renewSQL     = `SELECT status, reason, lease_id, pointer, epoch, generation, holder, state, acquired_at, expires_at, expires_in, ttl
		FROM artifactd.renew($1, $2, $3, $4, $5)`
	leaseNowSQL = `SELECT status, reason, lease_id, pointer, epoch, generation, holder, state, acquired_at, expires_at, expires_in, ttl
		FROM artifactd.lease_now($1)`
	releaseSQL    = `SELECT status FROM artifactd.release($1)`
	breakLeaseSQL = `SELECT status FROM artifactd.break_lease($1, $2, $3)`
)

// Acquire takes the next generation of a pointer, which fences every earlier one at once. While
// somebody else's lease lives it waits in line for up to req.Wait, then fails with
// [*LeaseHeldError]. With an operation id it may be repeated: the same lease while that lives,
// [*LeaseLostError] afterwards, never a second one. [*OutcomeUnknownError] when the database did
// not say whether it happened; repeating the call or settling the operation tells.
func (c *Catalogue) Acquire(ctx context.Context, req AcquireRequest) (Lease, error) {
	if req.TTL == 0 {
		req.TTL = DefaultTTL
	}
	if err := cmpErr(CheckName(req.Pointer), checkHolder(req.Holder), checkTTL(req.TTL)); err != nil {
		return Lease{}, err
	}
	if req.Wait <= 0 {
		return c.acquireOnce(ctx, req)
	}
	return c.acquireInLine(ctx, req)
}

func (c *Catalogue) acquireOnce(ctx context.Context, req AcquireRequest) (Lease, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Lease{}, err
	}
	var operation, waiter *uuid.UUID
	if req.OperationID != uuid.Nil {
		operation = &req.OperationID
	}
	if req.waiter != uuid.Nil {
		waiter = &req.waiter
	}
	state := string(StateLeased)
	row := leaseRow{pointer: &req.Pointer, state: &state}
	err = c.decide(ctx, acquireSQL,
		[]any{req.Pointer, req.Holder, req.TTL.Seconds(), id, operation, acquireDigest(req), waiter},
		&row.status, &row.reason, &row.id, &row.epoch, &row.generation, &row.holder, &row.acquiredAt, &row.expiresAt, &row.expiresIn, &row.ttl)
	if err != nil {
		return Lease{}, unknownOutcome(req.OperationID, err)
	}
	switch *row.status {
	case "acquired":
		lease := row.lease()
		c.leases.Add(lease.ID, lease.Pointer)
		return lease, nil
	case "pointer-not-found":
		return Lease{}, ErrPointerNotFound
	case "pointer-retired":
		return Lease{}, ErrPointerRetired
	case "operation-mismatch":
		return Lease{}, ErrOperationMismatch
	case "lease-held":
		return Lease{}, row.held()
	case "in-line":
		return Lease{}, &inLineError{*row.held()}
	case "lease-lost":
		return Lease{}, row.lost()
	}
	return Lease{}, fmt.Errorf("acquire: unexpected status %q", *row.status)
}

// acquireDigest identifies what an acquisition asks for; how long it waits is not part of that.
func acquireDigest(req AcquireRequest) []byte {
	h := sha256.New()
	for _, s := range []string{"acquire", req.Pointer, req.Holder} {
		h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	h.Write(binary.AppendVarint(nil, int64(req.TTL)))
	return h.Sum(nil)
}

// Renew prolongs a live lease to ttl from now (its own ttl when zero), never shortens one, and
// never beyond [MaxLeaseLife] after its acquisition. [*LeaseLostError] when it has ended, which
// is then recorded for good; [ErrLeaseNotFound].
func (c *Catalogue) Renew(ctx context.Context, id uuid.UUID, token Token, ttl time.Duration) (Lease, error) {
	var wanted *float64
	if ttl != 0 {
		if err := checkTTL(ttl); err != nil {
			return Lease{}, err
		}
		s := ttl.Seconds()
		wanted = &s
	}
	var row leaseRow
	err := c.decide(ctx, renewSQL, []any{id, token.Epoch, token.Generation, wanted, MaxLeaseLife.Seconds()},
		&row.status, &row.reason, &row.id, &row.pointer, &row.epoch, &row.generation, &row.holder, &row.state,
		&row.acquiredAt, &row.expiresAt, &row.expiresIn, &row.ttl)
	if err != nil {
		return Lease{}, definite(err)
	}
	switch *row.status {
	case "acquired":
		return row.lease(), nil
	case "lease-not-found":
		return Lease{}, ErrLeaseNotFound
	case "lease-lost":
		return Lease{}, row.lost()
	}
	return Lease{}, fmt.Errorf("renew: unexpected status %q", *row.status)
}

// Lease tells how a lease stands. An end that nobody has recorded yet is told as what it is.
func (c *Catalogue) Lease(ctx context.Context, id uuid.UUID) (Lease, error) {
	row, err := c.leaseNow(ctx, id)
	if err != nil {
		return Lease{}, err
	}
	return row.lease(), nil
}

// LiveLease is [Catalogue.Lease] of a lease that lives, and [*LeaseLostError] of one that has ended.
// Nothing keeps it from ending right after.
func (c *Catalogue) LiveLease(ctx context.Context, id uuid.UUID) (Lease, error) {
	row, err := c.leaseNow(ctx, id)
	switch {
	case err != nil:
		return Lease{}, err
	case *row.status == "lease-lost":
		return Lease{}, row.lost()
	}
	return row.lease(), nil
}

func (c *Catalogue) leaseNow(ctx context.Context, id uuid.UUID) (leaseRow, error) {
	var row leaseRow
	err := c.pool.QueryRow(ctx, leaseNowSQL, id).Scan(
		&row.status, &row.reason, &row.id, &row.pointer, &row.epoch, &row.generation, &row.holder, &row.state,
		&row.acquiredAt, &row.expiresAt, &row.expiresIn, &row.ttl)
	if err != nil {
		return row, readFault(err)
	}
	if *row.status == "lease-not-found" {
		return row, ErrLeaseNotFound
	}
	return row, nil
}

// Release ends a lease, whether it was live or not, and no other. [ErrLeaseNotFound].
func (c *Catalogue) Release(ctx context.Context, id uuid.UUID) error {
	var status string
	if err := c.decide(ctx, releaseSQL, []any{id}, &status); err != nil {
		return definite(err)
	}
	if status == "lease-not-found" {
		return ErrLeaseNotFound
	}
	if name, ok := c.leases.Get(id); ok {
		c.changes.announce(name)
	}
	return nil
}

// BreakLease ends the lease of a pointer's newest generation, named by its token. It is done
// when that lease has ended already. [*LeaseLostError] with reason token-mismatch when another
// generation is the newest.
func (c *Catalogue) BreakLease(ctx context.Context, name string, token Token) error {
	var status string
	if err := c.decide(ctx, breakLeaseSQL, []any{name, token.Epoch, token.Generation}, &status); err != nil {
		return definite(err)
	}
	switch status {
	case "pointer-not-found":
		return ErrPointerNotFound
	case "token-mismatch":
		return &LeaseLostError{Reason: ReasonTokenMismatch}
	}
	c.changes.announce(name)
	return nil
}

// LeasePointer names the pointer that a lease belongs to, or [ErrLeaseNotFound]. It never changes.
func (c *Catalogue) LeasePointer(ctx context.Context, id uuid.UUID) (string, error) {
	if name, ok := c.leases.Get(id); ok {
		return name, nil
	}
	lease, err := c.Lease(ctx, id)
	if err != nil {
		return "", err
	}
	c.leases.Add(id, lease.Pointer)
	return lease.Pointer, nil
}

// unknownOutcome turns an unknown commit into the error that names the operation to settle.
func unknownOutcome(operation uuid.UUID, err error) error {
	if errors.Is(err, errUnknown) {
		return &OutcomeUnknownError{OperationID: operation, Cause: err}
	}
	return err
}
