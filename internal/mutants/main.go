// Command mutants breaks the protocol one line at a time and checks that a named test notices
// each breaking. The tree itself is never touched: the go command builds with an overlay.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	only := flag.String("only", "", "run the mutants whose name matches this regular expression")
	flag.Parse()
	if err := run(*only); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(only string) error {
	pick, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "artifactd-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	caught, survived, stale := 0, []string{}, []string{}
	for _, m := range mutants() {
		if !pick.MatchString(m.name) {
			continue
		}
		start := time.Now()
		tests, err := m.try(root, dir)
		if err != nil {
			stale = append(stale, m.name)
			fmt.Printf("NOT TRIED %s: %v\n", m.name, err)
			continue
		}
		took := time.Since(start).Round(100 * time.Millisecond)
		if len(tests) == 0 {
			survived = append(survived, m.name)
			fmt.Printf("SURVIVED  %-50s %s -run '%s' (%s)\n", m.name, m.pkg, m.run, took)
			continue
		}
		caught++
		fmt.Printf("caught    %-50s by %s (%s)\n", m.name, strings.Join(tests, ", "), took)
	}
	fmt.Printf("%d mutants caught, %d survived, %d could not be tried\n", caught, len(survived), len(stale))
	if len(survived) > 0 {
		return errors.New("no test notices: " + strings.Join(survived, "; "))
	}
	if len(stale) > 0 {
		return errors.New("bring these up to date: " + strings.Join(stale, "; "))
	}
	return nil
}

// try runs the mutant's tests and gives the names of those that failed.
func (m mutant) try(root, dir string) ([]string, error) {
	source, err := m.broken(root)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(root, m.file)
	broken := filepath.Join(dir, "broken"+filepath.Ext(m.file))
	if err := os.WriteFile(broken, []byte(source), 0o600); err != nil {
		return nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: broken}})
	if err != nil {
		return nil, err
	}
	overlayFile := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		return nil, err
	}
	// Longer than any test waits for what the mutant keeps from happening: one that is ended before has
	// not failed by name.
	cmd := exec.Command("go", "test", "-overlay", overlayFile, "-json", "-count=1", "-timeout=10m", "-run", m.run, m.pkg)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	failed, ran, built := results(out)
	switch {
	case !built:
		return nil, fmt.Errorf("the broken tree does not build:\n%s%s", stderr.String(), out)
	case ran == 0:
		return nil, fmt.Errorf("no test of %s matches %q", m.pkg, m.run)
	case exit != nil && len(failed) == 0:
		return nil, fmt.Errorf("the tests of %s ended without a verdict:\n%s%s", m.pkg, stderr.String(), out)
	}
	return failed, nil
}

// broken is the mutant's file with its one text broken.
func (m mutant) broken(root string) (string, error) {
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return "", err
	}
	// What a migration's way back says is not what runs.
	up, down := string(source), ""
	if i := strings.Index(up, "-- +goose Down"); i >= 0 {
		up, down = up[:i], up[i:]
	}
	if n := strings.Count(up, m.old); n != 1 {
		return "", fmt.Errorf("the text to break stands %d times in %s; it must stand there once: bring the mutant up to date", n, m.file)
	}
	if by, err := m.replaced(root, up); err != nil || by != "" {
		return "", errors.Join(err, fmt.Errorf("what is broken in %s does not run: %s replaces the function", m.file, by))
	}
	return strings.Replace(up, m.old, m.new, 1) + down, nil
}

var createFunction = regexp.MustCompile(`CREATE (?:OR REPLACE )?FUNCTION (artifactd\.\w+)\(`)

// replaced finds the later migration that creates the mutant's function anew, if one does: then nothing
// that a test could notice is broken.
func (m mutant) replaced(root, up string) (string, error) {
	if filepath.Ext(m.file) != ".sql" {
		return "", nil
	}
	created := createFunction.FindAllStringSubmatch(up[:strings.Index(up, m.old)+len(m.old)], -1)
	if len(created) == 0 {
		return "", nil
	}
	function := created[len(created)-1][1]
	later, err := filepath.Glob(filepath.Join(root, "migrations", "*.sql"))
	if err != nil {
		return "", err
	}
	for _, path := range later {
		if filepath.Base(path) <= filepath.Base(m.file) {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		up, _, _ := strings.Cut(string(source), "-- +goose Down")
		for _, f := range createFunction.FindAllStringSubmatch(up, -1) {
			if f[1] == function {
				return filepath.Base(path), nil
			}
		}
	}
	return "", nil
}

// results reads go test's JSON lines: which top-level tests failed, and how many ran.
func results(out []byte) (failed []string, ran int, built bool) {
	built = true
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Test, FailedBuild string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		if e.FailedBuild != "" || e.Action == "build-fail" {
			built = false
		}
		if e.Test == "" || strings.Contains(e.Test, "/") {
			continue
		}
		switch e.Action {
		case "run":
			ran++
		case "fail":
			failed = append(failed, e.Test)
		}
	}
	slices.Sort(failed)
	return slices.Compact(failed), ran, built
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
