package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// frozenFirst serves handler, except that the first request finds a server that takes and sends
// nothing any more.
func frozenFirst(t *testing.T, freeze, handler http.HandlerFunc) (*Client, *atomic.Int32) {
	t.Helper()
	var requests atomic.Int32
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 1 {
			handler(w, r)
			return
		}
		freeze(w, r)
		<-over
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	c, err := New(server.URL, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.met.Store(true)         // whoever transfers has spoken with it: it is not given up soon
	c.stall = 2 * time.Second // that of the second request too, which must not be taken for frozen
	return c, &requests
}

// TestUploadLeavesAFrozenConnection: no time limit of a whole request may end a long upload, so only
// the lack of progress tells that nobody is there.
func TestUploadLeavesAFrozenConnection(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("x"), 32<<20) // more than the buffers of a connection take
	received := make(chan int64, 1)
	c, requests := frozenFirst(t, func(http.ResponseWriter, *http.Request) {}, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		received <- n
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	})
	method, url, ctx := http.MethodPut, "/v1/artifacts/x/content", t.Context()
	file := types.StagedFile{Upload: &types.Upload{Kind: "single", Method: &method, Url: &url}}
	var sent atomic.Int64
	src := Source{Path: "f", Size: int64(len(body)), Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := c.Upload(ctx, file, src, func(n int64) { sent.Add(n) }); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != src.Size || requests.Load() != 2 || sent.Load() != src.Size {
		t.Errorf("%d bytes arrived with request %d, %d are told", got, requests.Load(), sent.Load())
	}
}

func TestDownloadLeavesAFrozenConnection(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789"), 1000)
	c, requests := frozenFirst(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:3000])
		w.(http.Flusher).Flush()
	}, func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	})
	sum := sha256.Sum256(body)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	err := c.Download(ctx, types.File{Path: "f", Size: int64(len(body)), Digest: "sha256:" + hex.EncodeToString(sum[:]), Url: "/v1/file"}, &out, nil)
	if err != nil || !bytes.Equal(out.Bytes(), body) || requests.Load() != 2 {
		t.Errorf("%d bytes with %d requests: %v", out.Len(), requests.Load(), err)
	}
}

// slowWriter takes its time, as a person does who reads page by page.
type slowWriter struct{ pause time.Duration }

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	return len(p), nil
}

// TestASlowDestinationIsNoFrozenConnection: only the other side's silence counts.
func TestASlowDestinationIsNoFrozenConnection(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789"), 4000)
	c, requests := frozenFirst(t, nil, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	requests.Store(1)
	c.stall = time.Second
	sum := sha256.Sum256(body)
	f := types.File{Size: int64(len(body)), Digest: "sha256:" + hex.EncodeToString(sum[:]), Url: "/v1/file"}
	if err := c.Download(t.Context(), f, slowWriter{1500 * time.Millisecond}, nil); err != nil || requests.Load() != 2 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}

// TestStalledTransferIsTold: when nothing helps, the error says what was wrong, once.
func TestStalledTransferIsTold(t *testing.T) {
	ctx, idle := stopWhenIdle(t.Context(), time.Millisecond, "h")
	defer idle.end()
	idle.watch()
	<-ctx.Done()
	var transport *TransportError
	if cause := context.Cause(ctx); !errors.As(cause, &transport) || cause.Error() != "no answer from h: the connection moves no bytes any more" || !worthRetrying(cause) {
		t.Errorf("cause %v", cause)
	}
}
