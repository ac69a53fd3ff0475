package main

import (
	"encoding/json"
	"os"
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
		topic := cmd.IsAdditionalHelpTopicCommand()
		if r.code != exitDone || strings.Contains(r.stdout, "Usage:\n  "+cmd.CommandPath()) == topic {
			t.Errorf("help %v: exit code %d: %s%s", path, r.code, r.stdout, r.stderr)
		}
		ours := !topic && !strings.HasPrefix(cmd.CommandPath(), "artifactd help") && !strings.HasPrefix(cmd.CommandPath(), "artifactd completion")
		if cmd.Long == "" && (ours || topic) || ours && !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("help %v has no text, or no example", path)
		}
		if ours && !cmd.HasSubCommands() {
			if _, there := manual[commandName(cmd)]; !there {
				t.Errorf("the manual has no page for %v", path)
			}
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%v is described as %q", path, cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%v: --%s is described as %q", path, f.Name, f.Usage)
			}
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
	for name := range manual {
		if cmd, rest, err := (&Program{}).command().Find(strings.Fields(name)); err != nil || len(rest) > 0 || commandName(cmd) != name {
			t.Errorf("the manual has a page for %q, which is no command", name)
		}
	}
}

// Examples are typed as they stand there: their commands, flags and arguments are taken.
func TestExamplesAreTaken(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for line := range strings.SplitSeq(cmd.Example, "\n") {
			_, typed, ours := strings.Cut(line, "artifactd ")
			if !ours {
				if line != "" {
					t.Errorf("%s: the example %q does not call the program", cmd.CommandPath(), line)
				}
				continue
			}
			typed, _, _ = strings.Cut(typed, " | ")
			var words []string
			for i, quoted := range strings.Split(typed, "'") {
				if i%2 == 1 {
					words = append(words, quoted)
					continue
				}
				words = append(words, strings.Fields(quoted)...)
			}
			found, rest, err := (&Program{}).command().Find(words)
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || found.CommandPath() != cmd.CommandPath() {
				t.Errorf("%s: the example %q is not taken: %v", cmd.CommandPath(), line, err)
			}
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk((&Program{}).command())
}

// The manual has a page for every command, and none of its lines is taken for a request.
func TestManualPages(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man1")
	if r := run(t, nil, "man", "--dir", dir); r.code != exitDone {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	for name, wants := range map[string][]string{
		"artifactd.1":            {".SH NAME\nartifactd \\- ", ".BR artifactd\\-publish (1)", "ARTIFACTD_OUTPUT"},
		"artifactd-publish.1":    {".SH SYNOPSIS\n.B artifactd publish NAME PATH", "EXIT CODES", ".B 12\n", ".SH EXAMPLES\n.nf\n  artifactd publish", "ARTIFACTD_TOKEN\n"},
		"artifactd-gc-plan.1":    {"artifactd gc plan", ".BR artifactd\\-gc (1)"},
		"artifactd-exit-codes.1": {"outcome unknown"},
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(string(b), want) {
				t.Errorf("%s has no %q:\n%s", name, want, b)
			}
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			if request, _, _ := strings.Cut(line, " "); strings.HasPrefix(line, ".") &&
				!slices.Contains([]string{".TH", ".SH", ".TP", ".PP", ".B", ".BR", ".nf", ".fi"}, request) {
				t.Errorf("%s: %q is a request of its own", name, line)
			}
		}
	}
	if got := roff(`.so \ a-b`); got != `\&.so \e a\-b` {
		t.Errorf("a line is written as %s", got)
	}
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
