package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/artifactd/artifactd/artifacts"
)

// maxTTL is the longest life of a presigned URL.
const maxTTL = 7 * 24 * time.Hour

func newSigner(client *s3.Client) *s3.PresignClient { return s3.NewPresignClient(client) }

// SignPut implements [artifacts.BlobSigner]. The header includes Content-Length, which a Go
// client must copy to Request.ContentLength.
func (s *Store) SignPut(ctx context.Context, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	if err := checkUpload(u); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return s.signPut(ctx, s.signer, u, ttl)
}

func (s *Store) signPut(ctx context.Context, signer *s3.PresignClient, u artifacts.Upload, ttl time.Duration) (artifacts.SignedRequest, error) {
	ttl, expires, err := s.life(ctx, ttl)
	if err != nil {
		return artifacts.SignedRequest{}, err
	}
	req, err := signer.PresignPutObject(ctx, s.putInput(u), s3.WithPresignExpires(ttl))
	if err != nil {
		return artifacts.SignedRequest{}, s.translate(ctx, "sign a put of", u.Key, err)
	}
	if err := checkSigned(req, u); err != nil {
		return artifacts.SignedRequest{}, err
	}
	return signedRequest(req, expires), nil
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
	return signedRequest(req, expires), nil
}

// life is how long a URL signed now can live: whole seconds, 7 days at most, and no longer than
// the credentials it is signed with.
func (s *Store) life(ctx context.Context, ttl time.Duration) (time.Duration, time.Time, error) {
	ttl = min(ttl, maxTTL)
	now := time.Now()
	c, err := s.credentials.Retrieve(ctx)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("s3: find credentials: %w", err)
	}
	if c.CanExpire {
		ttl = min(ttl, c.Expires.Sub(now))
	}
	ttl = ttl.Truncate(time.Second)
	if ttl < time.Second {
		return 0, time.Time{}, errors.New("s3: a presigned URL must live for at least one second")
	}
	// The signature's time has whole seconds, so the URL may end up to one second early.
	return ttl, now.Truncate(time.Second).Add(ttl), nil
}

// checkSigned makes sure that the holder of a signed PUT can store these bytes and no others. The
// SDK decides which headers it signs; this is what artifactd promises.
func checkSigned(req *v4.PresignedHTTPRequest, u artifacts.Upload) error {
	link, err := url.Parse(req.URL)
	if err != nil {
		return fmt.Errorf("s3: read the signed URL: %w", err)
	}
	signed := map[string]bool{}
	for name := range strings.SplitSeq(link.Query().Get("X-Amz-SignedHeaders"), ";") {
		signed[name] = true
	}
	must := []string{"host", "if-none-match", "x-amz-checksum-sha256"}
	if u.Size > 0 { // an empty body has no length to sign; its SHA-256 says the same
		must = append(must, "content-length")
		if u.ContentType != "" {
			must = append(must, "content-type")
		}
	}
	for name := range u.Metadata {
		must = append(must, "x-amz-meta-"+strings.ToLower(name))
	}
	for _, name := range must {
		if !signed[name] {
			return fmt.Errorf("s3: the SDK left %s out of the signature of a PUT", name)
		}
	}
	return nil
}

func signedRequest(req *v4.PresignedHTTPRequest, expires time.Time) artifacts.SignedRequest {
	h := make(http.Header, len(req.SignedHeader))
	for name, values := range req.SignedHeader {
		if !strings.EqualFold(name, "Host") { // it is in the URL
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	return artifacts.SignedRequest{Method: req.Method, URL: req.URL, Header: h, ExpiresAt: expires}
}
