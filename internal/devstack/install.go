package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// OldestPostgres is the oldest major version of Postgres that artifactd runs on.
const OldestPostgres = 15

// ErrNoPostgres says that no usable Postgres is installed.
var ErrNoPostgres = errors.New("no usable Postgres is installed")

// installation is one Postgres on this machine.
type installation struct {
	bin   string // folder with postgres and initdb
	major int
}

// installFolders are where the packages of Debian and Ubuntu, Fedora and the PGDG repository,
// Homebrew on both kinds of Mac and on Linux, Postgres.app and a source build put programs.
var installFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/bin",
	"/usr/local/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/opt/homebrew/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findPostgres chooses an installation: of the given major version, or the newest when it is 0.
// binDir, if not empty, is the only folder looked at.
func findPostgres(ctx context.Context, binDir string, major int) (installation, error) {
	var found []string
	best := installation{}
	for _, dir := range candidateFolders(binDir) {
		v, err := postgresMajor(ctx, dir)
		if err != nil {
			continue // not an installation; what was found is listed when none fits
		}
		found = append(found, fmt.Sprintf("%d in %s", v, dir))
		if v < OldestPostgres || (major != 0 && v != major) {
			continue
		}
		if v > best.major {
			best = installation{bin: dir, major: v}
		}
	}
	if err := ctx.Err(); err != nil {
		return installation{}, err
	}
	if best.bin == "" {
		return installation{}, noPostgres(found, major)
	}
	return best, nil
}

func noPostgres(found []string, major int) error {
	have := "none was found on PATH or in the usual folders"
	if len(found) > 0 {
		have = "found only " + strings.Join(found, ", ")
	}
	if major != 0 {
		return fmt.Errorf("%w: the data folder was made by Postgres %d, and %s; install Postgres %d, or delete "+
			"the data folder to start afresh", ErrNoPostgres, major, have, major)
	}
	return fmt.Errorf("%w: Postgres %d or newer is needed, and %s; install it: `apt-get install postgresql` on "+
		"Debian or Ubuntu, `dnf install postgresql-server` on Fedora, `brew install postgresql` on macOS",
		ErrNoPostgres, OldestPostgres, have)
}

func candidateFolders(binDir string) []string {
	if binDir != "" {
		return []string{binDir}
	}
	var dirs []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, program := range []string{"postgres", "pg_ctl"} {
		if path, err := exec.LookPath(program); err == nil {
			if real, err := filepath.EvalSymlinks(path); err == nil {
				add(filepath.Dir(real))
			}
			add(filepath.Dir(path))
		}
	}
	for _, pattern := range installFolders {
		matches, _ := filepath.Glob(pattern) // the patterns are constants, and well formed
		for _, dir := range matches {
			add(dir)
		}
	}
	return dirs
}

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// postgresMajor is the major version of the Postgres in dir, if it is a whole one.
func postgresMajor(ctx context.Context, dir string) (int, error) {
	for _, program := range []string{"postgres", "initdb"} {
		if fi, err := os.Stat(filepath.Join(dir, program)); err != nil || fi.IsDir() {
			return 0, fmt.Errorf("%s has no %s", dir, program)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	m := versionNumber.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no version in %q", out)
	}
	return strconv.Atoi(string(m[1]))
}

// folderMajor is the major version that made a data folder, or 0 if there is none yet.
func folderMajor(dataDir string) (int, error) {
	b, err := os.ReadFile(filepath.Join(dataDir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, folderError(dataDir, err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION is damaged (%q): restore or delete the folder", dataDir, b)
	}
	return v, nil
}
