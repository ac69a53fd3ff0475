package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/internal/faultproxy"
	"github.com/artifactd/artifactd/pointer"
)

// reply is the union of all answers that are looked at.
type reply struct {
	Code, Reason, Detail, Outcome, Holder, State string
	Token, Version                               string
	CurrentToken                                 string    `json:"current_token"`
	LeaseID                                      string    `json:"lease_id"`
	ExpiresAt                                    time.Time `json:"expires_at"`
	Live                                         bool
	Lease                                        *reply
	Refusals                                     []struct{ Pointer, Reason string }
	Versions                                     []struct{ Pointer, Version string }
	Items                                        []struct{ Name, Code, Version string }
	Files                                        []struct {
		ArtifactID string `json:"artifact_id"`
		Path       string
		Digest     string
		State      string
		Upload     signedUpload
	}
}

// signedUpload is a request that stores a file's bytes, as the service signed it. One through the
// service itself has a path for a URL, and none that is used here.
type signedUpload struct {
	Method, URL string
	Headers     map[string]string
}

// direct reports whether the bytes go to the store itself.
func (u signedUpload) direct() bool { return strings.HasPrefix(u.URL, "http") }

// answer is what came back of one request. Status 0: nothing did.
type answer struct {
	reply
	status    int
	call, ret int64
}

// answers by what they say about a call that changes something.
func (a answer) unavailable() bool { return a.status == http.StatusServiceUnavailable }
func (a answer) silent() bool      { return a.status == 0 || a.status == http.StatusGatewayTimeout }

// actor is a worker or reader with its own randomness.
type actor struct {
	c      *campaign
	id     int
	source *rand.ChaCha8
	rng    *rand.Rand
	serial int

	// off the record: what it does to its pointers is no part of the histories.
	unrecorded bool
	ttl        time.Duration // of the leases that it acquires; 0 for a random one
	requests   []*request
	leases     []lease               // the last few
	shown      map[int]pointer.Token // by pointer, as last seen
}

// newActor derives an actor's randomness from the campaign's seed.
func newActor(c *campaign, id int) *actor {
	a := &actor{c: c, id: id, source: seeded(c.options.seed, id), shown: map[int]pointer.Token{}}
	a.rng = rand.New(a.source)
	return a
}

func seeded(seed uint64, stream int) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(stream))
	return rand.NewChaCha8(key)
}

// chance is true in percent of 100 cases.
func (a *actor) chance(percent float64) bool { return a.rng.Float64()*100 < percent }

func (a *actor) between(low, high time.Duration) time.Duration {
	return low + time.Duration(a.rng.Int64N(int64(high-low)))
}

func (a *actor) uuid() uuid.UUID {
	id, err := uuid.NewRandomFromReader(a.source)
	if err != nil {
		panic(err) // a generator in memory does not fail
	}
	return id
}

const (
	// callTimeout is longer than the service waits for its database.
	callTimeout = 25 * time.Second
	// Shares of calls, in percent.
	hangUps   = 1.0
	tripShare = 4.0
)

// send makes one call through a random replica. One with an operation id may have its decision hit
// by a fault on the way to the database or back.
func (a *actor) send(method, path string, body any, operation uuid.UUID, header ...string) answer {
	r := a.c.stack.replicas[a.rng.IntN(len(a.c.stack.replicas))]
	patience := callTimeout
	if a.chance(hangUps) {
		patience = a.between(100*time.Microsecond, 5*time.Millisecond)
	}
	if operation != uuid.Nil && a.chance(tripShare) {
		disarm := a.arm(r.proxy, operation, &patience)
		defer disarm()
	}
	out := a.exchange(r, method, path, body, patience, header)
	a.c.count(method, out)
	if !out.unavailable() && !out.silent() {
		a.c.answered.Add(1)
	}
	if out.unavailable() {
		time.Sleep(settlePause) // as any caller would: it takes the machine's time from those who recover
	}
	return out
}

// exchange is the call itself; what broke, if something did, makes no difference.
func (a *actor) exchange(r *replica, method, path string, body any, patience time.Duration, header []string) answer {
	var payload io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		payload = bytes.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		if err != nil {
			panic(err) // of our own plain maps and structs
		}
		payload = bytes.NewReader(encoded)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, payload)
	if err != nil {
		panic(err) // of our own URLs
	}
	req.Header.Set("Authorization", "Bearer "+a.c.stack.token)
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	out := answer{call: a.c.clock.now()}
	resp, err := a.c.http.Do(req)
	if err == nil {
		defer resp.Body.Close()
		err = readReply(resp, &out.reply)
	}
	out.ret = a.c.clock.now()
	switch {
	case err == nil:
		out.status = resp.StatusCode
	case ctx.Err() != nil && patience < callTimeout:
		a.c.faults.add("client hangs up")
	}
	return out
}

func readReply(resp *http.Response, out *reply) error {
	b, err := io.ReadAll(resp.Body)
	if err != nil || len(b) == 0 || resp.StatusCode == http.StatusNotModified {
		return err
	}
	return json.Unmarshal(b, out)
}

// arm prepares a fault for the decision on an operation: its id is what the service sends to the
// database with it. What it returns is to be called after the call.
func (a *actor) arm(proxy *faultproxy.Proxy, operation uuid.UUID, patience *time.Duration) func() {
	name, fault := "", faultproxy.Fault{}
	lift := a.chance(50)
	switch a.rng.IntN(5) {
	case 0, 1:
		name, fault = "answer to commit lost", faultproxy.Fault{LoseAnswer: true}
	case 2:
		name, fault = "reset before commit", faultproxy.Fault{Reset: true}
	case 3:
		name, fault = "answer to commit black-holed", faultproxy.Fault{HoldToClient: true}
	case 4:
		name, fault = "decision black-holed", faultproxy.Fault{HoldToServer: true}
	}
	hold := a.between(20*time.Millisecond, 700*time.Millisecond)
	if a.chance(50) {
		// Gone before it is over: what was held then lands behind the settling.
		*patience = a.between(5*time.Millisecond, 100*time.Millisecond)
	}
	trip := proxy.Arm(operation[:], fault)
	over := make(chan struct{})
	a.c.trips.Go(func() {
		select {
		case <-trip.Tripped():
			a.c.faults.add(name)
			time.Sleep(hold)
		case <-over:
		}
		if lift {
			trip.Lift()
		} else {
			trip.Break()
		}
	})
	return func() { close(over) }
}
