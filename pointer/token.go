package pointer

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
)

// ErrBadToken says that a text is not "<epoch>.<generation>" with two positive decimal numbers.
var ErrBadToken = errors.New(`token must be "<epoch>.<generation>", for example "3.42"`)

// Token is the fencing token of one generation: "<epoch>.<generation>". Tokens of one pointer
// are ordered by epoch, then by generation, and only ever increase. The zero value is no token.
type Token struct{ Epoch, Generation int64 }

// ParseToken reads the one canonical spelling of a token; anything else is [ErrBadToken].
func ParseToken(s string) (Token, error) {
	e, g, ok := strings.Cut(s, ".")
	if !ok {
		return Token{}, ErrBadToken
	}
	epoch, err1 := parsePositive(e)
	generation, err2 := parsePositive(g)
	if err1 != nil || err2 != nil {
		return Token{}, ErrBadToken
	}
	return Token{Epoch: epoch, Generation: generation}, nil
}

// parsePositive refuses signs, leading zeros and zero, so that equal tokens are equal texts.
func parsePositive(s string) (int64, error) {
	if s == "" || s[0] < '1' || s[0] > '9' {
		return 0, ErrBadToken
	}
	return strconv.ParseInt(s, 10, 64)
}

// String is the canonical spelling.
func (t Token) String() string {
	return strconv.FormatInt(t.Epoch, 10) + "." + strconv.FormatInt(t.Generation, 10)
}

// IsZero reports whether t is no token.
func (t Token) IsZero() bool { return t == Token{} }

// Compare orders tokens of one pointer: -1, 0 or +1.
func (t Token) Compare(u Token) int {
	return cmp.Or(cmp.Compare(t.Epoch, u.Epoch), cmp.Compare(t.Generation, u.Generation))
}

// MarshalText and UnmarshalText make a token a JSON string.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the canonical spelling.
func (t *Token) UnmarshalText(b []byte) error {
	v, err := ParseToken(string(b))
	if err != nil {
		return err
	}
	*t = v
	return nil
}
