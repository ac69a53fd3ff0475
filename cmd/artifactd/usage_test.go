package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/client"
)

// A value that makes no sense is refused before anything is tried: taken for "not given" it would do
// something else than what was asked for. Nothing listens at the addresses, so whoever tried ends
// with another exit code.
func TestSenselessValuesAreUsage(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	for _, tc := range []struct {
		says string
		args []string
	}{
		{"--ttl must be at least 1s", []string{"publish", "a", file, "--ttl", "-5s"}},
		{"--ttl must be at least 1s", []string{"publish", "a", file, "--ttl", "0"}},
		{"--ttl must be at least 1s", []string{"run", "a", "--ttl", "1ms", "--file", file, "--", "true"}},
		{"--wait must not be negative", []string{"publish", "a", file, "--wait", "-1s"}},
		{"--wait must not be negative", []string{"run", "a", "--wait", "-1s", "--file", file, "--", "true"}},
		// Taken for 0 it would make an access token that never ends.
		{"--expires-in must not be negative", []string{"token", "create", "x", "--pattern", "*", "--expires-in", "-5h", "--database-url", "postgres://127.0.0.1:1/x"}},
		{"is not a regular file; write it to one first", []string{"publish", "a", "/dev/null"}},
		{"is not a regular file; write it to one first", []string{"publish", "a", file, "/dev/zero"}},
		{"access token's file", []string{"resolve", "a", "--token-file", file + ".missing"}},
		{"it has to hold one token", []string{"resolve", "a", "--token-file", writeFile(t, filepath.Join(t.TempDir(), "two"), []byte("one\ntwo"))}},
		{"it has to hold one token", []string{"publish", "a", file, "--token-file", "/dev/null"}},
		{"must be an http or https URL", []string{"resolve", "a", "--url", "ftp://example.com"}},
		{"--listen", []string{"dev", "--listen", "nonsense"}},
		{"--gc-rate", []string{"dev", "--gc-rate", "-3", "--listen", "127.0.0.1:0"}},
	} {
		args := append([]string{"--data", filepath.Join(t.TempDir(), "data")}, tc.args...)
		r := run(t, []string{"ARTIFACTD_URL=http://127.0.0.1:1"}, args...)
		if r.code != exitUsage || !strings.Contains(r.stderr, tc.says) {
			t.Errorf("%v: exit code %d, stderr %q", tc.args, r.code, r.stderr)
		}
	}
}

// What is no name is refused by every command that takes one, by the service's own rule and before
// anything is sent: in a URL ".." leads somewhere else, and was answered with "no such resource".
func TestWhatIsNoNameIsUsage(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	tried := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if !takesName(cmd) {
			return
		}
		tried++
		for _, name := range []string{"..", "", "a/b", "-x", strings.Repeat("x", 201)} {
			args := []string{"--url", "http://127.0.0.1:1", "--data", t.TempDir()}
			if cmd.Name() == "run" {
				args = append(args, "--file", file)
			}
			args = append(append(append(strings.Fields(commandName(cmd)), args...), "--"), name)
			for _, word := range strings.Fields(cmd.Use)[2:] {
				if cmd.Name() != "run" && !strings.HasPrefix(word, "[") {
					args = append(args, file)
				}
			}
			if cmd.Name() == "run" { // its own "--" stands after the name
				args = slices.DeleteFunc(args, func(a string) bool { return a == "--" })
				if args = append(args, "--", "true"); strings.HasPrefix(name, "-") {
					continue // a flag, to this one
				}
			}
			r := run(t, nil, args...)
			if r.code != exitUsage || !strings.HasPrefix(r.stderr, "artifactd: "+strconv.Quote(name)+" cannot be a NAME: a pointer's name begins with") {
				t.Errorf("%q: exit code %d, stderr %q", args, r.code, r.stderr)
			}
		}
	}
	walk((&Program{}).command())
	if tried < 12 {
		t.Errorf("%d commands take a name", tried)
	}
}

// A file is called in a message what it is called, but for what would steer the terminal or break the
// line; that is spelt.
func TestFileNamesInMessages(t *testing.T) {
	t.Parallel()
	const odd = "new\nline and \x1b[31mred"
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, odd)); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), odd), nil)
	d := []string{"--url", "http://127.0.0.1:1", "--data", t.TempDir()}
	for code, args := range map[int][]string{exitUsage: {"publish", "a", dir}, exitFailed: {"publish", "a", filepath.Join(dir, odd)}} {
		r := run(t, nil, append(args, d...)...)
		if r.code != code || !strings.Contains(r.stderr, `new\nline and \x1b[31mred`) || strings.Count(r.stderr, "\n") != 1 || strings.Contains(r.stderr, "\x1b") {
			t.Errorf("%q: exit code %d, stderr %q", args, r.code, r.stderr)
		}
	}
	_, err := client.FileSource(t.Context(), file, odd, nil)
	if text := complaint(err); strings.Contains(text, "\x1b") || !strings.Contains(text, `new\nline`) || !strings.Contains(text, "control character") {
		t.Error(text)
	}
}

// What is proposed instead of a misspelt command stands in the one line that an error has.
func TestMisspeltCommands(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"artifactd: unknown command \"pubish\" for \"artifactd\"; did you mean publish? see `artifactd --help`\n":               {"pubish"},
		"artifactd: unknown command \"creat\" for \"artifactd pointer\"; did you mean create? see `artifactd pointer --help`\n": {"pointer", "creat", "x"},
	} {
		if r := run(t, nil, args...); r.stderr != want || r.code != exitUsage {
			t.Errorf("exit code %d, stderr %q, want %q", r.code, r.stderr, want)
		}
	}
}

// Who counted wrong is shown how this command is called, not the list of all of them.
func TestMissingArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"publish", "a"}, {"get"}, {"pointer", "create"}, {"publish", "a", "b", "--frob"}} {
		r := run(t, nil, args...)
		command := strings.Join(args[:1], " ")
		if args[0] == "pointer" {
			command = "pointer create"
		}
		if r.code != exitUsage || !strings.HasSuffix(r.stderr, "; see `artifactd "+command+" --help`\n") {
			t.Errorf("%v: exit code %d, stderr %q", args, r.code, r.stderr)
		}
	}
}

// Bytes that are not the declared ones have one exit code, whoever notices that first: this program,
// which sees the file shrink, or the store, which counts.
func TestAChangedFileIsAMismatch(t *testing.T) {
	t.Parallel()
	if code := outcomeOf(client.ErrSourceChanged).code; code != exitMismatch {
		t.Errorf("exit code %d", code)
	}
}
