package pointer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
)

// throughProxy is a worker whose connections go through a proxy that can fail.
func (w *world) throughProxy(opts Options) (*Catalogue, *testenv.Proxy) {
	w.t.Helper()
	u, err := url.Parse(w.db.ServiceURL)
	if err != nil {
		w.t.Fatal(err)
	}
	socket := u.Query().Get("host")
	port := u.Query().Get("port")
	if port == "" {
		port = "5432"
	}
	proxy := testenv.NewProxy(w.t, socket+"/.s.PGSQL."+port)
	host, tcpPort := splitAddr(proxy.Addr())
	q := u.Query()
	q.Set("host", host)
	q.Set("port", tcpPort)
	u.RawQuery = q.Encode()
	return w.workerAt(u.String(), opts), proxy
}

func splitAddr(addr string) (host, port string) {
	u := url.URL{Host: addr}
	return u.Hostname(), u.Port()
}

func TestScheduleU1AnswerToPublishIsLost(t *testing.T) {
	faults := map[string]testenv.Fault{
		"black hole": {HoldToClient: true},
		"reset":      {LoseAnswer: true},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.pointer("p", "q")
			a, proxy := w.throughProxy(Options{DecisionTimeout: 5 * time.Second})
			other := w.worker()
			// The statement is prepared by now, so that the lost answer is the publish's own.
			w.published(a, w.ready(a, "q", "A"))
			l := w.ready(a, "p", "A")
			req := publish(l)
			proxy.Set(fault)
			_, err := a.Publish(t.Context(), req)
			var unknown *OutcomeUnknownError
			if !errors.As(err, &unknown) || unknown.OperationID != req.OperationID {
				t.Fatalf("got %v, want outcome unknown of this operation", err)
			}
			proxy.Set(testenv.Fault{})
			out, err := other.Settle(t.Context(), req.OperationID, "p")
			if err != nil || out.Kind != "published" || len(out.Versions) != 1 || out.Versions[0].Version != l.Token {
				t.Fatalf("settled as %+v, %v; want published %s", out, err, l.Token)
			}
			versions, err := other.Publish(t.Context(), req)
			if err != nil || len(versions) != 1 || versions[0].Version != l.Token {
				t.Errorf("the same publish again: %v, %v", versions, err)
			}
			w.shows("p", "1.1")
			if n := w.count(`SELECT count(*) FROM artifactd.generation WHERE state = 'published' AND generation_id = $1`, l.ID); n != 1 {
				t.Errorf("%d publications, want 1", n)
			}
		})
	}
}

func TestScheduleU2SettledAsAbortedStaysAborted(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	l := w.ready(a, "p", "A")
	req := publish(l)
	blocker := w.hold("p")
	answer := make(chan error, 1)
	go func() { _, err := a.Publish(context.Background(), req); answer <- err }()
	w.awaitBlocked(1)
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	if err := <-answer; err == nil {
		t.Fatal("published by a backend that was killed before its commit")
	}
	for range 2 {
		out, err := b.Settle(t.Context(), req.OperationID, "p")
		if err != nil || out.Kind != "aborted" {
			t.Fatalf("settled as %+v, %v; want aborted", out, err)
		}
	}
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonAborted)
	w.shows("p", "")
	w.published(a, l) // the lease is still good, under a new operation
	out, err := b.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "aborted" {
		t.Errorf("later: %+v, %v; want aborted", out, err)
	}
}

