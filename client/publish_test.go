package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

var (
	leaseID = uuid.MustParse("018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f")
	opID    = uuid.MustParse("018f3c2e-0000-7000-8000-000000000001")
)

func heldLease() client.Lease {
	return client.Lease{Lease: types.Lease{LeaseId: leaseID, Pointer: "a.b", Token: "1.2", TtlSeconds: 60, ExpiresInSeconds: 60}}
}

const (
	publishRoute = "POST /v1/leases/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f/publish"
	settleRoute  = "POST /v1/operations/018f3c2e-0000-7000-8000-000000000001/settle"
)

func published() http.HandlerFunc {
	return replies(200, types.Published{Outcome: "published", OperationId: opID, Version: "1.2"})
}

func settled(outcome string, members ...string) http.HandlerFunc {
	op := map[string]any{"operation_id": opID, "outcome": outcome}
	for i := 0; i < len(members); i += 2 {
		op[members[i]] = members[i+1]
	}
	return replies(200, op)
}

func TestPublishAsksAgainWithTheSameOperation(t *testing.T) {
	s := newService(t)
	var ids []string
	remember := func(next http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var body types.PublishRequest
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			ids = append(ids, body.OperationId.String())
			next(w, r)
		}
	}
	s.on(publishRoute, remember(breaksOff), remember(refuses(504, "outcome-unknown")), remember(published()))
	got, err := s.client(t).Publish(t.Context(), heldLease(), client.Publication{OperationID: opID})
	if err != nil || got.Version != "1.2" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if len(ids) != 3 || ids[0] != opID.String() || ids[1] != ids[0] || ids[2] != ids[0] {
		t.Errorf("operation ids sent: %v", ids)
	}
}

func TestPublishSettlesWhenItsTimeEnds(t *testing.T) {
	for _, test := range []struct {
		name   string
		settle http.HandlerFunc
		want   error
		reason string
	}{
		{"published", settled("published", "version", "1.2"), nil, ""},
		{"refused", settled("refused", "reason", "superseded"), client.ErrPublishRefused, "superseded"},
		{"aborted", settled("aborted"), client.ErrPublishRefused, "aborted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newService(t)
			ctx, cancel := context.WithCancel(t.Context())
			s.on(publishRoute, func(w http.ResponseWriter, r *http.Request) {
				cancel() // the caller gives up after the request has arrived
				hangs(w, r)
			})
			s.on(settleRoute, breaksOff, refuses(504, "outcome-unknown"), test.settle)
			got, err := s.client(t).Publish(ctx, heldLease(), client.Publication{OperationID: opID})
			if !errors.Is(err, test.want) {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if test.want == nil && got.Version != "1.2" {
				t.Errorf("published %+v", got)
			}
			var p *client.Problem
			if errors.As(err, &p) && (p.Reason != test.reason || p.OperationID != opID.String()) {
				t.Errorf("problem %+v", p)
			}
		})
	}
}

func TestPublishDoesNotSettleWhatWasDecided(t *testing.T) {
	for code, status := range map[client.Code]int{
		client.ErrPublishRefused: 409, client.ErrOperationMismatch: 422, client.ErrForbidden: 403,
	} {
		s := newService(t)
		s.on(publishRoute, refuses(status, string(code), "reason", "superseded", "current_token", "1.3"))
		_, err := s.client(t).Publish(t.Context(), heldLease(), client.Publication{OperationID: opID})
		if !errors.Is(err, code) {
			t.Errorf("%s: error %v", code, err)
		}
		if n := s.count(publishRoute); n != 1 {
			t.Errorf("%s: asked %d times", code, n)
		}
	}
}

// A database that was restarted or failed over is compared with the bucket first: seconds in which a
// publish is not lost.
func TestPublishOutlivesAChangeOfHistory(t *testing.T) {
	s := newService(t)
	s.on(publishRoute, refuses(503, "history-changed"), refuses(503, "history-changed"), published())
	got, err := s.client(t).Publish(t.Context(), heldLease(), client.Publication{OperationID: opID})
	if err != nil || got.Version != "1.2" {
		t.Errorf("published %+v, %v", got, err)
	}
}

