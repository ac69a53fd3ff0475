package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/client"
)

// started is a run of the program that goes on.
type started struct {
	stdout, stderr buffer
	cancel         context.CancelFunc
	code           chan int
}

func start(t *testing.T, args ...string) *started {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	s := &started{cancel: cancel, code: make(chan int, 1)}
	p := Program{Args: args, Stdin: strings.NewReader(""), Stdout: &s.stdout, Stderr: &s.stderr, Environ: []string{"PATH=" + os.Getenv("PATH")}, progressEvery: time.Millisecond}
	go func() { s.code <- p.Run(ctx) }()
	return s
}

// leaseWaits: who waits for somebody else's lease is told at once, and once, for whose and for how long;
// until it is there nothing is shown as on its way.
func leaseWaits(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.wait")
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	env := d.env()
	c, err := client.New(env["ARTIFACTD_URL"], env["ARTIFACTD_TOKEN"], client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, args := range [][]string{{"publish", "a.wait", file}, {"run", "a.wait", "--file", file}} {
		lease, err := c.Acquire(t.Context(), "a.wait", client.AcquireOptions{Holder: "A B", TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		command := []string(nil)
		if args[0] == "run" {
			command = []string{"--", "true"}
		}
		quiet := start(t, append(append(args, "--data", d.data, "-q", "--wait", "1s"), command...)...)
		if code := <-quiet.code; code != exitLeaseHeld || strings.Count(quiet.stderr.String(), "\n") != 1 || strings.Contains(quiet.stderr.String(), "waiting") ||
			!strings.HasPrefix(quiet.stderr.String(), "artifactd: A B still holds the lease after 1s, for another 59m") || !strings.HasSuffix(quiet.stderr.String(), "; wait longer, or end it with `artifactd lease break`\n") {
			t.Errorf("%s -q: exit code %d, stderr %q", args[0], code, quiet.stderr.String())
		}
		s := start(t, append(append(args, "--data", d.data, "--wait", "5m"), command...)...)
		awaitText(t, &s.stderr, "artifactd: waiting up to 5m for the lease of a.wait: A B holds it for another 59m", ", longer if it is renewed\n")
		before := s.stderr.String()
		time.Sleep(20 * time.Millisecond) // many times the pause between two lines of progress
		if after := s.stderr.String(); after != before {
			t.Errorf("%s said while it waited: %q", args[0], strings.TrimPrefix(after, before))
		}
		if err := c.Release(t.Context(), lease); err != nil {
			t.Fatal(err)
		}
		if code := <-s.code; code != exitDone || strings.Count(s.stderr.String(), "waiting") != 1 {
			t.Errorf("%s: exit code %d, stderr %q", args[0], code, s.stderr.String())
		}
	}
}

// TestSilence: a service that gives no answer, or none that helps, is told of in one line after some
// seconds, with what is waited for and how long.
func TestSilence(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() }) // connections wait in its queue
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(client.Problem{Code: client.ErrUnavailable, Detail: "it\nis down."})
	}))
	t.Cleanup(failing.Close)
	file := writeFile(t, filepath.Join(t.TempDir(), "f"), []byte("x"))
	for _, tc := range []struct {
		url, says string
		args      []string
	}{
		{"http://" + silent.Addr().String(), "no answer from " + silent.Addr().String() + " yet; waiting for up to 1m", []string{"resolve", "a"}},
		{"http://" + silent.Addr().String(), "no answer from " + silent.Addr().String() + " yet; waiting for up to 1m", []string{"publish", "a", file}},
		{failing.URL, strings.TrimPrefix(failing.URL, "http://") + " cannot do this now: it; is down; trying again for up to ", []string{"history", "a"}},
	} {
		t.Run(tc.args[0], func(t *testing.T) {
			t.Parallel()
			s := start(t, append(tc.args, "--url", tc.url, "--data", t.TempDir())...)
			awaitText(t, &s.stderr, "artifactd: "+tc.says)
			s.cancel()
			<-s.code
			if strings.Count(s.stderr.String(), "artifactd: "+tc.says) != 1 || strings.Contains(s.stderr.String(), "sending: ") {
				t.Errorf("stderr %q", s.stderr.String())
			}
		})
	}
}

// What is said of a silence is true of the call, and nothing is said to who wants to hear of errors alone.
func TestSilenceInWords(t *testing.T) {
	for want, s := range map[string]client.Silence{
		"no connection to h yet; trying for up to 5s more":            {Host: "h", Left: 5 * time.Second},
		"no answer from h yet; waiting for up to 1m25s more":          {Host: "h", Connected: true, Left: 85 * time.Second},
		"no answer from h yet; waiting until it answers":              {Host: "h", Connected: true},
		"no answer from h: broken; trying again for up to 1m more":    {Host: "h", Err: &client.TransportError{Host: "h", Err: errors.New("broken")}, Left: time.Minute},
		"h cannot do this now: full; trying again for up to 40s more": {Host: "h", Err: &client.Problem{Detail: "full"}, Left: 40 * time.Second},
	} {
		if got := silence(s); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var stderr buffer
	(&Program{Stderr: &stderr, quiet: true}).silent(client.Silence{Host: "h"})
	if stderr.String() != "" {
		t.Errorf("stderr %q", stderr.String())
	}
	for want, d := range map[string]time.Duration{"1s": 0, "59s": 59*time.Second + 400*time.Millisecond, "1m": time.Minute, "10m5s": 605 * time.Second, "2h": 2 * time.Hour, "1h30m": 90 * time.Minute} {
		if got := period(d); got != want {
			t.Errorf("%s is told as %q, want %q", d, got, want)
		}
	}
}

// A remark while bars are on the terminal stands above them, and they are drawn again.
func TestRemarksBesideBars(t *testing.T) {
	side, shown := terminal(t)
	p := Program{Stderr: side}
	b := p.progress("sending", 100<<20, 3)
	b.add(1 << 20)
	awaitText(t, shown, "1.0 MiB / 100.0 MiB")
	p.note("a remark")
	awaitText(t, shown, "a remark\r\n")
	// What was drawn is erased first: written behind it, the remark would be erased with it.
	if s := shown.String(); !regexp.MustCompile(`\x1b\[[0-9]*[AJ]a remark`).MatchString(s) || strings.Count(s, "a remark") != 1 {
		t.Errorf("%q", s)
	}
	b.hold()
	before := len(shown.String())
	b.add(4 << 20)
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(shown.String()[before:], "5.0 MiB / 100.0 MiB"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the bar does not come back: %q", shown.String()[before:])
		}
	}
	b.stop()
	p.note("the end")
	awaitText(t, shown, "the end\r\n")
}
