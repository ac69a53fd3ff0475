package identity

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/artifactd/artifactd/internal/identity/issuertest"
	"github.com/artifactd/artifactd/pointer"
)

const audience = "https://artifacts.example.com"

// world is a verifier that trusts one issuer, with a clock that a test can move.
type world struct {
	*issuertest.Issuer
	*Verifier
	t     *testing.T
	ahead time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Issuer: issuertest.New(t), t: t}
	c, err := Load(issuertest.WriteConfig(t, fmt.Sprintf(`
issuers:
  - issuer: %s
    audience: %s
    rules:
      - claims: {repository: acme/reports, ref: refs/heads/main}
        scopes: [publish]
        patterns: [acme.reports.*]
      - claims: {sub: "repo:acme/*"}
        scopes: [read]
        patterns: ["acme.*"]
      - claims: {groups: operators}
        scopes: [admin]
        patterns: ["*"]
`, w.URL(), audience)))
	if err != nil {
		t.Fatal(err)
	}
	w.Verifier = New(c)
	w.now = func() time.Time { return time.Now().Add(w.ahead) }
	return w
}

func (w *world) good(subject string, others map[string]any) *pointer.Caller {
	w.t.Helper()
	caller, err := w.Verify(w.t.Context(), w.Sign(w.Claims(audience, subject, others)))
	if err != nil {
		w.t.Fatal(err)
	}
	return caller
}

// refused verifies a token that is no good, and wants a reason that has nothing of the token in it.
func (w *world) refused(token, reason string) {
	w.t.Helper()
	caller, err := w.Verify(w.t.Context(), token)
	var refusal *Refusal
	if !errors.As(err, &refusal) || !errors.Is(err, pointer.ErrUnauthenticated) || !strings.Contains(err.Error(), reason) || caller != nil {
		w.t.Errorf("refused for %v, want %q", err, reason)
		return
	}
	logged := fmt.Sprint(err, slog.AnyValue(refusal).Resolve())
	for _, part := range strings.Split(token, ".") {
		if len(part) > 8 && strings.Contains(logged, part) {
			w.t.Errorf("the refusal has the token in it: %s", logged)
		}
	}
}

func TestRulesDecide(t *testing.T) {
	w := newWorld(t)
	publisher := w.good("repo:acme/reports:ref:refs/heads/main", map[string]any{"repository": "acme/reports", "ref": "refs/heads/main"})
	if !publisher.May(pointer.ScopePublish, "acme.reports.daily") || publisher.May(pointer.ScopeRead, "acme.other") || publisher.Issuer != w.URL() {
		t.Errorf("publisher: %+v", publisher)
	}
	reader := w.good("repo:acme/other:ref:refs/heads/main", nil)
	if !reader.May(pointer.ScopeRead, "acme.reports.daily") || reader.May(pointer.ScopePublish, "acme.reports.daily") || reader.ID == publisher.ID {
		t.Errorf("reader: %+v", reader)
	}
	if admin := w.good("ops", map[string]any{"groups": []string{"all", "operators"}}); !admin.May(pointer.ScopeAdmin, "x") {
		t.Errorf("admin: %+v", admin)
	}
	for subject, others := range map[string]map[string]any{
		"repo:acme-evil/reports": nil,
		"repo:acme":              nil,
		"repo:acme/":             nil,
		"repo:acme/../evil/x":    nil,
		"x":                      {"repository": "acme/reports", "ref": "refs/heads/main2"},
		"y":                      {"repository": "acme/reports"},
		"z":                      {"groups": []string{"operators2"}},
		"z2":                     {"groups": map[string]any{"operators": true}},
		"z3":                     {"groups": 7},
	} {
		w.refused(w.Sign(w.Claims(audience, subject, others)), "no rule of this service covers it")
	}
}

