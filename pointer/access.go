package pointer

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
)

const (
	createTokenSQL  = `SELECT artifactd.create_access_token($1, $2, $3, $4, $5, $6)`
	revokeTokenSQL  = `SELECT known FROM artifactd.revoke_access_token($1)`
	authenticateSQL = `SELECT id, name, scopes, patterns FROM artifactd.authenticate($1)`
	listTokensSQL   = `SELECT access_token_id, name, scopes, patterns, created_at, expires_at, revoked_at, last_used_at
		FROM artifactd.access_token ORDER BY created_at, access_token_id`
)

// Caller is an authenticated caller and what it may do.
type Caller struct {
	// ID tells callers apart. It is the access token's, or made of a workload's issuer and subject.
	ID uuid.UUID
	// Name of the access token, or the subject of a workload's identity token.
	Name string
	// Issuer of the identity token; empty for an access token.
	Issuer   string
	Scopes   []Scope
	Patterns []string
}

// May reports whether the caller has at least this scope for the pointer of this name.
func (c *Caller) May(scope Scope, name string) bool {
	return c.Has(scope) && slices.ContainsFunc(c.Patterns, func(p string) bool { return matches(p, name) })
}

// Has reports whether the caller has at least this scope for some pointer.
func (c *Caller) Has(scope Scope) bool {
	return slices.ContainsFunc(c.Scopes, func(s Scope) bool { return rank(s) >= rank(scope) })
}

func rank(s Scope) int { return slices.Index([]Scope{ScopeRead, ScopePublish, ScopeAdmin}, s) }

func matches(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

const (
	secretPrefix  = "artd_"
	secretRandom  = 32 // base-62 characters: 190 bits
	secretDigits  = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	secretSumSize = 6 // base-62 characters of a CRC-32, so that a mistyped secret is told from a wrong one
)

// NewSecret makes what could be the secret of an access token: artd_, random characters, checksum. It
// is nobody's.
func NewSecret() (string, error) {
	var b strings.Builder
	b.WriteString(secretPrefix)
	for range secretRandom {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(secretDigits))))
		if err != nil {
			return "", err
		}
		b.WriteByte(secretDigits[n.Int64()])
	}
	return b.String() + secretSum(b.String()), nil
}

func secretSum(s string) string {
	sum := crc32.ChecksumIEEE([]byte(s))
	out := make([]byte, secretSumSize)
	for i := range out {
		out[secretSumSize-1-i] = secretDigits[sum%uint32(len(secretDigits))]
		sum /= uint32(len(secretDigits))
	}
	return string(out)
}

// wellFormed tells a secret from anything else without asking the database.
func wellFormed(secret string) bool {
	cut := len(secretPrefix) + secretRandom
	return len(secret) == cut+secretSumSize && strings.HasPrefix(secret, secretPrefix) && secretSum(secret[:cut]) == secret[cut:]
}

// CheckGrant refuses scopes and patterns that nobody can be given. [*InvalidError].
func CheckGrant(scopes []Scope, patterns []string) error {
	if len(scopes) == 0 || slices.ContainsFunc(scopes, func(s Scope) bool { return rank(s) < 0 }) {
		return &InvalidError{Field: "scope", Detail: "one or more of read, publish and admin"}
	}
	if len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return !patternForm.MatchString(p) }) {
		return &InvalidError{Field: "pattern", Detail: `one or more of "*", "prefix.*" or a pointer's name`}
	}
	return nil
}

// patternForm: a "*" stands alone or behind a dot, so that team-a* cannot reach team-ab.
var patternForm = regexp.MustCompile(`^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,199}|[A-Za-z0-9][A-Za-z0-9._-]{0,198}\.\*)$`)

// CreateToken makes an access token. The secret is returned once and kept nowhere. expires may be
// nil for "never". [*InvalidError].
func (c *Catalogue) CreateToken(ctx context.Context, name string, scopes []Scope, patterns []string, expires *time.Time) (AccessToken, string, error) {
	if name == "" || len(name) > 200 || strings.ContainsRune(name, 0) {
		return AccessToken{}, "", &InvalidError{Field: "name", Detail: "1 to 200 bytes that say whose token this is"}
	}
	if err := CheckGrant(scopes, patterns); err != nil {
		return AccessToken{}, "", err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return AccessToken{}, "", err
	}
	secret, err := NewSecret()
	if err != nil {
		return AccessToken{}, "", err
	}
	hash := sha256.Sum256([]byte(secret))
	if err := c.run(ctx, createTokenSQL, id, hash[:], name, scopes, patterns, expires); err != nil {
		return AccessToken{}, "", err
	}
	return AccessToken{ID: id, Name: name, Scopes: scopes, Patterns: patterns, CreatedAt: time.Now(), ExpiresAt: expires}, secret, nil
}

