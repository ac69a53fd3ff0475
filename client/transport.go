package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Time limits of a request. There is none for a whole request, because a body may be large and a
// wait long; what must not take for ever is to connect and to be answered.
const (
	dialTimeout   = 10 * time.Second
	answerTimeout = 90 * time.Second
	idleTimeout   = 90 * time.Second
	maxRedirects  = 5
)

// newHTTPClient makes the client that carries everything: requests to the service, and presigned
// ones to its store.
func newHTTPClient(parallel int, roots *x509.CertPool) *http.Client {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		ResponseHeaderTimeout: answerTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   max(parallel, 4),
		ForceAttemptHTTP2:     true,
	}
	return &http.Client{Transport: t, CheckRedirect: dropAuthorization}
}

// dropAuthorization follows a redirect without our credentials unless it stays with the service.
// net/http compares host names without their ports, and a store that gets an Authorization header
// besides a signed query refuses the request.
func dropAuthorization(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return http.ErrUseLastResponse
	}
	if first := via[0].URL; req.URL.Host != first.Host || req.URL.Scheme != first.Scheme || signed(req.URL) {
		req.Header.Del("Authorization")
	}
	return nil
}

// signed reports whether a URL carries its own authorisation.
func signed(u *url.URL) bool {
	for name := range u.Query() {
		if strings.EqualFold(name, "X-Amz-Signature") {
			return true
		}
	}
	return false
}

// send sends one request and classifies a missing answer. The body of a good answer is the
// caller's to close.
func send(hc *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := hc.Do(req)
	if err == nil {
		return resp, nil
	}
	if cause := context.Cause(req.Context()); cause != nil {
		return nil, cause
	}
	// net/http's own wrapping repeats method and URL; a presigned URL is a secret for its lifetime.
	host := req.URL.Host
	if u, ok := err.(*url.Error); ok {
		err = u.Err
		if last, parseErr := url.Parse(u.URL); parseErr == nil && last.Host != "" {
			host = last.Host // after a redirect
		}
	}
	return nil, &TransportError{Host: host, Err: err}
}

// drain reads what little may be left of an answer so that its connection can be used again.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxProblem)
	_ = resp.Body.Close()
}
