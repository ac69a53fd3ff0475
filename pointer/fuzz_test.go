package pointer

import (
	"encoding/json"
	"errors"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Equal tokens are equal texts, so a text that is read is the one that is written.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"1.1", "3.42", "9223372036854775807.1", "9223372036854775808.1", "0.1", "01.1", "1.", "+1.1", "1.1.1", "1_0.1", "١.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			if !token.IsZero() {
				t.Errorf("%q is refused, and read as %v", s, token)
			}
			return
		}
		if token.String() != s || token.Epoch < 1 || token.Generation < 1 {
			t.Errorf("%q was read as %s", s, token)
		}
		var back Token
		if text, err := json.Marshal(token); err != nil || json.Unmarshal(text, &back) != nil || back.Compare(token) != 0 {
			t.Errorf("%s went through JSON as %s", token, back)
		}
	})
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"acme.reports.daily", "a", ".a", "-a", "a\n", "a/b", "é", strings.Repeat("a", 200), strings.Repeat("a", 201), ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		good := len(s) >= 1 && len(s) <= 200
		for i, c := range []byte(s) {
			letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
			good = good && (letter || i > 0 && strings.IndexByte("._-", c) >= 0)
		}
		if err := CheckName(s); (err == nil) != good {
			t.Errorf("%q: %v", s, err)
		}
	})
}

// A path that is taken is one that a file system can hold below a folder, and nowhere else.
func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"a", "a/b c/d.txt", "/a", "a/", "a//b", "../a", "a/./b", "a/..", "..a/b..", "caf\xe9", "café", "a\x00b", "a\u0085b", "a\\b", strings.Repeat("x", 1024), strings.Repeat("x", 1025)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		err := CheckPath("path", s)
		var invalid *InvalidError
		if err != nil {
			if !errors.As(err, &invalid) || invalid.Field != "path" || !utf8.ValidString(invalid.Detail) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		switch {
		case s == "" || len(s) > 1024 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
			t.Errorf("%q is taken", s)
		case path.Clean(s) != s || path.IsAbs(s) || s == "." || strings.HasPrefix(s, "../") || s == "..":
			t.Errorf("%q is taken, and is %q", s, path.Clean(s))
		case !filepath.IsLocal(s):
			t.Errorf("%q leads out of its folder", s)
		}
	})
}
