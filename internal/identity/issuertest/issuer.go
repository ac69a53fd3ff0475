// Package issuertest is an issuer of identity tokens for tests: a real server with real keys.
package issuertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Issuer signs tokens, and publishes its keys where OpenID Connect wants them.
type Issuer struct {
	t      testing.TB
	Server *httptest.Server

	mu      sync.Mutex
	keys    jose.JSONWebKeySet // published
	signer  jose.JSONWebKey    // private
	down    func()             // called before a request breaks off, if not nil
	fetches int
}

// New starts an issuer with one key, of RSA.
func New(t testing.TB) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.answer(w, map[string]any{
			"issuer": i.URL(), "jwks_uri": i.URL() + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}, // its word is not taken for this
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		i.fetches++
		keys := i.keys
		i.mu.Unlock()
		i.answer(w, keys)
	})
	i.Server = httptest.NewServer(mux)
	t.Cleanup(i.Server.Close)
	i.Rotate("first")
	return i
}

func (i *Issuer) answer(w http.ResponseWriter, v any) {
	i.mu.Lock()
	down := i.down
	i.mu.Unlock()
	if down != nil {
		down()
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(v) // whoever asked may be gone
}

// URL is the issuer's name.
func (i *Issuer) URL() string { return i.Server.URL }

// Fetches is how often the keys were asked for.
func (i *Issuer) Fetches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

// GoDown breaks every request off, after calling first. Nil brings the issuer back.
func (i *Issuer) GoDown(first func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = first
}

// Rotate makes a new key and publishes it alone.
func (i *Issuer) Rotate(id string) {
	i.t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		i.t.Fatal(err)
	}
	i.use(jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "RS256", Use: "sig"})
}

// RotateEC is Rotate with a key of an elliptic curve.
func (i *Issuer) RotateEC(id string) {
	i.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.use(jose.JSONWebKey{Key: private, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

func (i *Issuer) use(k jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.signer, i.keys = k, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k.Public()}}
}

// Key is the private key that tokens are signed with.
func (i *Issuer) Key() jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.signer
}

// Publish replaces what the issuer publishes.
func (i *Issuer) Publish(keys ...jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = jose.JSONWebKeySet{Keys: keys}
}

// Claims are those of a good token: of this issuer, for an audience and a subject, valid for a minute.
// Others are added, and nil takes one away.
func (i *Issuer) Claims(audience, subject string, others map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{
		"iss": i.URL(), "aud": audience, "sub": subject,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	}
	for name, v := range others {
		if c[name] = v; v == nil {
			delete(c, name)
		}
	}
	return c
}

// Sign makes a token of claims.
func (i *Issuer) Sign(claims map[string]any) string {
	i.t.Helper()
	k := i.Key()
	return SignWith(i.t, jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k}, claims)
}

// SignWith makes a token with another key.
func SignWith(t testing.TB, key jose.SigningKey, claims map[string]any) string {
	t.Helper()
	s, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// WriteConfig writes a configuration file and returns its name.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "oidc.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