// ListTokens lists every access token ever made, without secrets.
func (c *Catalogue) ListTokens(ctx context.Context) ([]AccessToken, error) {
	rows, err := c.pool.Query(ctx, listTokensSQL)
	if err != nil {
		return nil, readFault(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (AccessToken, error) {
		var t AccessToken
		err := row.Scan(&t.ID, &t.Name, &t.Scopes, &t.Patterns, &t.CreatedAt, &t.ExpiresAt, &t.RevokedAt, &t.LastUsed)
		return t, err
	})
	return list, readFault(err)
}

// ErrTokenNotFound: no access token has this id.
var ErrTokenNotFound = errors.New("there is no such access token")

// RevokeToken ends an access token on every replica within [callerTTL]. [ErrTokenNotFound].
func (c *Catalogue) RevokeToken(ctx context.Context, id uuid.UUID) error {
	var known bool
	if err := c.decideUnconfirmed(ctx, revokeTokenSQL, []any{id}, &known); err != nil {
		return definite(err)
	}
	if !known {
		return fmt.Errorf("%w: %s", ErrTokenNotFound, id)
	}
	return nil
}

// callerTTL is how long an authentication is believed without asking again, which bounds how
// long a revoked token still works. Failed ones are remembered as long.
const callerTTL = 2 * time.Second

// Authenticate finds the caller that a secret belongs to, or [ErrUnauthenticated].
func (c *Catalogue) Authenticate(ctx context.Context, secret string) (*Caller, error) {
	if !wellFormed(secret) {
		return nil, ErrUnauthenticated
	}
	hash := sha256.Sum256([]byte(secret))
	if caller, known := c.callers.get(hash); known {
		if caller == nil {
			return nil, ErrUnauthenticated
		}
		return caller, nil
	}
	if !c.Recognizes(secret) {
		// Guesses stand in a line of their own: they must not take the connections that callers wait for.
		select {
		case c.callers.strangers <- struct{}{}:
			defer func() { <-c.callers.strangers }()
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: look up an access token: %w", ErrUnavailable, ctx.Err())
		}
	}
	var caller Caller
	err := c.decideUnconfirmed(ctx, authenticateSQL, []any{hash[:]}, &caller.ID, &caller.Name, &caller.Scopes, &caller.Patterns)
	switch {
	case noRows(err):
		c.callers.put(hash, nil)
		return nil, ErrUnauthenticated
	case err != nil:
		return nil, definite(err)
	}
	c.callers.put(hash, &caller)
	return &caller, nil
}

// Recognizes reports whether a secret was a caller's when it was last looked at, not long ago. It
// asks nobody, and allows nothing: it tells a caller from whoever guesses.
func (c *Catalogue) Recognizes(secret string) bool {
	if !wellFormed(secret) {
		return false
	}
	e, ok := c.callers.known.Get(sha256.Sum256([]byte(secret)))
	return ok && time.Since(e.at) < recognizedFor
}

// maxStrangers is how many secrets that are not recognized are looked up at a time.
const maxStrangers = 2

// recognizedFor is how long after its last look-up a caller counts as recognized.
const recognizedFor = 10 * time.Minute

// callerCache remembers authentications for callerTTL, by the secret's hash. Those that failed have
// a place of their own, so that guesses do not drive callers out.
type callerCache struct {
	known, unknown *lru.Cache[[sha256.Size]byte, cachedCaller]
	strangers      chan struct{} // held while a secret that is not recognized is looked up
}

type cachedCaller struct {
	caller *Caller // nil: known to be nobody
	at     time.Time
}

func newCallerCache() *callerCache {
	known, err := lru.New[[sha256.Size]byte, cachedCaller](4096)
	unknown, err2 := lru.New[[sha256.Size]byte, cachedCaller](1024)
	if err != nil || err2 != nil {
		panic("a cache has room for one at least") // only for a size below 1
	}
	return &callerCache{known: known, unknown: unknown, strangers: make(chan struct{}, maxStrangers)}
}

func (c *callerCache) get(hash [sha256.Size]byte) (caller *Caller, found bool) {
	for _, entries := range []*lru.Cache[[sha256.Size]byte, cachedCaller]{c.known, c.unknown} {
		if e, ok := entries.Get(hash); ok && time.Since(e.at) < callerTTL {
			return e.caller, true
		}
	}
	return nil, false
}

func (c *callerCache) put(hash [sha256.Size]byte, caller *Caller) {
	e := cachedCaller{caller: caller, at: time.Now()}
	if caller == nil {
		c.known.Remove(hash)
		c.unknown.Add(hash, e)
		return
	}
	c.known.Add(hash, e)
}
