package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrecedence: flags win over the environment, and that over client.env.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	asked := map[string]string{}
	server := func(name string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked[name] = r.Header.Get("Authorization")
			http.NotFound(w, r)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	file, env, flag := server("file"), server("env"), server("flag")
	data := t.TempDir()
	name := filepath.Join(data, clientEnvName)
	if err := os.WriteFile(name, []byte("# dev\nARTIFACTD_URL="+file+"\nARTIFACTD_TOKEN=from-file\nARTIFACTD_UNKNOWN=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"ARTIFACTD_URL=" + env, "ARTIFACTD_TOKEN=from-env"}
	for _, test := range []struct {
		environ []string
		flags   []string
		who     string
		token   string
	}{
		{nil, nil, "file", "from-file"},
		{environ, nil, "env", "from-env"},
		{environ[:1], nil, "env", "from-file"},
		{environ, []string{"--url", flag, "--token", "from-flag"}, "flag", "from-flag"},
		{[]string{"ARTIFACTD_URL="}, nil, "file", "from-file"},
		// An empty token is none, whoever says so: the administrator's in client.env does not stand in for it.
		{[]string{"ARTIFACTD_TOKEN="}, nil, "file", ""},
		{nil, []string{"--token", ""}, "file", ""},
		{environ, []string{"--token="}, "env", ""},
		{[]string{"ARTIFACTD_TOKEN="}, []string{"--token", "from-flag"}, "file", "from-flag"},
	} {
		want := "Bearer " + test.token
		if test.token == "" {
			want = ""
		}
		clear(asked)
		run(t, test.environ, append([]string{"resolve", "x", "--data", data}, test.flags...)...)
		if got, ok := asked[test.who]; len(asked) != 1 || !ok || got != want {
			t.Errorf("%v %v: asked %v", test.environ, test.flags, asked)
		}
	}
	// A folder named by environment, and a bad value there.
	clear(asked)
	run(t, []string{"ARTIFACTD_DATA=" + data}, "resolve", "x")
	if asked["file"] == "" {
		t.Errorf("asked %v", asked)
	}
	if r := run(t, []string{"ARTIFACTD_TTL=soon"}, "publish", "x", name); r.code != exitUsage || !strings.Contains(r.stderr, "ARTIFACTD_TTL") {
		t.Errorf("exit code %d, %q", r.code, r.stderr)
	}
}

// TestClientEnvMustBePrivate: a file that others may write decides nothing.
func TestClientEnvMustBePrivate(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	name := filepath.Join(data, clientEnvName)
	if err := os.WriteFile(name, []byte("ARTIFACTD_URL=http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ignored := func(what string) {
		t.Helper()
		r := run(t, nil, "resolve", "x", "--data", data)
		if r.code != exitUsage || !strings.Contains(r.stderr, "left alone") || !strings.Contains(r.stderr, "no service given") {
			t.Errorf("%s: exit code %d, %q", what, r.code, r.stderr)
		}
	}
	for _, mode := range []os.FileMode{0o644, 0o660, 0o400} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		ignored(mode.String())
	}
	if os.Geteuid() == 0 { // only root can give files away
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(name, 1234, 0); err != nil {
			t.Fatal(err)
		}
		ignored("somebody else's")
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	real := writeFile(t, filepath.Join(t.TempDir(), "real"), []byte("ARTIFACTD_URL=http://127.0.0.1:1\n"))
	if err := os.Symlink(real, name); err != nil {
		t.Fatal(err)
	}
	ignored("a link")
}
