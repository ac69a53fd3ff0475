package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// authenticate finds out who calls. Only public data may be asked for without a token, and a token
// that is no good is refused even there.
func (s *Server) authenticate(c echo.Context, op *operation) error {
	values := c.Request().Header.Values(echo.HeaderAuthorization)
	if len(values) == 0 {
		if op.access == accessReadPublic {
			return nil
		}
		return &fault{kind: pointer.ErrUnauthenticated, detail: "This call needs an access token: send Authorization: Bearer artd_…"}
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if len(values) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") {
		return &fault{kind: pointer.ErrUnauthenticated, detail: "Send one Authorization header of the form: Bearer artd_…"}
	}
	// The deadline is of its own: an operation that moves bytes has none, and a database that does
	// not answer must not hold its caller for ever.
	ctx, cancel := context.WithTimeout(c.Request().Context(), admitDeadline)
	defer cancel()
	found, err := s.catalogue.Authenticate(ctx, strings.TrimSpace(token))
	if errors.Is(err, pointer.ErrUnauthenticated) {
		return &fault{kind: pointer.ErrUnauthenticated, detail: "The access token is unknown, expired or revoked."}
	}
	if err != nil {
		return err
	}
	who := caller{known: found}
	c.Set(callerKey, who)
	// A call that names its pointers elsewhere is checked again by its handler, pointer by pointer.
	if scope := op.access.scope(); scope != "" && op.access != accessReadPublic && !op.named && !who.has(scope) {
		return who.refuse(scope, "any pointer")
	}
	return nil
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

// holder is the name under which a caller's own publications stand in the history.
func (who caller) holder() string {
	if who.known == nil || who.known.Name == "" {
		return "unknown"
	}
	return who.known.Name
}
