package s3store

import (
	"context"
	"fmt"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// SignPut implements [artifacts.BlobSigner]. The header includes Content-Length, which a Go
// client must copy to Request.ContentLength.
func (s *Store) SignPut(ctx context.Context, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := bucket.CheckUpload(u); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return s.sign(ctx, u.Key, ttl, bucket.PutHeaders(u), func(life func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error) {
		return s.signer.PresignPutObject(ctx, s.putInput(u), life)
	})
}

// SignPart implements [artifacts.BlobSigner].
func (s *Store) SignPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := bucket.CheckPart(m, p); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return s.sign(ctx, m.Key, ttl, bucket.PartHeaders(), func(life func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error) {
		return s.signer.PresignUploadPart(ctx, s.partInput(m, p), life)
	})
}

// SignGet implements [artifacts.BlobSigner]. The URL is good for GET only, not for HEAD.
func (s *Store) SignGet(ctx context.Context, key string, d artifacts.ReadDisposition, ttl time.Duration) (artifacts.SignedRequest, error) {
	in := &s3.GetObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key,
		ResponseContentType: optional(d.ContentType), ResponseContentDisposition: optional(d.ContentDisposition),
	}
	return s.sign(ctx, key, ttl, nil, func(life func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error) {
		return s.signer.PresignGetObject(ctx, in, life)
	})
}

// sign has the SDK presign a request, of which the headers named in must have to be covered.
func (s *Store) sign(ctx context.Context, key string, ttl time.Duration, must []string,
	presign func(life func(*s3.PresignOptions)) (*v4.PresignedHTTPRequest, error),
) (artifacts.SignedRequest, error) {
	c, err := s.credentials.Retrieve(ctx)
	if err != nil {
		return artifacts.SignedRequest{}, fmt.Errorf("s3: find credentials: %w", err)
	}
	var until time.Time
	if c.CanExpire {
		until = c.Expires
	}
	ttl, expires, err := bucket.Life(ttl, until)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	req, err := presign(s3.WithPresignExpires(ttl))
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a request for", key, err)
	}
	return bucket.Signed(req.Method, req.URL, req.SignedHeader, expires, must)
}

// EnforcesSignedDigest implements [artifacts.BlobSigner].
func (s *Store) EnforcesSignedDigest(ctx context.Context) (bool, error) {
	return s.probe.Ask(ctx, s.local, s.transport.Client(), s.cfg.Prefix)
}
