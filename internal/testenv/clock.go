package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// faketimeLibraries is where packages put libfaketime.
var faketimeLibraries = []string{
	"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1",
	"/usr/lib/faketime/libfaketimeMT.so.1",
	"/opt/homebrew/lib/faketime/libfaketime.1.dylib", "/usr/local/lib/faketime/libfaketime.1.dylib",
}

// Clock is the wall clock of a server, which a test can set.
type Clock struct {
	t    testing.TB
	file string
}

// NewClock makes a clock that runs as the machine's does, and the environment of a server that
// shall go by it.
func NewClock(t testing.TB) (c *Clock, env []string) {
	t.Helper()
	var library string
	for _, pattern := range faketimeLibraries {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the patterns are well-formed
			library = found[0]
			break
		}
	}
	if library == "" {
		t.Fatal("testenv: libfaketime is not installed; `make test` installs it (package libfaketime)")
	}
	dir, err := process.folder("clock")
	if err != nil {
		t.Fatal(err)
	}
	c = &Clock{t: t, file: filepath.Join(dir, "offset")}
	c.Set(0)
	preload := "LD_PRELOAD"
	if runtime.GOOS == "darwin" {
		preload = "DYLD_INSERT_LIBRARIES"
	}
	// Only the wall clock: timeouts run by the monotonic one.
	return c, []string{preload + "=" + library, "FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1",
		"DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}
}

// Set puts the clock off the machine's by so many whole seconds, at once.
func (c *Clock) Set(offset time.Duration) {
	c.t.Helper()
	// Replaced as a whole: the server may read it at any moment.
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+d", int64(offset.Seconds())), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(next, c.file); err != nil {
		c.t.Fatal(err)
	}
}
