package storetest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

// testTLS reaches the store through an end of TLS whose certificate nobody but CAFile vouches for.
func testTLS(t *testing.T, f fixture, open Open) {
	p := startProxy(t, f.bucket.Endpoint, true)
	authority := filepath.Join(t.TempDir(), "authority.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.certificate.Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	config := Config(f.bucket)
	config.Endpoint, config.MaxAttempts = p.url, 1

	stranger := open(t, config)
	content := []byte("over TLS")
	u := upload(content)
	var untrusted *tls.CertificateVerificationError
	if err := stranger.Put(t.Context(), u, bytes.NewReader(content)); !errors.As(err, &untrusted) || !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("without the authority: %v", err)
	}
	f.absent(t, u.Key)

	config.CAFile = authority
	store := fixture{Store: open(t, config), bucket: f.bucket}
	store.holds(t, store.put(t, content), content)
	if enforces, err := store.EnforcesSignedDigest(t.Context()); err != nil || !enforces {
		t.Errorf("the probe says %v, %v", enforces, err)
	}
	signed := store.signPut(t, u)
	req, err := http.NewRequestWithContext(t.Context(), signed.Method, signed.URL, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = signed.Header.Clone()
	roots := x509.NewCertPool()
	roots.AddCert(p.certificate)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the signed PUT was answered %s", resp.Status)
	}
	f.holds(t, u, content)
}
