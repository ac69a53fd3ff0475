package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/artifactd/artifactd/artifacts"
)

// send sends a signed request, with a body unless that is nil, and returns status and header.
func (x *examination) send(ctx context.Context, s artifacts.SignedRequest, body []byte) (int, http.Header, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, s.Method, s.URL, r)
	if err != nil {
		return 0, nil, err
	}
	req.Header = s.Header.Clone()
	resp, err := x.HTTP.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", artifacts.ErrStoreUnavailable, withoutURL(err))
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is used again
	return resp.StatusCode, resp.Header, nil
}

// withoutURL keeps a signed URL, which is a credential, out of an error.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// tampering is one thing that the holder of a signed PUT may try.
type tampering struct {
	what   string
	change func(h http.Header, body []byte) []byte
}

// another is as long as text, and other.
var another = bytes.ToUpper(text)

var bytesTamperings = []tampering{
	{"other bytes", func(_ http.Header, _ []byte) []byte { return another }},
	{"more bytes", func(_ http.Header, b []byte) []byte { return append(bytes.Clone(b), '!') }},
	{"fewer bytes", func(_ http.Header, b []byte) []byte { return b[:len(b)-1] }},
}

var headerTamperings = []tampering{
	{"another type", func(h http.Header, b []byte) []byte { h.Set("Content-Type", "text/html"); return b }},
	{"other metadata", func(h http.Header, b []byte) []byte { h.Set("X-Amz-Meta-Artifactd-Probe", "2"); return b }},
	{"no If-None-Match", func(h http.Header, b []byte) []byte { h.Del("If-None-Match"); return b }},
	{"another digest and its bytes", func(h http.Header, _ []byte) []byte {
		h.Set("X-Amz-Checksum-Sha256", artifacts.DigestOf(another).Base64())
		return another
	}},
	{"no digest and other bytes", func(h http.Header, _ []byte) []byte { h.Del("X-Amz-Checksum-Sha256"); return another }},
}

// tried sends one signed PUT as it is meant, which must succeed for the rest to mean anything, and
// one for each tampering. It returns those that the store took.
func (x *examination) tried(ctx context.Context, list []tampering) (taken []string, err error) {
	honest := tampering{"as signed", func(_ http.Header, b []byte) []byte { return b }}
	for _, t := range append([]tampering{honest}, list...) {
		u := x.object(text)
		signed, err := x.Store.SignPut(ctx, u, urlTTL)
		if err != nil {
			return nil, err
		}
		signed.Header = signed.Header.Clone()
		code, _, err := x.send(ctx, signed, t.change(signed.Header, bytes.Clone(text)))
		switch {
		case err != nil:
			return nil, err
		case t.what == honest.what && code/100 != 2:
			return nil, fmt.Errorf("a signed PUT, sent as it is, is answered with status %d; a proxy that rewrites the host name would explain it", code)
		case t.what != honest.what && code/100 == 2:
			taken = append(taken, t.what)
		}
	}
	return taken, nil
}

func (x *examination) tamperedBytes(ctx context.Context) (outcome, error) {
	taken, err := x.tried(ctx, bytesTamperings)
	if err != nil {
		return outcome{}, err
	}
	if len(taken) > 0 {
		return outcome{Degraded, "taken: " + strings.Join(taken, ", "), "bytes go up through the service, which checks them"}, nil
	}
	return fine("refused: other bytes, more, fewer"), nil
}

func (x *examination) tamperedHeaders(ctx context.Context) (outcome, error) {
	taken, err := x.tried(ctx, headerTamperings)
	if err != nil {
		return outcome{}, err
	}
	if len(taken) > 0 {
		return outcome{Missing, "taken: " + strings.Join(taken, ", "), "whoever holds an upload URL can replace what was proved, until the URL expires"}, nil
	}
	return fine("refused: type, metadata, condition, digest"), nil
}

func (x *examination) overrides(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	want := artifacts.ReadDisposition{ContentType: "text/x-probe", ContentDisposition: `attachment; filename*=UTF-8''p.txt`}
	signed, err := x.Store.SignGet(ctx, u.Key, want, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	code, h, err := x.send(ctx, signed, nil)
	switch {
	case err != nil:
		return outcome{}, err
	case code != http.StatusOK:
		return outcome{Missing, fmt.Sprintf("a signed GET is answered with status %d", code), "reads that are redirected to the store fail; with --proxy-limit -1 none is"}, nil
	case h.Get("Content-Type") != want.ContentType || h.Get("Content-Disposition") != want.ContentDisposition:
		return outcome{Degraded, "ignored", "files redirected to the store have its headers, and browsers may show them; with --proxy-limit -1 none is redirected"}, nil
	}
	return fine("type and disposition as asked"), nil
}

// publicEndpoint reads through the endpoint that clients use.
func (x *examination) publicEndpoint(ctx context.Context) (outcome, error) {
	if x.Public == nil {
		return outcome{}, errNotAsked
	}
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	signed, err := x.Public.SignGet(ctx, u.Key, artifacts.ReadDisposition{}, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	code, _, err := x.send(ctx, signed, nil)
	switch {
	case err != nil:
		return outcome{Degraded, "not reached from here: " + err.Error(), "clients must reach it; try from where they are"}, nil
	case code != http.StatusOK:
		return outcome{Missing, fmt.Sprintf("a GET signed for it is answered with status %d", code), "clients can neither upload nor follow redirects; correct --s3-public-endpoint"}, nil
	}
	return fine("takes what is signed for it"), nil
}

// anonymous tries without any signature.
func (x *examination) anonymous(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	signed, err := x.Store.SignGet(ctx, u.Key, artifacts.ReadDisposition{}, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	object, _, _ := strings.Cut(signed.URL, "?")
	elsewhere, err := x.Store.SignGet(ctx, x.object(text).Key, artifacts.ReadDisposition{}, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	target, _, _ := strings.Cut(elsewhere.URL, "?")
	read, _, err := x.send(ctx, artifacts.SignedRequest{Method: http.MethodGet, URL: object, Header: http.Header{}}, nil)
	if err != nil {
		return outcome{}, err
	}
	written, _, err := x.send(ctx, artifacts.SignedRequest{Method: http.MethodPut, URL: target, Header: http.Header{}}, text)
	switch {
	case err != nil:
		return outcome{}, err
	case written/100 == 2:
		return outcome{Missing, "anybody may write", "bytes can be replaced after they were proved; make the bucket private"}, nil
	case read/100 == 2:
		return outcome{Degraded, "anybody may read", "who knows a key reads what is not published, or not any more; make the bucket private"}, nil
	}
	return fine("refused"), nil
}
