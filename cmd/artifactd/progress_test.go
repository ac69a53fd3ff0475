package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal, and what has been written to it.
func terminal(t *testing.T) (*os.File, *buffer) {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { main.Close() })
	fd := int(main.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 160})
	}
	if err != nil {
		t.Fatal(err)
	}
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { side.Close() })
	shown := &buffer{}
	go func() {
		chunk := make([]byte, 4096)
		for {
			n, err := main.Read(chunk)
			_, _ = shown.Write(chunk[:n])
			if err != nil {
				return
			}
		}
	}()
	return side, shown
}

func awaitText(t *testing.T, b *buffer, words ...string) {
	t.Helper()
	for _, w := range words {
		for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(b.String(), w); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%q is not shown, but %q", w, b.String())
			}
		}
	}
}

// On a terminal: everything and each large file, how fast and how long still. At the end nothing of
// it is left.
func TestProgressOnATerminal(t *testing.T) {
	side, shown := terminal(t)
	p := Program{Stderr: side}
	b := p.progress("hashing", 100<<20, 3)
	b.add(1 << 20)
	awaitText(t, shown, "hashing")
	b.next("sending", 100<<20, 3)
	b.file("small", 10)(10)
	large := b.file("a/large\x1b[file", 64<<20)
	large(32 << 20)
	awaitText(t, shown, "sending", "1 of 3 files", "a/large\uFFFD[file", "32.0 MiB / 64.0 MiB", "32.0 MiB / 100.0 MiB", "iB/s", " left")
	large(32 << 20)
	awaitText(t, shown, "2 of 3 files")
	b.stop()
	b.stop()
	before := shown.String()
	fmt.Fprintln(side, "the end")
	awaitText(t, shown, "the end")
	// The cursor went up over all that was drawn, and it was erased.
	if tail := shown.String()[strings.LastIndex(before, "\x1b["):]; !regexp.MustCompile(`^\x1b\[(0?J|[0-9]*A\x1b\[J)`).MatchString(tail) {
		t.Errorf("the bars were not taken away: %q", tail)
	}
}

// Anywhere else: a line now and then.
func TestProgressInALog(t *testing.T) {
	var log buffer
	p := Program{Stderr: &log, progressEvery: time.Millisecond}
	b := p.progress("sending", 200<<20, 2)
	b.file("one", 100<<20)(100 << 20)
	b.add(50 << 20)
	line := regexp.MustCompile(`(?m)^artifactd: sending: 150\.0 MiB of 200\.0 MiB \(75 %\), 1 of 2 files, \S+ [KMG]?i?B/s, \d+\S*s left$`)
	for deadline := time.Now().Add(2 * time.Minute); !line.MatchString(log.String()); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no line tells the progress: %q", log.String())
		}
	}
	b.stop()

	at := time.Now()
	b = &bar{what: "receiving", total: 1000 << 20, done: 250 << 20, files: 1, began: at.Add(-50 * time.Second)}
	if got, want := b.line(at), "artifactd: receiving: 250.0 MiB of 1000.0 MiB (25 %), 5.0 MiB/s, 2m30s left"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}

// quietly: -q leaves nothing but errors, on a terminal and elsewhere.
func quietly(t *testing.T, d *instance) {
	d.run(exitDone, "pointer", "create", "a.quiet", "-q")
	file := writeFile(t, t.TempDir()+"/f", make([]byte, 1<<20))
	if r := d.run(exitDone, "publish", "a.quiet", file, "-q"); r.stderr != "" || !strings.Contains(r.stdout, "published") {
		t.Errorf("stderr %q, stdout %q", r.stderr, r.stdout)
	}
	if r := d.run(exitNotFound, "get", "a.none", "-q"); strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("stderr %q", r.stderr)
	}
	side, shown := terminal(t)
	p := Program{Args: []string{"publish", "a.quiet", file, "--data", d.data, "-q"}, Stdin: strings.NewReader(""), Stdout: &buffer{}, Stderr: side}
	if code := p.Run(t.Context()); code != exitDone {
		t.Errorf("exit code %d: %s", code, shown.String())
	}
	p.Args = []string{"resolve", "a.none", "--data", d.data, "-q"} // what comes after is all there is
	if code := p.Run(t.Context()); code != exitNotFound {
		t.Errorf("exit code %d", code)
	}
	awaitText(t, shown, "there is no pointer")
	if s := shown.String(); !strings.HasPrefix(s, "artifactd: ") || strings.Count(s, "\n") != 1 {
		t.Errorf("shown: %q", s)
	}
}
