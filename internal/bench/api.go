package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
)

// maxWorkers is the largest number of workers of a benchmark, each with a connection of its own.
const maxWorkers = 64

// apiClient sends requests to the service and to its store. It does little itself, since it shares
// the machine with what it measures: no retries, no redirects, and of an answer only what the next
// request needs is decoded.
type apiClient struct {
	base      string
	bearer    string
	transport *http.Transport
	calls     atomic.Int64 // requests sent
}

func newAPIClient(base, token string, connections int) *apiClient {
	return &apiClient{base: base, bearer: "Bearer " + token, transport: newTransport(connections)}
}

// newTransport keeps every connection that it makes, up to a number to each host.
func newTransport(connections int) *http.Transport {
	return &http.Transport{
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, MaxIdleConns: 2 * connections,
		IdleConnTimeout: time.Minute, ResponseHeaderTimeout: 30 * time.Second, DisableCompression: true,
	}
}

// longestAnswer is more than any answer that is expected here has, in bytes.
const longestAnswer = 1 << 20

// send sends one request, reads the whole answer and wants it to have one of the 2xx statuses.
func (a *apiClient) send(req *http.Request) ([]byte, error) {
	a.calls.Add(1)
	resp, err := a.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer))
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 299) {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, body)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
	}
	return body, nil
}

// call sends in as JSON and decodes the answer into out, unless that is nil.
func (a *apiClient) call(ctx context.Context, method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", a.bearer)
	req.Header.Set("Content-Type", "application/json")
	answer, err := a.send(req)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

func (a *apiClient) createPointer(ctx context.Context, name string) error {
	return a.call(ctx, http.MethodPut, "/v1/pointers/"+name, types.PutPointerRequest{}, nil)
}

// lease is what of a lease the next requests need.
type lease struct {
	ID    string `json:"lease_id"`
	Token string `json:"token"`
}

func (a *apiClient) acquire(ctx context.Context, name string) (l lease, err error) {
	operation, err := uuid.NewV7()
	if err != nil {
		return l, err
	}
	in := types.AcquireRequest{Holder: "bench", OperationId: &operation}
	return l, a.call(ctx, http.MethodPost, "/v1/pointers/"+name+"/leases", in, &l)
}

// staged is what of a staged file the next requests need.
type staged struct {
	ArtifactID string  `json:"artifact_id"`
	Upload     *upload `json:"upload"`
}

type upload struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// filePath is the path of the one file that every version here has.
const filePath = "payload.bin"

func (a *apiClient) stage(ctx context.Context, l lease, digest artifacts.Digest, size int) (staged, error) {
	in := types.StageRequest{Token: l.Token, Files: []types.StageFile{{Path: filePath, Digest: digest.String(), Size: int64(size)}}}
	var out struct {
		Files []staged `json:"files"`
	}
	err := a.call(ctx, http.MethodPost, "/v1/leases/"+l.ID+"/files", in, &out)
	if err == nil && len(out.Files) != 1 {
		err = fmt.Errorf("stage: %d files for one", len(out.Files))
	}
	if err != nil {
		return staged{}, err
	}
	return out.Files[0], nil
}

// put sends a staged file's bytes straight to the store and has the service prove them.
func (a *apiClient) put(ctx context.Context, s staged, payload []byte) error {
	if s.Upload == nil {
		return fmt.Errorf("artifact %s is stored already: its bytes were to be sent", s.ArtifactID)
	}
	req, err := http.NewRequestWithContext(ctx, s.Upload.Method, s.Upload.URL, bytes.NewReader(payload))
	if err != nil {
		return err
	}
	for name, value := range s.Upload.Headers {
		req.Header.Set(name, value)
	}
	if _, err := a.send(req); err != nil {
		return err
	}
	return a.call(ctx, http.MethodPost, "/v1/artifacts/"+s.ArtifactID+"/complete", types.CompleteRequest{}, nil)
}

func (a *apiClient) publish(ctx context.Context, l lease) error {
	operation, err := uuid.NewV7()
	if err != nil {
		return err
	}
	files := types.FileCount(1)
	in := types.PublishRequest{OperationId: operation, Token: l.Token, FileCount: &files}
	return a.call(ctx, http.MethodPost, "/v1/leases/"+l.ID+"/publish", in, nil)
}

// publishNew publishes bytes that the pointer's current version does not have.
func (a *apiClient) publishNew(ctx context.Context, name string, payload []byte) error {
	l, err := a.acquire(ctx, name)
	if err != nil {
		return err
	}
	s, err := a.stage(ctx, l, artifacts.DigestOf(payload), len(payload))
	if err != nil {
		return err
	}
	if err := a.put(ctx, s, payload); err != nil {
		return err
	}
	return a.publish(ctx, l)
}

// publishSame publishes the bytes of the pointer's current version once more, which are adopted.
func (a *apiClient) publishSame(ctx context.Context, name string, digest artifacts.Digest, size int) error {
	l, err := a.acquire(ctx, name)
	if err != nil {
		return err
	}
	return a.publishAdopted(ctx, l, digest, size)
}

func (a *apiClient) publishAdopted(ctx context.Context, l lease, digest artifacts.Digest, size int) error {
	s, err := a.stage(ctx, l, digest, size)
	if err != nil {
		return err
	}
	if s.Upload != nil {
		return fmt.Errorf("lease %s: the current version's bytes were not adopted", l.ID)
	}
	return a.publish(ctx, l)
}

// counted adds to a side's sample how many requests it sent.
func (a *apiClient) counted(run side) side {
	return func(ctx context.Context, d time.Duration) (sample, error) {
		before := a.calls.Load()
		s, err := run(ctx, d)
		s.calls = a.calls.Load() - before
		return s, err
	}
}
