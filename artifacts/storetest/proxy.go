package storetest

import (
	"bytes"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fault is what a proxy does to the requests that it matches, instead of passing the store's
// answer on. The store has acted in any case but that of refuse.
type fault struct {
	match func(*http.Request) bool
	times int // how many requests; 0 means all

	refuse   int                 // a status, answered without asking the store
	replace  int                 // a status, answered instead of the store's
	lose     bool                // the connection ends instead of the answer
	truncate int64               // the connection ends after so many bytes of the answer's body
	delay    time.Duration       // before the answer
	rewrite  func([]byte) []byte // changes the answer's body
}

// proxy is an HTTP proxy in front of a store. It keeps the Host header, so signatures stay good.
type proxy struct {
	url         string
	forward     *httputil.ReverseProxy
	certificate *x509.Certificate // with TLS

	mu    sync.Mutex
	fault fault
	hits  int // requests that the fault was applied to
}

func newProxy(t *testing.T, target string) *proxy { return startProxy(t, target, false) }

func startProxy(t *testing.T, target string, withTLS bool) *proxy {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{forward: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			host := r.In.Host
			r.SetURL(to)
			r.Out.Host = host
		},
		Transport:    &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	server := httptest.NewUnstartedServer(p)
	t.Cleanup(server.Close)
	if withTLS {
		server.StartTLS()
		p.certificate = server.Certificate()
	} else {
		server.Start()
	}
	p.url = server.URL
	return p
}

// set replaces the fault.
func (p *proxy) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.hits = f, 0
}

// applied is how many requests the fault was applied to.
func (p *proxy) applied() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits
}

// take is the fault for a request, if it is its turn.
func (p *proxy) take(r *http.Request) (fault, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	if f.match == nil || !f.match(r) || (f.times > 0 && p.hits >= f.times) {
		return fault{}, false
	}
	p.hits++
	return f, true
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := p.take(r)
	switch {
	case !ok:
		p.forward.ServeHTTP(w, r)
	case f.refuse != 0:
		_, _ = io.Copy(io.Discard, r.Body) // else the client may see a broken connection first
		fail(w, f.refuse, http.StatusText(f.refuse))
	default:
		recorded := httptest.NewRecorder()
		p.forward.ServeHTTP(recorded, r)
		f.apply(w, recorded)
	}
}

// apply answers with what becomes of the store's answer.
func (f fault) apply(w http.ResponseWriter, recorded *httptest.ResponseRecorder) {
	time.Sleep(f.delay)
	if f.lose {
		panic(http.ErrAbortHandler)
	}
	if f.replace != 0 {
		fail(w, f.replace, http.StatusText(f.replace))
		return
	}
	body := recorded.Body.Bytes()
	if f.rewrite != nil {
		body = f.rewrite(bytes.Clone(body))
	}
	for name, values := range recorded.Header() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(recorded.Code)
	if f.truncate > 0 && f.truncate < int64(len(body)) {
		_, _ = w.Write(body[:f.truncate])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(body)
}

// The requests of the S3 protocol, by method and query.

func isPut(r *http.Request) bool {
	return r.Method == http.MethodPut && !r.URL.Query().Has("uploadId")
}

func isPutPart(r *http.Request) bool {
	return r.Method == http.MethodPut && r.URL.Query().Has("uploadId")
}

func isComplete(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}

func isAbort(r *http.Request) bool {
	return r.Method == http.MethodDelete && r.URL.Query().Has("uploadId")
}

func isDelete(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("delete")
}

func isList(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Query().Has("list-type")
}

func isListParts(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Query().Has("uploadId")
}

func isListUploads(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Query().Has("uploads")
}

// isGet matches the reading of an object; the SDKs add a parameter to it or not.
func isGet(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/"+Prefix)
}

func isAny(*http.Request) bool { return true }
