package miniostore

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// SignPut implements [artifacts.BlobSigner]. The header includes Content-Length, which a Go
// client must copy to Request.ContentLength.
func (s *Store) SignPut(ctx context.Context, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := bucket.CheckUpload(u); err != nil {
		return artifacts.SignedRequest{}, err
	}
	h := http.Header{"If-None-Match": {"*"}, checksumHeader: {u.Digest.Base64()}}
	if u.Size > 0 { // clients differ in whether they send the length of an empty body
		h.Set("Content-Length", strconv.FormatInt(u.Size, 10))
	}
	if u.ContentType != "" {
		h.Set("Content-Type", u.ContentType)
	}
	for name, value := range u.Metadata {
		h.Set("X-Amz-Meta-"+name, value)
	}
	return s.sign(ctx, http.MethodPut, u.Key, ttl, nil, h, bucket.PutHeaders(u))
}

// SignPart implements [artifacts.BlobSigner].
func (s *Store) SignPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := bucket.CheckPart(m, p); err != nil {
		return artifacts.SignedRequest{}, err
	}
	h := http.Header{"Content-Length": {strconv.FormatInt(p.Size, 10)}, checksumHeader: {p.SHA256.Base64()}}
	q := url.Values{"partNumber": {strconv.Itoa(p.Number)}, "uploadId": {m.UploadID}}
	return s.sign(ctx, http.MethodPut, m.Key, ttl, q, h, bucket.PartHeaders())
}

// SignGet implements [artifacts.BlobSigner]. The URL is good for GET only, not for HEAD.
func (s *Store) SignGet(ctx context.Context, key string, d artifacts.ReadDisposition, ttl time.Duration) (artifacts.SignedRequest, error) {
	q := url.Values{}
	if d.ContentType != "" {
		q.Set("response-content-type", d.ContentType)
	}
	if d.ContentDisposition != "" {
		q.Set("response-content-disposition", d.ContentDisposition)
	}
	return s.sign(ctx, http.MethodGet, key, ttl, q, nil, nil)
}

// sign signs a request with its headers, of which the ones named in must have to be covered.
func (s *Store) sign(ctx context.Context, method, key string, ttl time.Duration, q url.Values, h http.Header, must []string) (
	artifacts.SignedRequest, error,
) {
	c, err := s.credentials.GetWithContext(s.public.CredContext())
	if err != nil {
		return artifacts.SignedRequest{}, fmt.Errorf("s3: find credentials: %w", err)
	}
	ttl, expires, err := bucket.Life(ttl, c.Expiration)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	u, err := s.public.PresignHeader(ctx, method, s.cfg.Bucket, key, ttl, q, h)
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a request for", key, err)
	}
	return bucket.Signed(method, u.String(), h, expires, must)
}

// EnforcesSignedDigest implements [artifacts.BlobSigner].
func (s *Store) EnforcesSignedDigest(ctx context.Context) (bool, error) {
	return s.probe.Ask(ctx, s.local, s.transport.Client(), s.cfg.Prefix)
}
