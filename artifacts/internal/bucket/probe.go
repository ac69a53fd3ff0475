package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// probeTTL is the life of the probe's URLs.
const probeTTL = time.Minute

// DigestProbe finds out, once, whether a store refuses presigned PUTs whose bytes do not hash to
// the signed SHA-256: of objects, and of parts.
type DigestProbe struct {
	mu              sync.Mutex
	known, enforced bool
}

// prober is one run of the probe.
type prober struct {
	artifacts.Store // signs for this process's endpoint
	client          *http.Client
	prefix          string
}

var probeRight, probeWrong = []byte("artifactd probe: right"), []byte("artifactd probe: wrong")

// Ask answers from memory or asks the store, by trying: it PUTs with presigned URLs the right
// bytes, and others of the same length, under "<prefix>probe/". Only when the first succeeds does
// the refusal of the second mean anything. local is the store with presigned URLs for this
// process; those for others may name a host that cannot be reached from here.
func (p *DigestProbe) Ask(ctx context.Context, local artifacts.Store, client *http.Client, prefix string) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known {
		return p.enforced, nil
	}
	run := prober{Store: local, client: client, prefix: prefix}
	enforced, err := run.object(ctx)
	if err == nil && enforced {
		enforced, err = run.part(ctx)
	}
	if err != nil {
		return false, err
	}
	p.known, p.enforced = true, enforced
	return enforced, nil
}

// upload is a new object to try with.
func (p prober) upload() (artifacts.Upload, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return artifacts.Upload{}, err
	}
	return artifacts.Upload{
		Key: p.prefix + "probe/" + id.String(), Digest: artifacts.DigestOf(probeRight), Size: int64(len(probeRight)),
		ContentType: "application/octet-stream", Metadata: map[string]string{"artifactd-probe": "1"},
	}, nil
}

// object tries single PUTs. Each has a key of its own, so that If-None-Match refuses neither.
func (p prober) object(ctx context.Context) (bool, error) {
	return verdict(func(body []byte) (code int, err error) {
		u, err := p.upload()
		if err != nil {
			return 0, err
		}
		req, err := p.SignPut(ctx, u, probeTTL)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, p.remove(ctx, u.Key)) }()
		return p.send(ctx, req, body)
	})
}

// part tries PUTs of a part. A store without multipart uploads will never see one.
func (p prober) part(ctx context.Context) (enforced bool, err error) {
	u, err := p.upload()
	if err != nil {
		return false, err
	}
	id, err := p.CreateMultipart(ctx, u)
	if errors.Is(err, artifacts.ErrNoMultipart) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	m := artifacts.Multipart{Key: u.Key, UploadID: id}
	defer func() { err = errors.Join(err, p.AbortMultipart(ctx, m)) }()
	req, err := p.SignPart(ctx, m, artifacts.Part{Number: 1, Size: u.Size, SHA256: u.Digest}, probeTTL)
	if err != nil {
		return false, err
	}
	return verdict(func(body []byte) (int, error) { return p.send(ctx, req, body) })
}

// verdict tries the right bytes, then the wrong ones.
func verdict(try func([]byte) (code int, err error)) (enforced bool, err error) {
	code, err := try(probeRight)
	if err != nil {
		return false, err
	}
	if code/100 != 2 {
		return false, fmt.Errorf("s3: this store answers a presigned PUT with status %d, so nothing can be learned about "+
			"its checks; a proxy that rewrites the host name would explain it", code)
	}
	if code, err = try(probeWrong); err != nil {
		return false, err
	}
	if code >= 500 {
		return false, fmt.Errorf("s3: probe the store's checks: %w: status %d", artifacts.ErrStoreUnavailable, code)
	}
	return code/100 == 4, nil
}

// send sends a signed request and returns the store's status.
func (p prober) send(ctx context.Context, req artifacts.SignedRequest, body []byte) (int, error) {
	r, err := http.NewRequestWithContext(ctx, req.Method, req.URL, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header = req.Header.Clone()
	resp, err := p.client.Do(r)
	if err != nil {
		return 0, fmt.Errorf("s3: probe the store's checks: %w: %w", artifacts.ErrStoreUnavailable, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is used again
	return resp.StatusCode, nil
}

func (p prober) remove(ctx context.Context, key string) error {
	deleted, err := p.Delete(ctx, []string{key})
	if err != nil {
		return err
	}
	return deleted[0].Err
}
