package client

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/artifactd/artifactd/api/types"
)

const (
	// DefaultParallel is how many small files are moved at once unless told otherwise.
	DefaultParallel = 16
	// smallBody is the size in bytes up to which a file, or a part of one, is small: moving it is
	// mostly waiting for answers. A larger one takes as much of the line as largeShare small ones.
	smallBody  = 1 << 20
	largeShare = 4
)

// Options of a [Client]. The zero value is good.
type Options struct {
	// HTTPClient replaces the client's own. It must not follow redirects with credentials (see
	// [New]) and should have no overall timeout.
	HTTPClient *http.Client
	// RootCAs are the authorities whose certificates are trusted, of the service and of its store; nil
	// for the system's. It is for the client's own HTTPClient.
	RootCAs *x509.CertPool
	// Token gives the access token, or identity token, of each request, in place of the one that [New]
	// is given. See [TokenFile] and [GitHubToken].
	Token TokenSource
	// UserAgent is sent with every request to the service.
	UserAgent string
	// Parallel is the number of small files moved at once; 0 means [DefaultParallel]. Of files, or
	// parts of them, above a mebibyte it is a quarter of that.
	Parallel int
	// Silent, when not nil, is told when a call has had no good answer from the service for some seconds
	// and goes on: once in the life of the client, and of a [Client.Watch] once for each time. It is
	// called by a goroutine of its own, and not after the call has returned. Bytes on their way are not
	// such calls.
	Silent func(Silence)
}

// Client talks to one service. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	token    TokenSource
	agent    string
	parallel int
	// largeParallel is how many large bodies are moved at once.
	largeParallel int
	slots         *semaphore.Weighted // for bodies on their way up; parallel of them
	http          *http.Client
	raw           *types.Client
	stall         time.Duration // see stallLimit
	// met: the service has answered at least once.
	met         atomic.Bool
	silent      func(Silence) // may be nil
	toldSilence atomic.Bool
}

// New makes a client of the service at baseURL. token is the access token; empty means that only
// public pointers can be read. The token is sent to the service alone, never to its object store.
func New(baseURL, token string, o Options) (*Client, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.RawQuery != "" {
		return nil, fmt.Errorf("the service's address must be an http or https URL, not %q", baseURL)
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	c := &Client{base: base, token: o.Token, agent: o.UserAgent, parallel: o.Parallel, http: o.HTTPClient, stall: stallLimit, silent: o.Silent}
	if c.token == nil {
		c.token = func(context.Context) (string, error) { return token, nil }
	}
	if c.parallel <= 0 {
		c.parallel = DefaultParallel
	}
	if c.http == nil {
		c.http = newHTTPClient(c.parallel, o.RootCAs)
	}
	c.largeParallel = max(1, c.parallel/largeShare)
	c.slots = semaphore.NewWeighted(int64(c.parallel))
	c.raw, err = types.NewClient(base.String(), types.WithHTTPClient(c))
	return c, err
}

// transfer sends a request for bytes, which may go to the object store or be redirected there.
func (c *Client) transfer(req *http.Request) (*http.Response, error) {
	resp, err := send(c.http, req)
	if t := (*TransportError)(nil); errors.As(err, &t) {
		t.Store = t.Host != c.base.Host
	}
	return resp, err
}

// Do sends a request to the service with its credentials. It makes a Client the transport of the
// raw one in package types.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if err := c.authorize(req); err != nil {
		return nil, err
	}
	resp, err := send(c.http, req)
	var t *TransportError
	if err == nil {
		c.met.Store(true)
	} else if errors.As(err, &t) {
		t.unmet = !c.met.Load()
	}
	return resp, err
}

func (c *Client) authorize(req *http.Request) error {
	token, err := c.token(req.Context())
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if c.agent != "" {
		req.Header.Set("User-Agent", c.agent)
	}
	return nil
}

// Host is the service's host, and port if its address has one.
func (c *Client) Host() string { return c.base.Host }

// Close gives idle connections back.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// resolve makes a URL from an answer absolute.
func (c *Client) resolve(ref string) (*url.URL, error) {
	u, err := c.base.Parse(ref)
	if err != nil {
		return nil, fmt.Errorf("the service answered a bad URL: %w", err)
	}
	// Behind a proxy that serves the API below a path, the service's own paths lack it.
	if strings.HasPrefix(ref, "/") && c.base.Path != "" && !strings.HasPrefix(ref, c.base.Path+"/") {
		return url.Parse(c.base.String() + ref)
	}
	return u, nil
}

// own reports whether a URL is the service's, so that our credentials may go there.
func (c *Client) own(u *url.URL) bool {
	return u.Scheme == c.base.Scheme && u.Host == c.base.Host && !signed(u)
}

// answer reads a whole JSON answer, or the problem document in its place.
func answer[T any](resp *http.Response, err error) (T, error) {
	var v T
	if err != nil {
		return v, err
	}
	defer drain(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return v, problemFrom(resp)
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if errors.As(err, &syntax) || errors.As(err, &kind) {
			return v, fmt.Errorf("%s did not answer as artifactd does: %w", resp.Request.URL.Host, err)
		}
		return v, &TransportError{Host: resp.Request.URL.Host, Err: err}
	}
	return v, nil
}

// nothing reads an answer without content.
func nothing(resp *http.Response, err error) (struct{}, error) {
	if err != nil {
		return struct{}{}, err
	}
	defer drain(resp)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return struct{}{}, problemFrom(resp)
	}
	return struct{}{}, nil
}

// get repeats a call that may be repeated and reads its JSON answer.
func get[T any](ctx context.Context, c *Client, call func(context.Context) (*http.Response, error)) (T, error) {
	return ask(ctx, c, 0, func(ctx context.Context) (T, error) { return answer[T](call(ctx)) })
}

// do is get for calls that answer nothing.
func do(ctx context.Context, c *Client, call func(context.Context) (*http.Response, error)) error {
	_, err := ask(ctx, c, 0, func(ctx context.Context) (struct{}, error) { return nothing(call(ctx)) })
	return err
}
