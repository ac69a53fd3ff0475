package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/artifactd/artifactd/pointer"
)

const (
	// skew is how far apart this clock and an issuer's may be.
	skew = time.Minute
	// maxToken bounds a token, in bytes; those of the large platforms have some two thousand.
	maxToken = 16 << 10
	// rememberFor is how long a token that was verified is believed without verifying it again.
	rememberFor = 10 * time.Second
	// remembered is how many of them.
	remembered = 4096
)

// algorithms that are accepted: those with a public key. With the others whoever can check a token
// can make one.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Refusal says why a token is no good; errors.Is(err, [pointer.ErrUnauthenticated]) holds for it. Its
// text has nothing of the token in it. Issuer and Subject are what the token says of itself, quoted,
// which may be a lie: they are for the log.
type Refusal struct {
	Reason          string
	Issuer, Subject string
}

func (r *Refusal) Error() string { return "the identity token is refused: " + r.Reason }

// Unwrap leads to what kind of error it is.
func (r *Refusal) Unwrap() error { return pointer.ErrUnauthenticated }

// LogValue tells the log more than the caller.
func (r *Refusal) LogValue() slog.Value {
	return slog.GroupValue(slog.String("reason", r.Reason), slog.String("claimed_issuer", r.Issuer), slog.String("claimed_subject", r.Subject))
}

// Verifier finds callers. It is safe for concurrent use.
type Verifier struct {
	issuers map[string]*trusted
	good    *lru.Cache[[sha256.Size]byte, believed]
	now     func() time.Time
}

type trusted struct {
	Issuer
	keys *keyCache
}

// believed is a token that was verified.
type believed struct {
	caller *pointer.Caller
	until  time.Time // to be verified again then
	end    time.Time // of the token itself
}

// New makes a verifier of a configuration that [Load] has checked. It asks nobody yet: an issuer that
// is down must not keep the service down.
func New(c Config) *Verifier {
	good, err := lru.New[[sha256.Size]byte, believed](remembered)
	if err != nil {
		panic(err) // only for a size below 1
	}
	v := &Verifier{issuers: map[string]*trusted{}, good: good, now: time.Now}
	for _, i := range c.Issuers {
		v.issuers[i.Issuer] = &trusted{Issuer: i, keys: newKeyCache(i, func() time.Time { return v.now() })}
	}
	return v
}

// Recognizes reports whether a token was good a moment ago. It asks nobody, and allows nothing.
func (v *Verifier) Recognizes(token string) bool {
	b, ok := v.good.Get(sha256.Sum256([]byte(token)))
	return ok && v.now().Before(b.end)
}

// Verify finds the caller that a token belongs to. [*Refusal]; [pointer.ErrUnavailable] when the
// issuer's keys are not known and cannot be fetched.
func (v *Verifier) Verify(ctx context.Context, token string) (*pointer.Caller, error) {
	hash := sha256.Sum256([]byte(token))
	if b, ok := v.good.Get(hash); ok && v.now().Before(b.until) {
		return b.caller, nil
	}
	caller, end, err := v.verify(ctx, token)
	if err != nil {
		v.good.Remove(hash)
		return nil, err
	}
	until := v.now().Add(rememberFor)
	if end.Before(until) {
		until = end
	}
	v.good.Add(hash, believed{caller: caller, until: until, end: end})
	return caller, nil
}

// claimed is what a token says of itself.
type claimed struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"`
	Expires   number `json:"exp"`
	NotBefore number `json:"nbf"`
	IssuedAt  number `json:"iat"`
}

// number is a time in seconds; not there is not the same as 0.
type number struct{ *float64 }

func (n *number) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &n.float64) }

func (n number) time() time.Time { return time.UnixMilli(int64(*n.float64 * 1000)) }

func (v *Verifier) verify(ctx context.Context, token string) (*pointer.Caller, time.Time, error) {
	var never time.Time
	said, err := peek(token)
	if err != nil {
		return nil, never, &Refusal{Reason: err.Error()}
	}
	refuse := func(reason string) error {
		return &Refusal{Reason: reason, Issuer: quoted(said.Issuer), Subject: quoted(said.Subject)}
	}
	from := v.issuers[said.Issuer]
	if from == nil {
		return nil, never, refuse("its issuer is not trusted here")
	}
	jws, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, never, refuse("it is not signed with an algorithm of public keys")
	}
	keys, err := from.keys.find(ctx, jws.Signatures[0].Header.KeyID)
	switch {
	case errors.Is(err, errUnknownKey):
		return nil, never, refuse(err.Error())
	case err != nil:
		return nil, never, err
	}
	end, err := v.inTime(said)
	if err != nil {
		return nil, never, refuse(err.Error())
	}
	claims, reason := from.check(ctx, token, &oidc.StaticKeySet{PublicKeys: keys})
	if reason != "" {
		return nil, never, refuse(reason)
	}
	for i := range from.Rules {
		if r := &from.Rules[i]; r.grants(claims) {
			return &pointer.Caller{
				ID:     uuid.NewSHA1(uuid.NameSpaceURL, []byte(said.Issuer+"\n"+said.Subject)),
				Issuer: said.Issuer, Name: said.Subject, Scopes: r.Scopes, Patterns: r.Patterns,
			}, end, nil
		}
	}
	return nil, never, refuse("no rule of this service covers it")
}

// check has the library check signature, issuer and audience. What inTime read before is what was
// signed: the library compares the two.
func (t *trusted) check(ctx context.Context, token string, keys oidc.KeySet) (claims map[string]any, reason string) {
	var names []string
	for _, a := range algorithms {
		names = append(names, string(a))
	}
	// The library's own tolerance for time is none for exp and five minutes for nbf.
	id, err := oidc.NewVerifier(t.Issuer.Issuer, keys, &oidc.Config{SkipClientIDCheck: true, SkipExpiryCheck: true, SupportedSigningAlgs: names}).Verify(ctx, token)
	if err != nil {
		return nil, "its signature is not the issuer's"
	}
	if !slices.Contains(id.Audience, t.Audience) {
		return nil, fmt.Sprintf("it is for another audience than %q", t.Audience)
	}
	if err := id.Claims(&claims); err != nil || id.Subject == "" {
		return nil, "it names no subject"
	}
	return claims, ""
}

// inTime checks the times that a token names, and returns when it ends.
func (v *Verifier) inTime(said claimed) (end time.Time, err error) {
	now := v.now()
	if said.Expires.float64 == nil {
		return end, errors.New("it does not say when it expires")
	}
	end = said.Expires.time().Add(skew)
	switch {
	case !now.Before(end):
		return end, errors.New("it is expired")
	case said.NotBefore.float64 != nil && now.Before(said.NotBefore.time().Add(-skew)):
		return end, errors.New("it is not valid yet; are the clocks right?")
	case said.IssuedAt.float64 != nil && now.Before(said.IssuedAt.time().Add(-skew)):
		return end, errors.New("it was issued in the future; are the clocks right?")
	}
	return end, nil
}

// peek reads a token's claims without believing them.
func peek(token string) (said claimed, err error) {
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 {
		return said, errors.New("it is not a JSON web token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &said) != nil {
		return said, errors.New("it is not a JSON web token")
	}
	return said, nil
}

// quoted is a stranger's text for the log.
func quoted(s string) string { return strconv.QuoteToASCII(s[:min(len(s), 200)]) }
