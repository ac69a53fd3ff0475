package storetest

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts"
)

const urlTTL = 5 * time.Minute

// send does what the holder of a signed request does.
func send(t *testing.T, r artifacts.SignedRequest, body []byte) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), r.Method, r.URL, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = r.Header.Clone()
	if n := r.Header.Get("Content-Length"); n != "" {
		if req.ContentLength, err = strconv.ParseInt(n, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil // refused in the middle of the body
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, got
}

// stores sends a signed PUT that must be accepted.
func stores(t *testing.T, r artifacts.SignedRequest, body []byte) {
	t.Helper()
	if resp, answer := send(t, r, body); resp == nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("the signed PUT was refused: %+v %s", resp, answer)
	}
}

// refuses sends a signed PUT that must not be accepted.
func refuses(t *testing.T, what string, r artifacts.SignedRequest, body []byte) {
	t.Helper()
	resp, _ := send(t, r, body)
	if resp != nil && (resp.StatusCode < 400 || resp.StatusCode >= 500) {
		t.Errorf("%s: the store answered %s", what, resp.Status)
	}
}

func (f fixture) signPut(t *testing.T, u artifacts.Upload) artifacts.SignedRequest {
	t.Helper()
	before := time.Now()
	r, err := f.SignPut(t.Context(), u, urlTTL)
	if err != nil {
		t.Fatalf("SignPut: %v", err)
	}
	if first, last := before.Add(urlTTL), time.Now().Add(urlTTL); r.Method != http.MethodPut || r.ExpiresAt.Before(first.Add(-2*time.Second)) || r.ExpiresAt.After(last.Add(time.Second)) {
		t.Errorf("SignPut: %s that lives until %v, not %v to %v", r.Method, r.ExpiresAt, first, last)
	}
	return r
}

func testSignedPut(t *testing.T, f fixture) {
	content := []byte("sent straight to the store")
	u := upload(content)
	r := f.signPut(t, u)
	want := map[string]string{
		"Content-Length": strconv.Itoa(len(content)), "Content-Type": u.ContentType, "If-None-Match": "*",
		"X-Amz-Checksum-Sha256": u.Digest.Base64(), "X-Amz-Meta-Artifactd-Token": "1.42",
	}
	for name, value := range want {
		if got := r.Header.Get(name); got != value {
			t.Errorf("header %s is %q, want %q", name, got, value)
		}
	}
	stores(t, r, content)
	f.holds(t, u, content)
}

func testSignedPutEmpty(t *testing.T, f fixture) {
	u := upload(nil)
	r := f.signPut(t, u)
	refuses(t, "one byte where none was signed", withLength(r, 1), []byte("x"))
	f.absent(t, u.Key)
	stores(t, r, nil)
	o, err := f.Head(t.Context(), u.Key)
	if err != nil || o.Size != 0 || o.SHA256 != u.Digest {
		t.Errorf("%+v %v", o, err)
	}
}

// withLength is the request with another Content-Length.
func withLength(r artifacts.SignedRequest, n int) artifacts.SignedRequest {
	r.Header = r.Header.Clone()
	r.Header.Set("Content-Length", strconv.Itoa(n))
	return r
}

func testSignedPutWrongBytes(t *testing.T, f fixture) {
	content := []byte("the right bytes")
	u := upload(content)
	r := f.signPut(t, u)
	refuses(t, "wrong bytes", r, []byte("the wrong bytes"))
	refuses(t, "fewer bytes", withLength(r, len(content)-1), content[:len(content)-1])
	refuses(t, "more bytes", withLength(r, len(content)+1), append(content, '!'))
	f.absent(t, u.Key)
	stores(t, r, content)
	f.holds(t, u, content)
}