func TestTokensThatAreNoGood(t *testing.T) {
	w := newWorld(t)
	ok := map[string]any{"groups": "operators"}
	claims := w.Claims(audience, "ops", ok)
	w.good("ops", ok)
	signed := w.Sign(claims)
	parts := strings.Split(signed, ".")
	key := w.Key()
	public := key.Public().Key.(*rsa.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	spelled := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	symmetric := func(secret []byte) string {
		return issuertest.SignWith(t, jose.SigningKey{Algorithm: jose.HS256, Key: jose.JSONWebKey{Key: secret, KeyID: key.KeyID}}, claims)
	}
	stranger := issuertest.New(t)
	strangers := stranger.Key()
	strangers.KeyID = key.KeyID
	other := func(changes map[string]any) string {
		changed := w.Claims(audience, "ops", ok)
		for name, v := range changes {
			if changed[name] = v; v == nil {
				delete(changed, name)
			}
		}
		return w.Sign(changed)
	}
	now := time.Now()
	whole, err := json.Marshal(map[string]any{"payload": parts[1], "protected": parts[0], "signature": parts[2]})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ token, reason string }{
		"unsigned":             {parts[0] + "." + parts[1] + ".", "signature is not the issuer's"},
		"alg none":             {encode(`{"alg":"none"}`) + "." + parts[1] + ".", "not signed with an algorithm of public keys"},
		"alg NonE":             {encode(`{"alg":"NonE"}`) + "." + parts[1] + "." + parts[2], "not signed with an algorithm of public keys"},
		"HS256 by public key":  {symmetric(der), "not signed with an algorithm of public keys"},
		"HS256 by PEM":         {symmetric(spelled), "not signed with an algorithm of public keys"},
		"another's key":        {issuertest.SignWith(t, jose.SigningKey{Algorithm: jose.RS256, Key: strangers}, claims), "signature is not the issuer's"},
		"key in the token":     {embedded(t, stranger, claims), "signature is not the issuer's"},
		"changed":              {parts[0] + "." + encode(strings.Replace(mustDecode(t, parts[1]), "operators", "operatorz", 1)) + "." + parts[2], "signature is not the issuer's"},
		"truncated":            {signed[:len(signed)-20], ""},
		"in JSON":              {string(whole), "not a JSON web token"},
		"no token":             {"a.b.c", "not a JSON web token"},
		"empty":                {"..", "not a JSON web token"},
		"large":                {parts[0] + "." + parts[1] + "." + strings.Repeat("A", maxToken), "not a JSON web token"},
		"wrong issuer":         {stranger.Sign(stranger.Claims(audience, "ops", ok)), "issuer is not trusted"},
		"issuer with slash":    {other(map[string]any{"iss": w.URL() + "/"}), "issuer is not trusted"},
		"no issuer":            {other(map[string]any{"iss": nil}), "issuer is not trusted"},
		"wrong audience":       {other(map[string]any{"aud": audience + ".evil"}), "for another audience"},
		"wrong audiences":      {other(map[string]any{"aud": []string{"a", "b"}}), "for another audience"},
		"no audience":          {other(map[string]any{"aud": nil}), "for another audience"},
		"no subject":           {other(map[string]any{"sub": nil}), "names no subject"},
		"expired":              {other(map[string]any{"exp": now.Add(-2 * time.Minute).Unix()}), "expired"},
		"expired a minute ago": {other(map[string]any{"exp": now.Add(-61 * time.Second).Unix()}), "expired"},
		"no expiry":            {other(map[string]any{"exp": nil}), "does not say when it expires"},
		"expiry as text":       {other(map[string]any{"exp": "tomorrow"}), "not a JSON web token"},
		"not yet":              {other(map[string]any{"nbf": now.Add(90 * time.Second).Unix()}), "not valid yet"},
		"issued later":         {other(map[string]any{"iat": now.Add(90 * time.Second).Unix()}), "issued in the future"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.refused(c.token, c.reason)
		})
	}
	w.t = t
	// A minute of skew is tolerated, either way.
	for name, times := range map[string]map[string]any{
		"just expired": {"exp": now.Add(-30 * time.Second).Unix()},
		"early":        {"nbf": now.Add(50 * time.Second).Unix(), "iat": now.Add(50 * time.Second).Unix()},
		"audiences":    {"aud": []string{"other", audience}},
	} {
		if _, err := w.Verify(t.Context(), other(times)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// embedded is a token that brings the key along that it is signed with.
func embedded(t *testing.T, i *issuertest.Issuer, claims map[string]any) string {
	t.Helper()
	key := i.Key()
	key.KeyID = "mine"
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func mustDecode(t *testing.T, s string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A token that was good is refused once it is expired, and does not outlive it in memory.
func TestGoodTokensExpire(t *testing.T) {
	w := newWorld(t)
	at := time.Now().Truncate(time.Second) // stands still: the token must end before it would be verified again anyway
	w.now = func() time.Time { return at.Add(w.ahead) }
	left := rememberFor / 2
	token := w.Sign(w.Claims(audience, "ops", map[string]any{"groups": "operators", "exp": at.Add(left - skew).Unix()}))
	if _, err := w.Verify(t.Context(), token); err != nil || !w.Recognizes(token) {
		t.Fatalf("%v, recognized: %v", err, w.Recognizes(token))
	}
	w.ahead = left
	w.refused(token, "expired")
	if w.Recognizes(token) {
		t.Error("an expired token is recognized")
	}
}

// An issuer's new key is found when a token names it, and a withdrawn one is not good for long.
func TestKeysAreFetchedAgain(t *testing.T) {
	w := newWorld(t)
	ok := map[string]any{"groups": "operators", "exp": time.Now().Add(100 * time.Hour).Unix()}
	old := w.Sign(w.Claims(audience, "ops", ok))
	w.good("ops", ok)
	w.RotateEC("second")
	fresh := w.Sign(w.Claims(audience, "ops", ok))
	w.refused(fresh, "a key that the issuer does not have") // it was asked a moment ago
	w.ahead = fetchPause
	w.good("ops", ok)
	w.ahead += rememberFor + time.Second
	w.refused(old, "a key that the issuer does not have")
	if got := w.Fetches(); got != 3 {
		t.Errorf("the keys were fetched %d times, want 3", got)
	}

	// Without an unknown key in sight they are fetched when they are old, while callers go on.
	w.Publish() // nothing any more
	w.ahead += refreshAfter
	w.good("ops", ok)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		w.Verifier.good.Purge()
		if _, err := w.Verify(t.Context(), fresh); errors.Is(err, pointer.ErrUnauthenticated) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a withdrawn key is good for ever")
		}
	}
}

// Strangers' tokens do not become requests to the issuer.
func TestRefetchingIsBounded(t *testing.T) {
	w := newWorld(t)
	w.good("ops", map[string]any{"groups": "operators"})
	claims := w.Claims(audience, "ops", map[string]any{"groups": "operators"})
	key := w.Key()
	for n := range 200 {
		key.KeyID = fmt.Sprint("invented-", n)
		w.refused(issuertest.SignWith(t, jose.SigningKey{Algorithm: jose.RS256, Key: key}, claims), "a key that the issuer does not have")
	}
	if got := w.Fetches(); got != 1 {
		t.Errorf("the keys were fetched %d times", got)
	}
}

// While an issuer is down, or does not answer, its keys stay good, and nobody waits for it who need
// not.
func TestIssuerDown(t *testing.T) {
	w := newWorld(t)
	ok := map[string]any{"groups": "operators", "exp": time.Now().Add(100 * time.Hour).Unix()}
	hold := make(chan struct{})
	defer close(hold)
	w.GoDown(func() { <-hold })
	first := w.Sign(w.Claims(audience, "ops", ok))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := w.Verify(ctx, first); !errors.Is(err, pointer.ErrUnavailable) || errors.Is(err, pointer.ErrUnauthenticated) {
		t.Errorf("with an issuer that does not answer: %v", err)
	}
	w.GoDown(nil)
	w.Verifier.issuers[w.URL()].keys.fetches.Forget("")
	w.ahead = fetchPause
	w.good("ops", ok)

	w.GoDown(func() { <-hold })
	for _, later := range []time.Duration{refreshAfter + fetchPause, time.Hour, keepFor - time.Hour} {
		w.ahead = later
		w.good("ops", ok) // would hang for fetchTimeout if it waited
	}
	w.GoDown(func() {})
	w.ahead = keepFor + time.Hour
	if _, err := w.Verify(t.Context(), w.Sign(w.Claims(audience, "ops", ok))); !errors.Is(err, pointer.ErrUnavailable) {
		t.Errorf("with keys of yesterday: %v", err)
	}
	w.GoDown(nil)
	w.ahead += fetchPause
	w.good("ops", ok)
}

// A symmetric key in what the issuer publishes is no key: everybody has it.
func TestSymmetricKeysAreNotTaken(t *testing.T) {
	w := newWorld(t)
	secret := jose.JSONWebKey{Key: []byte(strings.Repeat("s", 32)), KeyID: "sym", Algorithm: "HS256"}
	own := w.Key()
	public := own.Public()
	w.Publish(secret, public)
	w.good("ops", map[string]any{"groups": "operators"})
	w.refused(issuertest.SignWith(t, jose.SigningKey{Algorithm: jose.HS256, Key: secret}, w.Claims(audience, "ops", map[string]any{"groups": "operators"})), "not signed with an algorithm of public keys")
}

// Only public keys that are meant for signatures are used.
func TestSigningKeys(t *testing.T) {
	own := issuertest.New(t).Key()
	public := own.Public()
	encrypts := public
	encrypts.KeyID, encrypts.Use = "encrypts", "enc"
	private := own
	private.KeyID = "private"
	found := signingKeys(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: []byte(strings.Repeat("s", 32)), KeyID: "symmetric"}, encrypts, private, public,
	}})
	if len(found) != 1 || len(found[public.KeyID]) != 1 {
		t.Errorf("keys: %v", found)
	}
	many := jose.JSONWebKeySet{}
	for n := range 3 * maxKeys {
		k := public
		k.KeyID = fmt.Sprint(n)
		many.Keys = append(many.Keys, k)
	}
	if found := signingKeys(many); len(found) != maxKeys {
		t.Errorf("%d keys are used", len(found))
	}
}

