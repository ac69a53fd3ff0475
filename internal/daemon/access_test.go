package daemon_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/identity/issuertest"
)

// authority issues certificates for 127.0.0.1.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, key := a.sign(template, 1, "authority")
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, a.key = cert, key
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) sign(template *x509.Certificate, serial int64, name string) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(serial), pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// issue makes a certificate and its key, as PEM.
func (a *authority) issue(serial int64) (cert, key []byte) {
	a.t.Helper()
	der, private := a.sign(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, serial, fmt.Sprint("certificate ", serial))
	spelled, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: spelled})
}

// log is what a service says, read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) await(t *testing.T, text string) {
	t.Helper()
	until(t, "the log says "+text, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return strings.Contains(l.b.String(), text)
	})
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within three minutes: ", what)
		}
	}
}

// startLogged is start with a log.
func startLogged(t *testing.T, c daemon.Config) (*running, *logBuffer) {
	t.Helper()
	log := &logBuffer{}
	r := startWith(t, c, daemon.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	return r, log
}

func writeFile(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A renewed certificate is served without a restart; a pair that does not fit leaves the old one.
func TestCertificateReload(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	c, _ := config(t)
	c.TLSCert, c.TLSKey = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, key := a.issue(7)
	writeFile(t, c.TLSCert, cert)
	writeFile(t, c.TLSKey, key)
	r, log := startLogged(t, c)
	address := strings.TrimPrefix(r.url, "http://")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.pem)
	serial := func() int64 {
		t.Helper()
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 7 {
		t.Fatalf("certificate %d", got)
	}
	service, err := client.New("https://"+address, "", client.Options{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	if _, err := service.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was taken")
	}

	cert, key = a.issue(8)
	writeFile(t, c.TLSCert, cert)
	log.await(t, "the old one is still served")
	if got := serial(); got != 7 {
		t.Errorf("with a key that does not fit: certificate %d", got)
	}
	writeFile(t, c.TLSKey, key)
	log.await(t, "a new TLS certificate is served")
	if got := serial(); got != 8 {
		t.Errorf("certificate %d", got)
	}
	r.stop()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

// Faults of the access settings are told at the start.
func TestAccessFaults(t *testing.T) {
	t.Parallel()
	c, _ := config(t)
	c.TLSCert, c.OIDCConfig, c.TrustedProxies = "x", "/nonexistent/oidc.yaml", []string{"10.0.0.0/99"}
	err := daemon.Run(t.Context(), c, daemon.Options{})
	for _, flag := range []string{"--tls-cert", "--oidc-config", "/nonexistent/oidc.yaml", "--trusted-proxies"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s is not in %v", flag, err)
		}
	}
	c, _ = config(t)
	c.TLSCert, c.TLSKey = "/nonexistent/cert.pem", "/nonexistent/key.pem"
	if err := daemon.Run(t.Context(), c, daemon.Options{}); err == nil || !strings.Contains(err.Error(), "cert.pem") {
		t.Errorf("without the certificate's file: %v", err)
	}
}

// A workload's identity token is a credential of the whole service, as `serve --oidc-config` has it.
func TestWorkloadIdentity(t *testing.T) {
	t.Parallel()
	issuer := issuertest.New(t)
	c, db := config(t)
	c.OIDCConfig = issuertest.WriteConfig(t, fmt.Sprintf(`{"issuers": [{"issuer": %q, "audience": "here", "rules": [
		{"claims": {"sub": "system:serviceaccount:reports:*"}, "scopes": ["publish"], "patterns": ["acme.reports.*"]}]}]}`, issuer.URL()))
	r := start(t, c)
	_, ops := credentials(t, db.ServiceURL, r.url)
	defer ops.Close()
	if _, err := ops.PutPointer(t.Context(), "acme.reports.daily", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "token")
	workload, err := client.New(r.url, "", client.Options{Token: client.TokenFile(name)})
	if err != nil {
		t.Fatal(err)
	}
	defer workload.Close()
	writeFile(t, name, []byte(issuer.Sign(issuer.Claims("here", "system:serviceaccount:reports:builder", nil))))
	l, err := workload.Acquire(t.Context(), "acme.reports.daily", client.AcquireOptions{Holder: "builder"})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, name, []byte(issuer.Sign(issuer.Claims("elsewhere", "system:serviceaccount:reports:builder", nil))))
	if _, err := workload.Renew(t.Context(), l); err == nil || !strings.Contains(err.Error(), "another audience") {
		t.Errorf("a token for another service: %v", err)
	}
}

// Connections that say nothing, or too slowly, drive out none that are used.
func TestConnectionsThatSayNothing(t *testing.T) {
	t.Parallel()
	c, db := config(t)
	c.MaxConnections, c.MaxConnectionsPerAddress = 20, 0
	r, log := startLogged(t, c)
	address := strings.TrimPrefix(r.url, "http://")
	token, _ := credentials(t, db.ServiceURL, r.url)
	healthy := dial(t, address)
	healthy.get()
	// One has a request under way that waits for its body.
	busy := dial(t, address)
	fmt.Fprintf(busy, "POST /v1/resolve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"name")
	until(t, "it is under way", func() bool {
		fmt.Fprintf(healthy, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", token)
		_, body := healthy.answer()
		return strings.Contains(body, "artifactd_http_requests_in_flight 2")
	})
	for n := range 200 {
		slow := dial(t, address)
		if n%2 == 0 {
			fmt.Fprint(slow, "GET /healthz HT")
		}
		if n%10 == 0 {
			healthy.get() // it is idle in between, and stays
		}
	}
	log.await(t, "its address has many without a request")
	// From an address that has no such crowd there is room for more.
	for range 50 {
		dialFrom(t, 2, address).get() // and is idle, as healthy is
	}
	if _, err := healthy.ReadByte(); err == nil {
		t.Error("the connection that was idle for the longest is still there")
	}
	fmt.Fprint(busy, "s\":[\"a\"]}")
	if status, body := busy.answer(); status != http.StatusOK {
		t.Errorf("the request under way was answered %d %s", status, body)
	}
}

// One address cannot have all connections.
func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	c, _ := config(t)
	c.MaxConnectionsPerAddress = 3
	r, log := startLogged(t, c)
	address := strings.TrimPrefix(r.url, "http://")
	mine := []*conn{dial(t, address), dial(t, address), dial(t, address)}
	for _, m := range mine {
		m.get()
	}
	if _, err := dial(t, address).ReadByte(); err == nil {
		t.Error("a fourth connection was served")
	}
	log.await(t, "its address has too many open")
	dialFrom(t, 2, address).get()
	_ = mine[0].Close() // to make room
	until(t, "there is room again", func() bool {
		again, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer again.Close()
		fmt.Fprint(again, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		said, _ := io.ReadAll(again)
		return bytes.Contains(said, []byte("200 OK"))
	})
}

// A trusted proxy's connections are many people's, and it says whose a request is. Nobody else does.
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	c, _ := config(t)
	c.MaxConnectionsPerAddress, c.TrustedProxies = 2, []string{"127.0.0.1/32"}
	r, log := startLogged(t, c)
	address := strings.TrimPrefix(r.url, "http://")
	for range 5 {
		dialFrom(t, 1, address).get()
	}
	ask := func(on *conn, forwarded string) {
		t.Helper()
		fmt.Fprintf(on, "GET /v1/pointers HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: %s\r\n\r\n", forwarded)
		if status, _ := on.answer(); status != http.StatusUnauthorized {
			t.Errorf("answered %d", status)
		}
	}
	ask(dialFrom(t, 1, address), "203.0.113.9")
	log.await(t, "remote=203.0.113.9")
	ask(dialFrom(t, 2, address), "203.0.113.10")
	log.await(t, "remote=127.0.0.2")
	dialFrom(t, 2, address).get()
	if _, err := dialFrom(t, 2, address).ReadByte(); err == nil {
		t.Error("an address that is no proxy has more connections than one may")
	}
}

// conn is a connection to the service.
type conn struct {
	net.Conn
	*bufio.Reader
	t *testing.T
}

func dial(t *testing.T, address string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return newConn(t, c)
}

// dialFrom dials from another address of this machine.
func dialFrom(t *testing.T, host byte, address string) *conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return newConn(t, c)
}

func newConn(t *testing.T, c net.Conn) *conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(3 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &conn{Conn: c, Reader: bufio.NewReader(c), t: t}
}

func (c *conn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// get asks something on it.
func (c *conn) get() {
	c.t.Helper()
	fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
	if status, _ := c.answer(); status != http.StatusOK {
		c.t.Errorf("answered %d", status)
	}
}

func (c *conn) answer() (status int, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		c.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Error(err)
	}
	return resp.StatusCode, string(b)
}
