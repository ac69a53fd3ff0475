package artifacts_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	emptyHex    = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	emptyBase64 = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
)

func TestDigestForms(t *testing.T) {
	d := artifacts.DigestOf(nil)
	if d.Hex() != emptyHex || d.String() != "sha256:"+emptyHex || d.Base64() != emptyBase64 {
		t.Errorf("the digest of nothing: %s %s %s", d.Hex(), d, d.Base64())
	}
	parsed, err := artifacts.ParseDigest(d.String())
	if err != nil || parsed != d {
		t.Errorf("ParseDigest(%s) = %v, %v", d, parsed, err)
	}
	if d.IsZero() || !(artifacts.Digest{}).IsZero() {
		t.Error("IsZero")
	}
}

func TestParseDigestTakesOneSpelling(t *testing.T) {
	for _, s := range []string{
		"", "sha256:", emptyHex, "SHA256:" + emptyHex, "sha256:" + strings.ToUpper(emptyHex), "sha256:" + emptyHex[1:],
		"sha256:" + emptyHex + "0", "sha256: " + emptyHex[1:], "sha256:g" + emptyHex[1:], "sha512:" + emptyHex, " sha256:" + emptyHex,
	} {
		if d, err := artifacts.ParseDigest(s); !errors.Is(err, artifacts.ErrBadDigest) || !d.IsZero() {
			t.Errorf("ParseDigest(%q) = %v, %v", s, d, err)
		}
	}
}

func FuzzParseDigest(f *testing.F) {
	f.Add("sha256:" + emptyHex)
	f.Add("sha256:" + strings.ToUpper(emptyHex))
	f.Fuzz(func(t *testing.T, s string) {
		d, err := artifacts.ParseDigest(s)
		if err == nil && d.String() != s {
			t.Errorf("%q was read as %s", s, d)
		}
		if err != nil && !errors.Is(err, artifacts.ErrBadDigest) {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestDigestFromSum(t *testing.T) {
	sum := sha256.Sum256([]byte("abc"))
	if d, err := artifacts.DigestFromSum(sum[:]); err != nil || d != artifacts.DigestOf([]byte("abc")) {
		t.Errorf("%v %v", d, err)
	}
	for _, bad := range [][]byte{nil, sum[:31], append(sum[:], 0)} {
		if _, err := artifacts.DigestFromSum(bad); !errors.Is(err, artifacts.ErrBadDigest) {
			t.Errorf("a sum of %d bytes: %v", len(bad), err)
		}
	}
}

func TestDigestInTheDatabase(t *testing.T) {
	d := artifacts.DigestOf([]byte("abc"))
	v, err := d.Value()
	if err != nil {
		t.Fatal(err)
	}
	var back artifacts.Digest
	if err := back.Scan(v); err != nil || back != d {
		t.Errorf("Scan(Value) = %v, %v", back, err)
	}
	for _, bad := range []any{nil, d.String(), []byte("short"), 7} {
		if err := back.Scan(bad); err == nil {
			t.Errorf("Scan(%v) succeeded", bad)
		}
	}
	if back != d {
		t.Error("a failed Scan changed the digest")
	}
}
