package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// probeTTL is the life of the probe's URLs.
const probeTTL = time.Minute

// EnforcesSignedDigest implements [artifacts.BlobSigner]. It PUTs twice with presigned URLs,
// once the right bytes and once others of the same length, under "<prefix>probe/". Only when the
// first succeeds does the refusal of the second mean anything.
func (s *Store) EnforcesSignedDigest(ctx context.Context) (bool, error) {
	s.probe.Lock()
	defer s.probe.Unlock()
	if s.probe.known {
		return s.probe.enforced, nil
	}
	right, wrong := []byte("artifactd probe: right"), []byte("artifactd probe: wrong")
	code, err := s.probePut(ctx, right, right)
	if err != nil {
		return false, err
	}
	if code/100 != 2 {
		return false, fmt.Errorf("s3: this store answers a presigned PUT with status %d, so nothing can be learned about "+
			"its checks; a proxy that rewrites the host name would explain it", code)
	}
	if code, err = s.probePut(ctx, right, wrong); err != nil {
		return false, err
	}
	if code >= 500 {
		return false, fmt.Errorf("s3: probe the store's checks: %w: status %d", artifacts.ErrStoreUnavailable, code)
	}
	s.probe.known, s.probe.enforced = true, code/100 == 4
	return s.probe.enforced, nil
}

// probePut signs a PUT of one body, sends another and removes what was stored. It returns the
// store's status.
func (s *Store) probePut(ctx context.Context, signed, sent []byte) (code int, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return 0, err
	}
	u := artifacts.Upload{
		Key: s.cfg.Prefix + "probe/" + id.String(), Digest: artifacts.DigestOf(signed), Size: int64(len(signed)),
		ContentType: "application/octet-stream", Metadata: map[string]string{"artifactd-probe": "1"},
	}
	req, err := s.signPut(ctx, s.probeSigner, u, probeTTL)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.deleteProbe(ctx, u.Key)) }()
	r, err := http.NewRequestWithContext(ctx, req.Method, req.URL, bytes.NewReader(sent))
	if err != nil {
		return 0, err
	}
	r.Header = req.Header.Clone()
	resp, err := s.transport.client().Do(r)
	if err != nil {
		return 0, fmt.Errorf("s3: probe the store's checks: %w: %w", artifacts.ErrStoreUnavailable, err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is used again
	return resp.StatusCode, nil
}

func (s *Store) deleteProbe(ctx context.Context, key string) error {
	deleted, err := s.Delete(ctx, []string{key})
	if err != nil {
		return err
	}
	return deleted[0].Err
}
