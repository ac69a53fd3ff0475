package bucket

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAuthoritiesThatCannotBeTrusted(t *testing.T) {
	dir := t.TempDir()
	noPEM := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(noPEM, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, words := range map[string]string{
		noPEM:                         "has no certificate in it",
		filepath.Join(dir, "missing"): "read the authorities to trust",
	} {
		if _, err := NewTransport(Config{CAFile: file}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
