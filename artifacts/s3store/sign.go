package s3store

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// SignPut implements [artifacts.BlobSigner]. The header includes Content-Length, which a Go
// client must copy to Request.ContentLength.
func (s *Store) SignPut(ctx context.Context, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	return s.signPut(ctx, s.signer, u, ttl)
}

func (s *Store) signPut(ctx context.Context, signer *s3.PresignClient, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := bucket.CheckUpload(u); err != nil {
		return artifacts.SignedRequest{}, err
	}
	ttl, expires, err := s.life(ctx, ttl)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	req, err := signer.PresignPutObject(ctx, s.putInput(u), s3.WithPresignExpires(ttl))
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a put of", u.Key, err)
	}
	if err := bucket.CheckSigned(req.URL, bucket.PutHeaders(u)); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return bucket.Signed(req.Method, req.URL, req.SignedHeader, expires), nil
}

// SignPart implements [artifacts.BlobSigner].
func (s *Store) SignPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, ttl time.Duration) (artifacts.SignedRequest, error) {
	return s.signPart(ctx, s.signer, m, p, ttl)
}

func (s *Store) signPart(ctx context.Context, signer *s3.PresignClient, m artifacts.Multipart, p artifacts.Part, ttl time.Duration) (
	artifacts.SignedRequest, error,
) {
	if err := bucket.CheckPart(m, p); err != nil {
		return artifacts.SignedRequest{}, err
	}
	ttl, expires, err := s.life(ctx, ttl)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	req, err := signer.PresignUploadPart(ctx, s.partInput(m, p), s3.WithPresignExpires(ttl))
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a part of", m.Key, err)
	}
	if err := bucket.CheckSigned(req.URL, bucket.PartHeaders()); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return bucket.Signed(req.Method, req.URL, req.SignedHeader, expires), nil
}

// SignGet implements [artifacts.BlobSigner]. The URL is good for GET only, not for HEAD.
func (s *Store) SignGet(ctx context.Context, key string, d artifacts.ReadDisposition, ttl time.Duration) (artifacts.SignedRequest, error) {
	ttl, expires, err := s.life(ctx, ttl)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	in := &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key}
	if d.ContentType != "" {
		in.ResponseContentType = &d.ContentType
	}
	if d.ContentDisposition != "" {
		in.ResponseContentDisposition = &d.ContentDisposition
	}
	req, err := s.signer.PresignGetObject(ctx, in, s3.WithPresignExpires(ttl))
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a get of", key, err)
	}
	return bucket.Signed(req.Method, req.URL, req.SignedHeader, expires), nil
}

// life is how long a URL signed now can live.
func (s *Store) life(ctx context.Context, ttl time.Duration) (time.Duration, time.Time, error) {
	c, err := s.credentials.Retrieve(ctx)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("s3: find credentials: %w", err)
	}
	var until time.Time
	if c.CanExpire {
		until = c.Expires
	}
	return bucket.Life(ttl, until)
}

// local is the store with presigned PUTs for this process instead of for others.
type local struct{ *Store }

func (l local) SignPut(ctx context.Context, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	return l.signPut(ctx, l.localSigner, u, ttl)
}

func (l local) SignPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, ttl time.Duration) (artifacts.SignedRequest, error) {
	return l.signPart(ctx, l.localSigner, m, p, ttl)
}

// EnforcesSignedDigest implements [artifacts.BlobSigner].
func (s *Store) EnforcesSignedDigest(ctx context.Context) (bool, error) {
	return s.probe.Ask(ctx, local{s}, s.transport.Client(), s.cfg.Prefix)
}
