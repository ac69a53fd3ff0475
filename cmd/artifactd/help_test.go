package main

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every command says what it is for and how it is called, and all its flags are listed.
func TestHelpOfEveryCommand(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		r := run(t, nil, append([]string{"help"}, path...)...)
		if r.code != exitDone || !strings.Contains(r.stdout, "Usage:\n  "+cmd.CommandPath()) {
			t.Errorf("help %v: exit code %d: %s%s", path, r.code, r.stdout, r.stderr)
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%v is described as %q", path, cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && strings.Count(r.stdout, "--"+f.Name+" ") == 0 {
				t.Errorf("help %v does not list --%s", path, f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			if !strings.Contains(r.stdout, "\n  "+sub.Name()+" ") {
				t.Errorf("help %v does not list %s", path, sub.Name())
			}
			if cmd.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk((&Program{}).command())
}

// What shells offer: names of pointers where one is wanted, and choices.
func TestCompletion(t *testing.T) {
	t.Parallel()
	w := startDev(t, filepath.Join(t.TempDir(), "data"))
	for _, name := range []string{"team-a.x", "team-a.y", "other"} {
		w.run(exitDone, "pointer", "create", name)
	}
	for _, c := range []struct {
		typed []string
		want  []string
	}{
		{[]string{"get", "team-a."}, []string{"team-a.x", "team-a.y"}},
		{[]string{"lease", "break", "o"}, []string{"other"}},
		{[]string{"gc", "run", ""}, nil},
		{[]string{"get", "other", "-o", ""}, []string{"table", "json"}},
		{[]string{"token", "create", "--scope", ""}, []string{"read", "publish", "admin"}},
	} {
		r := run(t, []string{"ARTIFACTD_DATA=" + w.data}, append([]string{"__complete"}, c.typed...)...)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		if got := lines[:len(lines)-1]; !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%q: offered %q, want %q", c.typed, got, c.want)
		}
	}
	// What was done is told to a program too.
	for _, args := range [][]string{{"lease", "break", "other"}, {"pointer", "retire", "other"}} {
		r := w.run(exitDone, append(args, "-o", "json")...)
		if v := decode[map[string]any](t, r); len(v) < 2 {
			t.Errorf("%v printed %s", args, r.stdout)
		}
	}
	if !json.Valid([]byte(w.run(exitDone, "version", "-o", "json").stdout)) {
		t.Error("version prints no JSON")
	}
}
