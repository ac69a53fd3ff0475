package client

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// Lease is the right to publish one generation of a pointer, as last told by the service.
type Lease struct {
	types.Lease
	// sent is when the request was sent that this lease answers.
	sent time.Time
}

// EndsBefore is the earliest moment, by this machine's clock, at which the lease may end.
func (l Lease) EndsBefore() time.Time { return l.sent.Add(seconds(l.ExpiresInSeconds)) }

// AcquireOptions of [Client.Acquire].
type AcquireOptions struct {
	// Holder says who works, for people. Required, up to 200 bytes.
	Holder string
	// TTL is how long the lease lives without renewal; 0 means the service's default, a minute.
	TTL time.Duration
	// Wait is how long to wait for somebody else's lease to end.
	Wait time.Duration
	// OperationID makes the call repeatable; zero lets the client choose one.
	OperationID uuid.UUID
	// Held, when not nil, is told once and at once when somebody else holds the lease and is waited for:
	// who, and how long that lease has left unless it is renewed.
	Held func(*Problem)
}

// longestWait is what the service waits within one call.
const longestWait = 60 * time.Second

// Acquire takes the lease of a pointer. While somebody else holds it past o.Wait, the error is
// [ErrLeaseHeld] and its [*Problem] names the holder.
func (c *Client) Acquire(ctx context.Context, pointer string, o AcquireOptions) (Lease, error) {
	id, err := operationID(o.OperationID)
	if err != nil {
		return Lease{}, err
	}
	until := time.Now().Add(o.Wait)
	// A call that waits tells nothing until its wait is over, so the first one does not.
	first := o.Held != nil
	for {
		body := types.AcquireRequest{Holder: o.Holder, OperationId: &id}
		if o.TTL > 0 {
			ttl := o.TTL.Seconds()
			body.TtlSeconds = &ttl
		}
		if left := min(time.Until(until), longestWait); left > 0 && !first {
			wait := left.Seconds()
			body.WaitSeconds = &wait
		}
		lease, err := c.acquireOnce(ctx, pointer, body)
		if err == nil {
			return c.countAfresh(ctx, lease)
		}
		if !errors.Is(err, ErrLeaseHeld) || time.Until(until) <= 0 {
			return lease, err
		}
		if first {
			first = false
			held, _ := asProblem(err)
			o.Held(held)
			continue
		}
		if err := pauseAfter(ctx, err, time.Until(until)); err != nil {
			return Lease{}, err
		}
	}
}

// countAfresh renews a lease whose answer took long: the service may have waited for it, and what is
// left counts from before the request was sent, so that a ttl shorter than the wait would be over.
func (c *Client) countAfresh(ctx context.Context, l Lease) (Lease, error) {
	if time.Since(l.sent) < seconds(l.ExpiresInSeconds)/4 {
		return l, nil
	}
	renewed, err := c.Renew(ctx, l)
	if err != nil && !lostLease(err) {
		c.giveBack(ctx, l)
	}
	return renewed, err
}

func (c *Client) acquireOnce(ctx context.Context, pointer string, body types.AcquireRequest) (Lease, error) {
	var held time.Duration
	if body.WaitSeconds != nil {
		held = seconds(*body.WaitSeconds)
	}
	return ask(ctx, c, held, func(ctx context.Context) (Lease, error) {
		sent := time.Now()
		l, err := answer[types.Lease](c.raw.AcquireLease(ctx, pointer, body))
		return Lease{Lease: l, sent: sent}, err
	})
}

// pauseAfter waits a little after a refusal that will pass, at most the time that is left. The
// service has waited already where it can, so the pause only keeps a service that cannot from
// being asked without end.
func pauseAfter(ctx context.Context, err error, left time.Duration) error {
	pause := 100 * time.Millisecond
	if p, ok := asProblem(err); ok && p.ExpiresInSeconds > 0 {
		pause = min(max(pause, seconds(p.ExpiresInSeconds)), time.Second)
	}
	select {
	case <-time.After(min(pause, max(left, time.Millisecond))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Renew gives a lease its whole ttl again. [ErrLeaseLost] is final.
func (c *Client) Renew(ctx context.Context, l Lease) (Lease, error) {
	return ask(ctx, c, 0, func(ctx context.Context) (Lease, error) { return c.renewOnce(ctx, l) })
}

func (c *Client) renewOnce(ctx context.Context, l Lease) (Lease, error) {
	sent := time.Now()
	ttl := l.TtlSeconds
	renewed, err := answer[types.Lease](c.raw.RenewLease(ctx, l.LeaseId, types.RenewRequest{Token: l.Token, TtlSeconds: &ttl}))
	return Lease{Lease: renewed, sent: sent}, err
}

// Release ends a lease, whether it still lives or not. A successor's lease is not touched.
func (c *Client) Release(ctx context.Context, l Lease) error {
	return do(ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ReleaseLease(ctx, l.LeaseId) })
}

// LeaseStatus tells of a pointer's live lease without its id.
func (c *Client) LeaseStatus(ctx context.Context, pointer string) (types.LeaseStatus, error) {
	return get[types.LeaseStatus](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.GetPointerLease(ctx, pointer) })
}

// BreakLease ends the lease that has this token, for good.
func (c *Client) BreakLease(ctx context.Context, pointer, token string) error {
	return do(ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.BreakLease(ctx, pointer, types.BreakLeaseRequest{Token: token})
	})
}

// operationID is id, or a new one when it is zero.
func operationID(id uuid.UUID) (uuid.UUID, error) {
	if id != uuid.Nil {
		return id, nil
	}
	return uuid.NewV7()
}