func TestScheduleU3TombstoneBeatsTheQueuedPublish(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	l := w.ready(a, "p", "A")
	req := publish(l)
	blocker := w.hold("p")
	ctx, hangUp := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { _, err := a.Publish(ctx, req); answer <- err }()
	w.awaitBlocked(1)
	hangUp()
	out, err := b.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "aborted" {
		t.Fatalf("settled as %+v, %v; want aborted", out, err)
	}
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err == nil {
		t.Error("the ghost published")
	}
	w.await("the ghost is through", func() bool {
		return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()`) == 0
	})
	w.shows("p", "")
	w.fate(l, StateLeased)
}

func TestSettleWaitsForThePublishInFlight(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a, b := w.worker(), w.worker()
	l := w.ready(a, "p", "A")
	req := publish(l)
	args, err := publishArgs(&req)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := w.db.ConnectService(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var status string
	var answer []byte
	if err := tx.QueryRow(t.Context(), publishSQL, append(args, false, InlineSealFiles)...).Scan(&status, &answer); err != nil {
		t.Fatal(err)
	}
	settled := make(chan Outcome, 1)
	go func() {
		out, err := b.Settle(context.Background(), req.OperationID, "p")
		if err != nil {
			t.Error(err)
		}
		settled <- out
	}()
	w.awaitBlocked(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := <-settled; out.Kind != "published" {
		t.Errorf("settled as %s, want published", out.Kind)
	}
}

func TestScheduleU4OneOperationIDForTwoRequests(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a := w.worker()
	lp, lq := w.ready(a, "p", "A"), w.ready(a, "q", "A")
	first := publish(lp)
	first.Leases[0].Metadata = json.RawMessage(`{"build": 1, "by": "ci"}`)
	if _, err := a.Publish(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	same := first
	same.Leases = []PublishLease{first.Leases[0]}
	same.Leases[0].Metadata = json.RawMessage(`{"by":"ci","build":1}`)
	if _, err := a.Publish(t.Context(), same); err != nil {
		t.Errorf("the same metadata, written otherwise: %v", err)
	}
	revision := int64(1)
	for name, change := range map[string]PublishLease{
		"another lease":    {LeaseID: lq.ID, Token: lq.Token, Metadata: first.Leases[0].Metadata},
		"another token":    {LeaseID: lp.ID, Token: Token{1, 7}, Metadata: first.Leases[0].Metadata},
		"other metadata":   {LeaseID: lp.ID, Token: lp.Token, Metadata: json.RawMessage(`{"build":2}`)},
		"no metadata":      {LeaseID: lp.ID, Token: lp.Token},
		"another revision": {LeaseID: lp.ID, Token: lp.Token, Metadata: first.Leases[0].Metadata, SourceRevision: &revision},
	} {
		req := PublishRequest{OperationID: first.OperationID, Leases: []PublishLease{change}}
		if _, err := a.Publish(t.Context(), req); !errors.Is(err, ErrOperationMismatch) {
			t.Errorf("%s: %v, want a mismatch", name, err)
		}
	}
	w.shows("p", "1.1")
	w.shows("q", "")
	w.fate(lq, StateLeased)
}

func TestScheduleU4OtherFilesAfterARefusal(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	w.stage(a, l, "", "one")
	req := publish(l)
	_, err := a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonIncomplete)
	w.stored(a, l, "other bytes", "one")
	if _, err := a.Publish(t.Context(), req); !errors.Is(err, ErrOperationMismatch) {
		t.Errorf("other files under the same operation: %v, want a mismatch", err)
	}
	w.shows("p", "")
}

func TestScheduleU4AtOnce(t *testing.T) {
	w := newWorld(t)
	names := make([]string, 12)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i)
	}
	w.pointer(names...)
	a, b := w.worker(), w.worker()
	id := uuid.New()
	var wg sync.WaitGroup
	var mu sync.Mutex
	published, mismatched := 0, 0
	for i, name := range names {
		c := []*Catalogue{a, b}[i%2]
		l := w.ready(c, name, "A")
		wg.Go(func() {
			req := publish(l)
			req.OperationID = id
			_, err := c.Publish(context.Background(), req)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				published++
			case errors.Is(err, ErrOperationMismatch):
				mismatched++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if published != 1 || mismatched != len(names)-1 {
		t.Errorf("%d published and %d mismatched, of %d", published, mismatched, len(names))
	}
	if n := w.count(`SELECT count(*) FROM artifactd.pointer WHERE current_id IS NOT NULL`); n != 1 {
		t.Errorf("%d pointers show something, want 1", n)
	}
}

func TestScheduleU5ARefusalStaysTheAnswer(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	staged := w.stage(a, l, "", "one", "two")
	req := publish(l)
	_, err := a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonIncomplete)
	for _, f := range staged {
		if err := a.MarkStored(t.Context(), f.Artifact.ID, VerifiedByStore); err != nil {
			t.Fatal(err)
		}
	}
	_, err = a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonIncomplete)
	out, err := a.Settle(t.Context(), req.OperationID, "p")
	if err != nil || out.Kind != "refused" || out.Refusals[0].Reason != ReasonIncomplete {
		t.Errorf("settled as %+v, %v", out, err)
	}
	w.shows("p", "")
	w.published(a, l)
	w.shows("p", "1.1")
}

func TestScheduleS5PublishNeedsEveryFile(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "A")
	_, err := a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonIncomplete) // no files at all

	staged := w.stage(a, l, "", "one", "two")
	if err := a.MarkStored(t.Context(), staged[0].Artifact.ID, VerifiedByStore); err != nil {
		t.Fatal(err)
	}
	_, err = a.Publish(t.Context(), publish(l))
	refusedFor(t, err, ReasonIncomplete)
	if err := a.MarkStored(t.Context(), staged[1].Artifact.ID, VerifiedByStore); err != nil {
		t.Fatal(err)
	}
	req, three := publish(l), 3
	req.Leases[0].FileCount = &three
	_, err = a.Publish(t.Context(), req)
	refusedFor(t, err, ReasonIncomplete) // a file that the worker means is not staged
	w.shows("p", "")
	w.published(a, l)
	w.shows("p", "1.1")
}

func TestScheduleU7CancelledCallsLeaveNoHalfState(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.ready(a, "p", "A")
	file := []StageFile{{Path: "late", Digest: artifacts.DigestOf([]byte("late")), Size: 4}}
	calls := map[string]func(context.Context) error{
		"stage":   func(ctx context.Context) error { _, err := a.Stage(ctx, l.ID, l.Token, file); return err },
		"publish": func(ctx context.Context) error { _, err := a.Publish(ctx, publish(l)); return err },
		"renew":   func(ctx context.Context) error { _, err := a.Renew(ctx, l.ID, l.Token, 0); return err },
		"acquire": func(ctx context.Context) error {
			_, err := a.Acquire(ctx, AcquireRequest{Pointer: "p", Holder: "x"})
			return err
		},
		"settle": func(ctx context.Context) error { _, err := a.Settle(ctx, uuid.New(), "p"); return err },
	}
	for name, call := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", name, err)
		}
	}
	w.await("every connection is back", func() bool { return a.pool.Stat().AcquiredConns() == 0 })
	if n := w.count(`SELECT count(*) FROM artifactd.operation`); n != 0 {
		t.Errorf("%d outcomes recorded by cancelled calls", n)
	}
	w.fate(l, StateLeased)
	w.published(a, l)
}

func TestScheduleU8BadRequestsChangeNothing(t *testing.T) {
	w := newWorld(t)
	w.pointer("p", "q")
	a := w.worker()
	lp, lq := w.ready(a, "p", "A"), w.ready(a, "q", "A")
	ctx := t.Context()
	try := func(l ...PublishLease) error {
		_, err := a.Publish(ctx, PublishRequest{OperationID: uuid.New(), Leases: l})
		return err
	}
	refusedFor(t, try(PublishLease{LeaseID: lp.ID, Token: Token{1, 99}}), ReasonTokenMismatch)
	if err := try(PublishLease{LeaseID: uuid.New(), Token: lp.Token}); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("unknown lease: %v", err)
	}
	invalidField(t, try(), "leases")
	invalidField(t, try(make([]PublishLease, 1000)...), "leases")
	invalidField(t, try(PublishLease{LeaseID: lp.ID, Token: lp.Token}, PublishLease{LeaseID: lp.ID, Token: lp.Token}), "leases[")
	big, err := json.Marshal(map[string]string{"k": string(make([]byte, MaxMetadataBytes))})
	if err != nil {
		t.Fatal(err)
	}
	invalidField(t, try(PublishLease{LeaseID: lp.ID, Token: lp.Token, Metadata: big}), "metadata")
	if err := a.Release(ctx, lp.ID); err != nil {
		t.Fatal(err)
	}
	lp2 := w.ready(a, "p", "A")
	invalidField(t, try(PublishLease{LeaseID: lp.ID, Token: lp.Token}, PublishLease{LeaseID: lp2.ID, Token: lp2.Token}), "leases")
	_, err = a.Publish(ctx, PublishRequest{Leases: []PublishLease{{LeaseID: lq.ID, Token: lq.Token}}})
	invalidField(t, err, "operation_id")
	w.shows("p", "")
	w.shows("q", "")
	w.fate(lp2, StateLeased)
	w.fate(lq, StateLeased)
}
