package bucket

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/artifactd/artifactd/artifacts"
)

// maxTTL is the longest life of a presigned URL.
const maxTTL = 7 * 24 * time.Hour

// Life is how long a URL signed now can live, and until when: whole seconds, 7 days at most, and
// no longer than the credentials it is signed with. Those do not expire when credentials is zero.
func Life(ttl time.Duration, credentials time.Time) (time.Duration, time.Time, error) {
	now := time.Now()
	ttl = min(ttl, maxTTL)
	if !credentials.IsZero() {
		ttl = min(ttl, credentials.Sub(now))
	}
	ttl = ttl.Truncate(time.Second)
	if ttl < time.Second {
		return 0, time.Time{}, errors.New("s3: a presigned URL must live for at least one second")
	}
	// The signature's time has whole seconds, so the URL may end up to one second early.
	return ttl, now.Truncate(time.Second).Add(ttl), nil
}

// PutHeaders are the headers that the signature of a PUT must cover. An empty body has no length
// to sign; its SHA-256 says the same.
func PutHeaders(u artifacts.Upload) []string {
	must := []string{"host", "if-none-match", "x-amz-checksum-sha256"}
	if u.Size > 0 {
		must = append(must, "content-length")
		if u.ContentType != "" {
			must = append(must, "content-type")
		}
	}
	for name := range u.Metadata {
		must = append(must, "x-amz-meta-"+strings.ToLower(name))
	}
	return must
}

// PartHeaders are the headers that the signature of a part's PUT must cover.
func PartHeaders() []string { return []string{"host", "content-length", "x-amz-checksum-sha256"} }

// checkSigned makes sure that the holder of a signed PUT can store these bytes and no others. The
// SDK decides which headers it signs; these are what artifactd promises.
func checkSigned(signedURL string, must []string) error {
	link, err := url.Parse(signedURL)
	if err != nil {
		return fmt.Errorf("s3: read the signed URL: %w", err)
	}
	signed := map[string]bool{}
	for name := range strings.SplitSeq(link.Query().Get("X-Amz-SignedHeaders"), ";") {
		signed[name] = true
	}
	for _, name := range must {
		if !signed[name] {
			return fmt.Errorf("s3: the SDK left %s out of the signature of a PUT", name)
		}
	}
	return nil
}

// Signed is the request to hand out, if its signature covers the headers that it must. The Host header
// is left out: it is in the URL.
func Signed(method, signedURL string, header http.Header, expires time.Time, must []string) (artifacts.SignedRequest, error) {
	if err := checkSigned(signedURL, must); err != nil {
		return artifacts.SignedRequest{}, err
	}
	h := make(http.Header, len(header))
	for name, values := range header {
		if !strings.EqualFold(name, "Host") {
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	return artifacts.SignedRequest{Method: method, URL: signedURL, Header: h, ExpiresAt: expires}, nil
}