func TestConfigFaults(t *testing.T) {
	rules := "rules: [{claims: {sub: a}, scopes: [read], patterns: [a]}]"
	for text, says := range map[string]string{
		"":            "EOF",
		"issuers: []": "name one at least",
		"issuers: [{issuer: 'http://example.com', audience: a, " + rules + "}]":                                                               "must be an https URL",
		"issuers: [{issuer: 'https://user:pw@example.com', audience: a, " + rules + "}]":                                                      "must be an https URL",
		"issuers: [{issuer: 'https://example.com', " + rules + "}]":                                                                           "issuers[0].audience",
		"issuers: [{issuer: 'https://example.com', audience: a}]":                                                                             "issuers[0].rules",
		"issuers: [{issuer: 'https://example.com', audience: a, keys_url: 'file:///x', " + rules + "}]":                                       "issuers[0].keys_url",
		"issuers: [{issuer: 'https://example.com', audience: a, ca_file: /nonexistent, " + rules + "}]":                                       "issuers[0].ca_file",
		"issuers: [{issuer: 'https://example.com', audience: a, misspelt: b, " + rules + "}]":                                                 "misspelt",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{scopes: [read], patterns: [a]}]}]":                                   "issuers[0].rules[0].claims",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {sub: '*'}, scopes: [read], patterns: [a]}]}]":               "other than",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {aud: a}, scopes: [read], patterns: [a]}]}]":                 "other than",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {sub: 'acme*'}, scopes: [read], patterns: [a]}]}]":           "begin alike",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {sub: 'a/*/b'}, scopes: [read], patterns: [a]}]}]":           "only stand at the end",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {sub: a}, scopes: [read], patterns: ['team-a*']}]}]":         "prefix.*",
		"issuers: [{issuer: 'https://example.com', audience: a, rules: [{claims: {sub: a}, scopes: [owner], patterns: [a]}]}]":                "read, publish and admin",
		"issuers: [{issuer: 'https://example.com', audience: a, " + rules + "}, {issuer: 'https://example.com', audience: b, " + rules + "}]": "twice",
	} {
		if _, err := Load(issuertest.WriteConfig(t, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s:\n%v, want %q", text, err, says)
		}
	}
	if _, err := Load("/nonexistent"); err == nil {
		t.Error("a file that is not there was loaded")
	}
}
