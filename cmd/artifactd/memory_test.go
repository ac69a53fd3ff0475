package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

const (
	memoryLimit   = 128 << 20 // bytes, of the service's process
	transferFiles = 10
	transferSize  = 100_000_000 // bytes each
)

// TestServiceMemory sends ten files of 100 MB through the service at once, reads them back through it
// at once, and sends ten large bodies of JSON nonsense at once. Its memory must not depend on what
// passes through.
func TestServiceMemory(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	cmd := startBuilt(t, data)
	env := parseEnvFile(readFile(t, filepath.Join(data, clientEnvName)))
	c, err := client.New(env["ARTIFACTD_URL"], env["ARTIFACTD_TOKEN"], client.Options{Parallel: 4 * transferFiles}) // a large file counts as four
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := peakMemory(t, cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	if _, err := c.PutPointer(ctx, "memory", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	sendThrough(ctx, t, c)
	readThrough(ctx, t, env)
	took := time.Since(began).Round(time.Millisecond)
	sendNonsense(ctx, t, env)
	peak := peakMemory(t, cmd.Process.Pid)
	t.Logf("peak memory of the service: %d KiB, before the transfers %d KiB; %d times %d bytes there and back in %s",
		peak>>10, before>>10, transferFiles, transferSize, took)
	if peak > memoryLimit {
		t.Errorf("the service took %d MiB; at most %d are allowed", peak>>20, memoryLimit>>20)
	}
}

// startBuilt runs the built program's `dev` until the test ends.
func startBuilt(t *testing.T, data string) *exec.Cmd {
	t.Helper()
	var stderr buffer
	cmd := exec.Command(built(t), "dev", "--data", data, "--listen", "127.0.0.1:0")
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			_ = cmd.Process.Kill()
			t.Errorf("dev did not end: %s", stderr.String())
		}
	})
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(data, clientEnvName)); err == nil {
			return cmd
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("dev ended: %v: %s", err, stderr.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("dev is not ready: %s", stderr.String())
		}
	}
}

// bulk is a file of transferSize bytes that is nowhere in memory.
func bulk(i int) io.Reader {
	block := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	parts := []io.Reader{strings.NewReader(fmt.Sprintf("%08d", i))}
	for n := 8; n < transferSize; n += len(block) {
		parts = append(parts, bytes.NewReader(block[:min(len(block), transferSize-n)]))
	}
	return io.MultiReader(parts...)
}

func bulkDigest(i int) string {
	h := sha256.New()
	_, _ = io.Copy(h, bulk(i)) // neither side can fail
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// sendThrough publishes the files with all bytes going through the service, at once.
func sendThrough(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	sources := make([]client.Source, transferFiles)
	for i := range sources {
		sources[i] = client.Source{
			Path: strconv.Itoa(i), Size: transferSize, Digest: bulkDigest(i),
			Open: func() (io.ReadCloser, error) { return io.NopCloser(bulk(i)), nil },
		}
	}
	lease, err := c.Acquire(ctx, "memory", client.AcquireOptions{Holder: "test", TTL: 15 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	staged, err := c.StageFiles(ctx, lease, sources)
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for i, s := range staged {
		group.Go(func() error {
			s.Upload = &types.Upload{Kind: "single", Url: new("/v1/artifacts/" + s.ArtifactId.String() + "/content")}
			return c.Upload(ctx, s, sources[i], nil)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(ctx, lease, client.Publication{}); err != nil {
		t.Fatal(err)
	}
}

// readThrough reads the files with all bytes coming through the service, at once.
func readThrough(ctx context.Context, t *testing.T, env map[string]string) {
	t.Helper()
	var group errgroup.Group
	for i := range transferFiles {
		group.Go(func() error {
			url := fmt.Sprintf("%s/v1/pointers/memory/versions/1.1/files/%d?via=proxy", env["ARTIFACTD_URL"], i)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+env["ARTIFACTD_TOKEN"])
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			h := sha256.New()
			if _, err := io.Copy(h, resp.Body); err != nil {
				return err
			}
			if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); resp.StatusCode != http.StatusOK || got != bulkDigest(i) {
				return fmt.Errorf("file %d: %s with digest %s", i, resp.Status, got)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// sendNonsense sends JSON that becomes far larger in memory than it is, to a call that takes little and
// to one that takes much.
func sendNonsense(ctx context.Context, t *testing.T, env map[string]string) {
	t.Helper()
	for path, bodies := range map[string][]string{
		"PUT /v1/pointers/memory": {
			`{"labels":{"a":"` + strings.Repeat("x", 10_000_000) + `"}}`, `{"labels":{"a":"` + strings.Repeat("x", 500_000) + `"}}`,
			"[" + strings.Repeat("{},", 170_000) + "{}]", strings.Repeat("[", 500_000),
		},
		"POST /v1/publish": {
			`{"leases":[{"metadata":{"a":"` + strings.Repeat("x", 2_000_000) + `"}}]}`, "[" + strings.Repeat("{},", 1_300_000) + "{}]",
			`{"leases":[` + strings.Repeat("[],", 99_000) + "[]]}",
		},
	} {
		method, route, _ := strings.Cut(path, " ")
		for _, body := range bodies {
			var group errgroup.Group
			for range 10 {
				group.Go(func() error {
					req, err := http.NewRequestWithContext(ctx, method, env["ARTIFACTD_URL"]+route, strings.NewReader(body))
					if err != nil {
						return err
					}
					req.Header.Set("Authorization", "Bearer "+env["ARTIFACTD_TOKEN"])
					req.Header.Set("Content-Type", "application/json")
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					if resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusRequestEntityTooLarge {
						return fmt.Errorf("%s %.40s…: %s", path, body, resp.Status)
					}
					return nil
				})
			}
			if err := group.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
}

// peakMemory is the most memory that a process has had, in bytes. Where the kernel does not keep
// that (macOS), it is what the process has now.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	field := ""
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		_, rest, _ := strings.Cut(string(status), "VmHWM:")
		field, _, _ = strings.Cut(rest, "kB")
	} else {
		out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
		if err != nil {
			t.Fatal(err)
		}
		field = string(out)
	}
	kib, err := strconv.ParseInt(strings.TrimSpace(field), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