// What a database is known to have lost waits for a person: whoever publishes is told at once.
func TestPublishDoesNotWaitForAnOperator(t *testing.T) {
	s := newService(t)
	s.on(publishRoute, refuses(503, "history-changed", "operator_required", true))
	_, err := s.client(t).Publish(t.Context(), heldLease(), client.Publication{OperationID: opID})
	var p *client.Problem
	if !errors.Is(err, client.ErrHistoryChanged) || errors.Is(err, client.ErrOutcomeUnknown) || !errors.As(err, &p) || !p.OperatorRequired {
		t.Errorf("error %v", err)
	}
	if n := s.count(publishRoute); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// An answer that was lost before is not undone by one that says that nothing is decided now.
func TestPublishThatMayHaveHappenedBeforeTheLoss(t *testing.T) {
	s := newService(t)
	waits := refuses(503, "history-changed", "operator_required", true)
	s.on(publishRoute, breaksOff, waits)
	s.on(settleRoute, waits)
	_, err := s.client(t).Publish(t.Context(), heldLease(), client.Publication{OperationID: opID})
	if !errors.Is(err, client.ErrOutcomeUnknown) {
		t.Errorf("error %v", err)
	}
	if n := s.count(settleRoute); n != 1 {
		t.Errorf("settled %d times", n)
	}
}

func TestOutcomeUnknownNamesTheOperation(t *testing.T) {
	s := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	s.on(publishRoute, func(w http.ResponseWriter, r *http.Request) { cancel(); hangs(w, r) })
	s.on(settleRoute, refuses(403, "forbidden"))
	_, err := s.client(t).Publish(ctx, heldLease(), client.Publication{OperationID: opID})
	var p *client.Problem
	if !errors.Is(err, client.ErrOutcomeUnknown) || !errors.As(err, &p) || p.OperationID != opID.String() {
		t.Fatalf("error %v", err)
	}
}

func TestAServiceThatIsNotThereDecidedNothing(t *testing.T) {
	s := newService(t)
	c := s.client(t)
	s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Publish(ctx, heldLease(), client.Publication{OperationID: opID})
	var transport *client.TransportError
	if errors.Is(err, client.ErrOutcomeUnknown) || !errors.As(err, &transport) {
		t.Fatalf("error %v", err)
	}
}

func TestAcquireWaitsForALease(t *testing.T) {
	const route = "POST /v1/pointers/a.b/leases"
	s := newService(t)
	held := refuses(423, "lease-held", "holder", "somebody", "current_token", "1.1", "expires_in_seconds", 0.01)
	lease := heldLease().Lease
	s.on(route, held, breaksOff, held, replies(201, lease))
	got, err := s.client(t).Acquire(t.Context(), "a.b", client.AcquireOptions{Holder: "me", Wait: 10 * time.Second})
	if err != nil || got.Token != "1.2" {
		t.Fatalf("got %+v, %v", got, err)
	}
	if left := time.Until(got.EndsBefore()); left < 50*time.Second || left > time.Minute {
		t.Errorf("the lease ends in %s", left)
	}
	s.on(route, held)
	_, err = s.client(t).Acquire(t.Context(), "a.b", client.AcquireOptions{Holder: "me"})
	var p *client.Problem
	if !errors.Is(err, client.ErrLeaseHeld) || !errors.As(err, &p) || p.Holder != "somebody" || p.CurrentToken != "1.1" {
		t.Errorf("error %v", err)
	}
}

// TestAcquireThatWaitedLongerThanTheTTL: the lease began when the wait was over, though its time
// left counts from before the request was sent.
func TestAcquireThatWaitedLongerThanTheTTL(t *testing.T) {
	const (
		route   = "POST /v1/pointers/a.b/leases"
		renew   = "POST /v1/leases/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f/renew"
		release = "DELETE /v1/leases/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f"
	)
	s := newService(t)
	lease := heldLease().Lease
	lease.TtlSeconds, lease.ExpiresInSeconds = 1, 1
	s.on(route, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(1200 * time.Millisecond)
		replies(201, lease)(w, r)
	})
	s.on(renew, replies(200, lease), refuses(409, "lease-lost", "reason", "broken"), refuses(401, "unauthenticated"))
	s.on(release, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	acquire := func() (client.Lease, error) {
		return s.client(t).Acquire(t.Context(), "a.b", client.AcquireOptions{Holder: "me", TTL: time.Second, Wait: 10 * time.Second})
	}
	got, err := acquire()
	if left := time.Until(got.EndsBefore()); err != nil || left < 500*time.Millisecond {
		t.Errorf("the lease ends in %s, %v", left, err)
	}
	if _, err := acquire(); !errors.Is(err, client.ErrLeaseLost) || s.count(release) != 0 {
		t.Errorf("lost at once: %v, released %d times", err, s.count(release))
	}
	if _, err := acquire(); !errors.Is(err, client.ErrUnauthenticated) || s.count(release) != 1 {
		t.Errorf("not renewed: %v, released %d times", err, s.count(release))
	}
}
