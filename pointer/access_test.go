package pointer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Secrets that nobody has seen before are looked up a few at a time, however many come; callers who
// are known do not wait for them.
func TestGuessesStandInLine(t *testing.T) {
	w := newWorld(t)
	c := w.worker()
	_, secret, err := c.CreateToken(t.Context(), "ci", []Scope{ScopeRead}, []string{"*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Recognizes(secret) {
		t.Error("a token that was never used is recognized")
	}
	if _, err := c.Authenticate(t.Context(), secret); err != nil || !c.Recognizes(secret) {
		t.Fatalf("%v, recognized: %v", err, c.Recognizes(secret))
	}
	guess, err := NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	for range maxStrangers {
		c.callers.strangers <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Authenticate(ctx, guess); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnauthenticated) {
		t.Errorf("a guess behind others: %v", err)
	}
	e, _ := c.callers.known.Get(sha256.Sum256([]byte(secret)))
	e.at = e.at.Add(-callerTTL) // to be looked up again
	c.callers.known.Add(sha256.Sum256([]byte(secret)), e)
	if _, err := c.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("a caller who is known, behind guesses: %v", err)
	}
	<-c.callers.strangers
	if _, err := c.Authenticate(t.Context(), guess); !errors.Is(err, ErrUnauthenticated) || c.Recognizes(guess) {
		t.Errorf("a guess: %v, recognized: %v", err, c.Recognizes(guess))
	}
	if len(c.callers.strangers) != maxStrangers-1 {
		t.Error("a place in the line is not given back")
	}
}

// What a pattern covers, and which cannot be given to anybody: none reaches names that only begin alike.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		covers        bool
	}{
		{"*", "anything.at.all", true},
		{"team-a.*", "team-a.x", true}, {"team-a.*", "team-a.x.y", true}, {"team-a.*", "team-a..x", true},
		{"team-a.*", "team-a", false}, {"team-a.*", "team-ab", false}, {"team-a.*", "team-ab.x", false}, {"team-a.*", "Team-a.x", false},
		{"team-a", "team-a", true}, {"team-a", "team-a.x", false}, {"team-a", "team-ab", false}, {"team-a", "team-", false},
	} {
		if err := CheckGrant([]Scope{ScopeRead}, []string{c.pattern}); err != nil {
			t.Errorf("%s: %v", c.pattern, err)
		}
		for _, scope := range []Scope{ScopeRead, ScopePublish, ScopeAdmin} {
			caller := Caller{Scopes: []Scope{ScopePublish}, Patterns: []string{"unrelated", c.pattern}}
			if may := caller.May(scope, c.name); may != (c.covers && scope != ScopeAdmin) {
				t.Errorf("publish on %s: %s on %s: %v", c.pattern, scope, c.name, may)
			}
		}
	}
	for _, pattern := range []string{
		"", "team-a*", "team-a-*", "team-*.x", "*.x", "**", "*.*", "team-a.**", "team-a.*.*", ".*", "-x", "team-a.* ", "team a", "team-a.*\n", "team/a.*", strings.Repeat("a", 201),
	} {
		if err := CheckGrant([]Scope{ScopeRead}, []string{"fine", pattern}); err == nil {
			t.Errorf("%q can be granted", pattern)
		}
	}
	for _, scopes := range [][]Scope{nil, {"owner"}, {ScopeRead, "ADMIN"}} {
		if err := CheckGrant(scopes, []string{"*"}); err == nil {
			t.Errorf("%q can be granted", scopes)
		}
	}
}

// Guesses do not drive callers out of the memory.
func TestGuessesDoNotForgetCallers(t *testing.T) {
	t.Parallel()
	cache := newCallerCache()
	hash := sha256.Sum256([]byte("caller"))
	cache.put(hash, &Caller{Name: "ci"})
	for n := range 10_000 {
		cache.put(sha256.Sum256([]byte{byte(n), byte(n >> 8)}), nil)
	}
	if found, ok := cache.get(hash); !ok || found == nil {
		t.Error("the caller is forgotten")
	}
	if cache.put(hash, nil); cache.known.Contains(hash) {
		t.Error("a caller that was revoked is remembered as one")
	}
}

// That a token was made or revoked is in the database's own log: who, what, from where, and no secret.
func TestTokensAreAudited(t *testing.T) {
	w := newWorld(t)
	cfg, err := pgx.ParseConfig(w.db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { said = append(said, n.Severity+": "+n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	id, hash := uuid.New(), sha256.Sum256([]byte("secret"))
	for _, statement := range []struct {
		sql  string
		args []any
	}{
		{"SET client_min_messages = log", nil},
		{createTokenSQL, []any{id, hash[:], "ci", []Scope{ScopePublish}, []string{"team-a.*"}, nil}},
		{revokeTokenSQL, []any{id}},
		{revokeTokenSQL, []any{uuid.New()}}, // there is none
	} {
		if _, err := conn.Exec(t.Context(), statement.sql, statement.args...); err != nil {
			t.Fatal(err)
		}
	}
	var audit []string
	for _, line := range said {
		if strings.Contains(line, "artifactd audit") {
			audit = append(audit, line)
		}
	}
	all := strings.Join(audit, "\n")
	if len(audit) != 2 || !strings.HasPrefix(all, "LOG: ") {
		t.Fatalf("the log has %q", audit)
	}
	for _, want := range []string{id.String(), "'ci'", "publish", "team-a.*", "created", "revoked", "role " + cfg.User} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in %s", want, all)
		}
	}
	if strings.Contains(all, hex.EncodeToString(hash[:])) {
		t.Error("the hash is in the log")
	}
}
