package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/pointer"
)

// callerKey is where a request's caller is kept.
const callerKey = "artifactd.caller"

// caller is who sent a request. The zero value is nobody in particular.
type caller struct {
	known *pointer.Caller // nil for an anonymous caller
}

// callerOf is the caller that authenticate has found.
func callerOf(c echo.Context) caller {
	who, _ := c.Get(callerKey).(caller)
	return who
}

// label names a caller in logs.
func (who caller) label() string {
	if who.known == nil {
		return "anonymous"
	}
	if who.known.Issuer != "" {
		return who.known.Name + "@" + who.known.Issuer
	}
	return who.known.Name + "/" + who.known.ID.String()
}

// has reports whether the caller holds a scope on any pointer at all.
func (who caller) has(scope pointer.Scope) bool { return who.known != nil && who.known.Has(scope) }

// may reports whether the caller holds a scope on one pointer.
func (who caller) may(scope pointer.Scope, name string) bool {
	return who.known != nil && who.known.May(scope, name)
}

// mayEverywhere reports whether the caller holds a scope on every pointer.
func (who caller) mayEverywhere(scope pointer.Scope) bool {
	return who.has(scope) && slices.Contains(who.known.Patterns, "*")
}

// refuse is the answer to a caller who lacks a scope: the same whether the pointer exists or not.
func (who caller) refuse(scope pointer.Scope, what string) error {
	if who.known == nil {
		return pointer.ErrUnauthenticated
	}
	return &fault{kind: errForbidden, detail: fmt.Sprintf("This access token has no %s scope on %s.", scope, what)}
}

// Identities finds the callers behind identity tokens that other services have issued. Package
// identity has one.
type Identities interface {
	// Verify finds a token's caller. An error that is [pointer.ErrUnauthenticated] is told to the
	// caller as it is; one that is a slog.LogValuer tells the log more.
	Verify(ctx context.Context, token string) (*pointer.Caller, error)
	// Recognizes reports whether a token was good a moment ago, without asking anybody.
	Recognizes(token string) bool
}

// authenticate finds out who calls. Only public data may be asked for without a token, and a token
// that is no good is refused even there. What it returns ends the caller's request.
func (s *Server) authenticate(c echo.Context, op *operation) (done func(), err error) {
	from := s.limits.address(c)
	token, err := bearer(c.Request())
	switch {
	case err != nil || token == "" && op.access != accessReadPublic:
		if err == nil {
			err = &fault{kind: pointer.ErrUnauthenticated, detail: "This call needs an access token: send Authorization: Bearer artd_…"}
		}
		return nil, s.failed(c, from, err)
	case token == "":
		return s.limits.enter(c, s.limits.addresses.of(from), op)
	}
	// Whoever guesses from an address must not keep callers out who share it.
	if b := s.limits.failures.of(from); b.exhausted() && !s.recognizes(token) {
		return nil, b.tooMany(c, "Too many credentials from this address were no good; wait before trying another.")
	}
	// The deadline is of its own: an operation that moves bytes has none, and a database that does
	// not answer must not hold its caller for ever.
	ctx, cancel := context.WithTimeout(c.Request().Context(), admitDeadline)
	defer cancel()
	found, err := s.identify(ctx, token)
	if errors.Is(err, pointer.ErrUnauthenticated) {
		return nil, s.failed(c, from, err)
	}
	if err != nil {
		return nil, err
	}
	who := caller{known: found}
	c.Set(callerKey, who)
	if done, err = s.limits.enter(c, s.limits.callers.of(found.ID), op); err != nil {
		return nil, err
	}
	// A call that names its pointers elsewhere is checked again by its handler, pointer by pointer.
	if scope := op.access.scope(); scope != "" && op.access != accessReadPublic && !op.named && !who.has(scope) {
		done()
		return nil, who.refuse(scope, "any pointer")
	}
	return done, nil
}

// bearer is the request's token, empty when it has none.
func bearer(r *http.Request) (string, error) {
	values := r.Header.Values(echo.HeaderAuthorization)
	if len(values) == 0 {
		return "", nil
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if token = strings.TrimSpace(token); len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", &fault{kind: pointer.ErrUnauthenticated, detail: "Send one Authorization header of the form: Bearer artd_…"}
	}
	return token, nil
}

// identify finds the caller that a token belongs to. [pointer.ErrUnauthenticated].
func (s *Server) identify(ctx context.Context, token string) (*pointer.Caller, error) {
	if s.identities != nil && isIdentityToken(token) {
		found, err := s.identities.Verify(ctx, token)
		if errors.Is(err, pointer.ErrUnauthenticated) {
			return nil, &fault{kind: err, detail: err.Error()}
		}
		if errors.Is(err, pointer.ErrUnavailable) { // the issuer's address is in the error
			return nil, &fault{kind: err, detail: "the issuer of the identity token does not give its keys; try again, and look at it if it stays so"}
		}
		return found, err
	}
	found, err := s.catalogue.Authenticate(ctx, token)
	if errors.Is(err, pointer.ErrUnauthenticated) {
		return nil, &fault{kind: pointer.ErrUnauthenticated, detail: "The access token is unknown, expired or revoked."}
	}
	return found, err
}

func (s *Server) recognizes(token string) bool {
	if s.identities != nil && isIdentityToken(token) {
		return s.identities.Recognizes(token)
	}
	return s.catalogue.Recognizes(token)
}

// isIdentityToken tells a JSON web token from one of ours by its two dots.
func isIdentityToken(token string) bool { return strings.Count(token, ".") == 2 }

// failed counts a request without a good credential against its address.
func (s *Server) failed(c echo.Context, from netip.Addr, err error) error {
	if b := s.limits.failures.of(from); !b.take() {
		return b.tooMany(c, "Too many requests from this address had no good credential; wait before the next one.")
	}
	return err
}

// authorize checks the caller's scope on the pointer that the path names.
func (s *Server) authorize(c echo.Context, op *operation, name string) error {
	if !validName(name) {
		return invalid("name", "name: a pointer's name has 1 to %d letters, digits, dots, underscores and dashes, and begins with a letter or digit", pointer.MaxNameBytes)
	}
	who, scope := callerOf(c), op.access.scope()
	if who.may(scope, name) {
		return nil
	}
	if op.access == accessReadPublic {
		ctx, cancel := context.WithTimeout(c.Request().Context(), admitDeadline)
		defer cancel()
		public, err := s.catalogue.Public(ctx, name)
		if err != nil {
			return err
		}
		if public {
			return nil
		}
	}
	return who.refuse(scope, name)
}

// validName reports whether a text can be a pointer's name. The hottest reads ask nothing else.
func validName(name string) bool {
	if name == "" || len(name) > pointer.MaxNameBytes || strings.IndexByte("._-", name[0]) >= 0 {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// maxHolder is how long the name of a holder can be, in bytes.
const maxHolder = 200

// holder is the name under which a caller's own publications stand in the history.
func (who caller) holder() string {
	if who.known == nil || who.known.Name == "" {
		return "unknown"
	}
	name := who.known.Name // a workload's subject can be longer than a holder's name
	for len(name) > maxHolder {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}
