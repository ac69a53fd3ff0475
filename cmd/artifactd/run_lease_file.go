package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactd/artifactd/client"
)

// leaseFile tells a command about its lease: as the service's JSON document, in a private folder.
type leaseFile struct{ dir, name string }

func newLeaseFile(l client.Lease) (*leaseFile, error) {
	dir, err := os.MkdirTemp("", "artifactd-lease-") // 0700
	if err != nil {
		return nil, fmt.Errorf("make the lease file: %w", err)
	}
	f := &leaseFile{dir: dir, name: filepath.Join(dir, "lease.json")}
	if err := f.write(l); err != nil {
		f.remove()
		return nil, fmt.Errorf("make the lease file: %w", err)
	}
	return f, nil
}

// write replaces the file as a whole: the command may read it at any moment.
func (f *leaseFile) write(l client.Lease) error {
	text, err := json.MarshalIndent(l.Lease, "", "  ")
	if err != nil {
		return err
	}
	next := f.name + ".next"
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, f.name)
}

// update writes the lease as renewed. Where that fails (a full disk, a folder that the command
// removed) the file keeps an expiry that is too early, which misleads nobody into working too long.
func (f *leaseFile) update(l client.Lease) { _ = f.write(l) }

// remove removes it; the supervisor may have done so.
func (f *leaseFile) remove() { _ = os.RemoveAll(f.dir) }

func (f *leaseFile) environ() []string { return []string{"ARTIFACTD_LEASE_FILE=" + f.name} }

func leaseEnviron(l client.Lease) []string {
	return []string{
		"ARTIFACTD_POINTER=" + l.Pointer, "ARTIFACTD_FENCING_TOKEN=" + l.Token, "ARTIFACTD_LEASE_ID=" + l.LeaseId.String(),
	}
}

// withEnv is an environment with some variables set anew. A name that appears twice means different
// things to different programs.
func withEnv(environ, set []string) []string {
	names := map[string]bool{}
	for _, kv := range set {
		name, _, _ := strings.Cut(kv, "=")
		names[name] = true
	}
	kept := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return names[name]
	})
	return append(kept, set...)
}

// asEnded is errors.As for an end with its own exit code.
func asEnded(err error) (*endedError, bool) {
	var e *endedError
	ok := errors.As(err, &e)
	return e, ok
}