func testSignedPutTampered(t *testing.T, f fixture) {
	content, other := []byte("the right bytes"), []byte("the wrong bytes")
	u := upload(content)
	signed := f.signPut(t, u)
	for _, c := range []struct {
		what   string
		body   []byte
		change func(http.Header)
	}{
		{"another digest", other, func(h http.Header) { h.Set("X-Amz-Checksum-Sha256", artifacts.DigestOf(other).Base64()) }},
		{"no digest", other, func(h http.Header) { h.Del("X-Amz-Checksum-Sha256") }},
		{"another token", content, func(h http.Header) { h.Set("X-Amz-Meta-Artifactd-Token", "9.99") }},
		{"no pointer", content, func(h http.Header) { h.Del("X-Amz-Meta-Artifactd-Pointer") }},
		{"not create-only", content, func(h http.Header) { h.Del("If-None-Match") }},
		{"another type", content, func(h http.Header) { h.Set("Content-Type", "text/html") }},
	} {
		r := signed
		r.Header = signed.Header.Clone()
		c.change(r.Header)
		refuses(t, c.what, r, c.body)
	}
	f.absent(t, u.Key)
}

func testSignedPutIsCreateOnly(t *testing.T, f fixture) {
	content := []byte("written once")
	u := upload(content)
	r := f.signPut(t, u)
	stores(t, r, content)
	resp, _ := send(t, r, content)
	if resp == nil || resp.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("the second PUT was answered %+v", resp)
	}
}

func testSignedPutExpired(t *testing.T, f fixture) {
	content := []byte("too late")
	u := upload(content)
	r, err := f.SignPut(t.Context(), u, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(r.ExpiresAt) + 1500*time.Millisecond) // only the store's clock decides
	refuses(t, "an expired PUT", r, content)
	f.absent(t, u.Key)
	for _, ttl := range []time.Duration{0, -time.Second, time.Millisecond} {
		if _, err := f.SignPut(t.Context(), u, ttl); err == nil {
			t.Errorf("a PUT that lives %v was signed", ttl)
		}
	}
	if r, err = f.SignPut(t.Context(), u, 30*24*time.Hour); err != nil || time.Until(r.ExpiresAt) > 7*24*time.Hour {
		t.Errorf("a month: until %v, %v", r.ExpiresAt, err)
	}
}

func testSignedGet(t *testing.T, f fixture) {
	content := []byte("0123456789")
	u := f.put(t, content)
	d := artifacts.ReadDisposition{
		ContentType: "application/x-other", ContentDisposition: `attachment; filename*=UTF-8''na%20me`,
	}
	r, err := f.SignGet(t.Context(), u.Key, d, urlTTL)
	if err != nil {
		t.Fatal(err)
	}
	resp, got := send(t, r, nil)
	if resp == nil || resp.StatusCode != http.StatusOK || !bytes.Equal(got, content) {
		t.Fatalf("signed GET: %+v %q", resp, got)
	}
	if h := resp.Header; h.Get("Content-Type") != d.ContentType || h.Get("Content-Disposition") != d.ContentDisposition {
		t.Errorf("overrides: %q %q", h.Get("Content-Type"), h.Get("Content-Disposition"))
	}
	if r, err = f.SignGet(t.Context(), u.Key, artifacts.ReadDisposition{}, urlTTL); err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Range": {"bytes=3-5"}}
	if resp, got = send(t, r, nil); resp == nil || resp.StatusCode != http.StatusPartialContent || string(got) != "345" {
		t.Errorf("signed GET of a range: %+v %q", resp, got)
	}
	r.Method = http.MethodDelete
	refuses(t, "a DELETE with a URL for GET", r, nil)
	f.holds(t, u, content)
}

func testEnforcesSignedDigest(t *testing.T, f fixture, open Open) {
	config := Config(f.bucket)
	config.PublicEndpoint = "http://127.0.0.1:1" // the way of others, which need not exist from here
	store := open(t, config)
	for range 2 { // the second answer is remembered
		enforced, err := store.EnforcesSignedDigest(t.Context())
		if err != nil || !enforced {
			t.Errorf("enforced: %v %v", enforced, err)
		}
	}
	if left := f.keys(t, ""); len(left) != 0 {
		t.Errorf("the probe left %q", left)
	}
}
