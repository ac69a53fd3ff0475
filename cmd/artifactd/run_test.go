package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/testenv"
)

// How often the tests that depend on moments are repeated.
var (
	blackHoles = flag.Int("blackholes", 6, "times that a command's service is cut off")
	latecomers = flag.Int("latecomers", 50, "signals sent to a run that waits for its lease")
)

// TestRunCommand is `artifactd run` as processes, against one instance.
func TestRunCommand(t *testing.T) {
	t.Parallel()
	w := &runWorld{instance: startDev(t, filepath.Join(t.TempDir(), "data")), program: built(t)}
	t.Run("publishes what it made", w.publishesWhatItMade)
	t.Run("exit codes", w.exitCodes)
	t.Run("refused", w.refused)
	t.Run("nothing left", w.nothingLeft)
	t.Run("killed", w.killed)
	if runtime.GOOS == "linux" {
		t.Run("supervisor killed", w.supervisorKilled)
	}
	t.Run("signals", w.signals)
	t.Run("broken lease", w.brokenLease)
	t.Run("black hole", w.blackHole)
	t.Run("late signals", w.lateSignals)
	t.Run("terminal", w.terminal)
	t.Run("watch", w.watches)
}

type runWorld struct {
	*instance
	program string
}

// process is a `run` that goes on in the background.
type process struct {
	*exec.Cmd
	t      *testing.T
	dir    string // its folder
	stdout buffer
	stderr buffer
}

// start starts `artifactd run NAME` with flags and a shell script, in a folder of its own.
func (w *runWorld) start(t *testing.T, name, script string, flags ...string) *process {
	t.Helper()
	args := append([]string{"run", name, "--data", w.data, "--file", "out"}, flags...)
	p := &process{Cmd: exec.Command(w.program, append(args, "--", "sh", "-c", script)...), t: t, dir: t.TempDir()}
	p.Dir, p.Stdout, p.Stderr = p.dir, &p.stdout, &p.stderr
	p.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + p.dir}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Process.Kill() }) // it has ended, unless the test failed
	return p
}

// end waits for the exit code.
func (p *process) end() int {
	p.t.Helper()
	timer := time.AfterFunc(3*time.Minute, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	_ = p.Wait() // its exit code is looked at
	return p.ProcessState.ExitCode()
}

// want fails the test unless it ends with this code and says this.
func (p *process) want(code int, says string) {
	p.t.Helper()
	if got := p.end(); got != code || !strings.Contains(p.stderr.String(), says) {
		p.t.Errorf("%v: exit code %d, want %d and %q\nstdout: %s\nstderr: %s", p.Args, got, code, says, p.stdout.String(), p.stderr.String())
	}
	if left, _ := filepath.Glob(filepath.Join(p.dir, "artifactd-lease-*")); len(left) > 0 {
		p.t.Errorf("left behind: %v", left)
	}
}

// pids waits until the script has written n process ids into a file of its folder.
func (p *process) pids(n int) []int {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			p.t.Log(p.stderr.String())
		}
	}()
	return awaitPids(p.t, filepath.Join(p.dir, "pids"), n)
}

// awaitPids waits until a file has n process ids.
func awaitPids(t *testing.T, file string, n int) []int {
	t.Helper()
	for range 12000 {
		b, _ := os.ReadFile(file) // not there yet
		if fields := strings.Fields(string(b)); len(fields) == n {
			found := make([]int, n)
			for i, f := range fields {
				found[i], _ = strconv.Atoi(f)
			}
			return found
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the command does not start")
	return nil
}

// groupIsEmpty waits for a process group to have no member, and no zombie either.
func groupIsEmpty(t *testing.T, group int, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		if time.Now().After(deadline) {
			t.Errorf("process group %d is not empty", group)
			_ = syscall.Kill(-group, syscall.SIGKILL) // not to be left behind
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// create makes a pointer of a test's own.
func (w *runWorld) create(name string) string {
	w.run(exitDone, "pointer", "create", name)
	return name
}

func (w *runWorld) assertUnpublished(t *testing.T, name string) {
	t.Helper()
	if r := run(t, nil, "resolve", name, "--data", w.data); r.code != exitNotFound {
		t.Errorf("%s was published: %s", name, r.stdout)
	}
}

func (w *runWorld) assertFree(t *testing.T, name string) {
	t.Helper()
	if r := w.run(exitDone, "lease", "show", name, "-o", "json"); decode[types.LeaseStatus](t, r).Live {
		t.Errorf("the lease was not given back: %s", r.stdout)
	}
}

func (w *runWorld) publishesWhatItMade(t *testing.T) {
	name := w.create("run.make")
	p := w.start(t, name, `cat "$ARTIFACTD_LEASE_FILE"; stat -c %a "$ARTIFACTD_LEASE_FILE" >&2
mkdir out; echo "$ARTIFACTD_POINTER $ARTIFACTD_FENCING_TOKEN $ARTIFACTD_LEASE_ID" >out/env; echo two >more`, "more", "--holder", "me", "--metadata", "a=b", "--ttl", "30s")
	p.want(exitDone, "600\n")
	lease := decode[types.Lease](t, result{stdout: strings.SplitAfter(p.stdout.String(), "\n}\n")[0]})
	if lease.Token != "1.1" || lease.Pointer != name || lease.TtlSeconds != 30 || !strings.Contains(p.stdout.String(), "1.1") {
		t.Errorf("lease %+v, stdout %s", lease, p.stdout.String())
	}
	want := fmt.Sprintf("%s 1.1 %s\n", name, lease.LeaseId)
	if r := w.run(exitDone, "get", name, "env", "-O", "-"); r.stdout != want {
		t.Errorf("the command saw %q, want %q", r.stdout, want)
	}
	if r := w.run(exitDone, "get", name, "more", "-O", "-"); r.stdout != "two\n" {
		t.Errorf("got %q", r.stdout)
	}
	w.assertFree(t, name)
}

func (w *runWorld) exitCodes(t *testing.T) {
	name := w.create("run.codes")
	w.start(t, name, "echo x >out; exit 3").want(3, "exit code 3; nothing was published")
	w.start(t, name, "echo x >out; kill -9 $$").want(137, "signal 9")
	w.start(t, name, "true").want(exitFailed, "no such file")
	w.start(t, name, "true", "--metadata", "x").want(exitUsage, "key=value")
	w.start(t, "run.nothing", "true").want(exitNotFound, "pointer create")
	w.start(t, name, "true", "--url", "http://127.0.0.1:1").want(exitUnavailable, "is the service running")
	w.assertUnpublished(t, name)
	w.assertFree(t, name)
	for _, args := range [][]string{
		{"run", name, "--file", "x"}, {"run", name, "--", "true"}, {"run", "--file", "x", "--", "true"},
		{"run", name, "--file", "x", "--"}, {"run", name, "--file", "x", "--", "/no/such/program"},
	} {
		w.run(exitUsage, args...)
	}
	lease, err := w.client().Acquire(t.Context(), name, client.AcquireOptions{Holder: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.start(t, name, "touch started", "--wait", "500ms").want(exitLeaseHeld, "somebody")
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("waited %v", took)
	}
	if err := w.client().Release(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

func (w *runWorld) refused(t *testing.T) {
	name := w.create("run.refused")
	w.start(t, name, "echo x >out", "--source-revision", "5").want(exitDone, "")
	w.start(t, name, "echo y >out", "--source-revision", "4").want(exitLeaseLost, "source-stale")
	if r := w.run(exitDone, "get", name, "-O", "-"); r.stdout != "x\n" {
		t.Errorf("readers see %q", r.stdout)
	}
	w.assertFree(t, name)
}

// nothingLeft: what a command runs in the background ends with it, by success or by signal.
func (w *runWorld) nothingLeft(t *testing.T) {
	name := w.create("run.nothing-left")
	p := w.start(t, name, `sleep 999 & echo $$ $! >pids; wait`)
	group := p.pids(2)[0]
	_ = p.Process.Signal(syscall.SIGTERM) // its end is looked at
	p.want(143, "signal 15")
	groupIsEmpty(t, group, 0)
	w.assertUnpublished(t, name)
	w.assertFree(t, name)

	p = w.start(t, name, `sleep 999 & echo $$ $! >pids; echo x >out`)
	p.want(exitDone, "")
	groupIsEmpty(t, p.pids(2)[0], 0)
	w.run(exitDone, "resolve", name)
}

// killed: kill -9 of run leaves neither the command nor what it forked, nor the lease file.
func (w *runWorld) killed(t *testing.T) {
	name := w.create("run.killed")
	p := w.start(t, name, `trap "" TERM INT HUP; sleep 999 & echo $$ $! >pids; wait; sleep 999`)
	group := p.pids(2)[0]
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	groupIsEmpty(t, group, time.Minute)
	p.end()
	for range 6000 {
		if left, _ := filepath.Glob(filepath.Join(p.dir, "artifactd-lease-*")); len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the lease file is left behind")
}

// supervisorKilled: run ends what the command started, also what has left its group, before it gives
// the lease back.
func (w *runWorld) supervisorKilled(t *testing.T) {
	name := w.create("run.supervisor-killed")
	p := w.start(t, name, `(setsid sh -c 'trap "" TERM; echo $$ >pids; while :; do sleep 1; done' &)
while [ ! -s pids ]; do sleep 0.05; done; sleep 0.2; kill -9 $PPID; sleep 999`)
	daemon := p.pids(1)[0] // the leader of a group of its own
	p.want(exitFailed, "supervisor was killed")
	groupIsEmpty(t, daemon, 0)
	w.assertUnpublished(t, name)
	w.assertFree(t, name)
}

// signals: the first is passed on, the second kills.
func (w *runWorld) signals(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) { // these tests were started by nohup, and what they start would inherit that
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(caught); signal.Ignore(syscall.SIGHUP) })
	}
	name := w.create("run.signals")
	p := w.start(t, name, `trap 'echo got it; exit 0' HUP; echo $$ >pids; echo x >out; while :; do sleep 0.05; done`)
	p.pids(1)
	_ = p.Process.Signal(syscall.SIGHUP) // its end is looked at
	p.want(129, "interrupted; nothing was published")
	if p.stdout.String() != "got it\n" {
		t.Errorf("the command printed %q", p.stdout.String())
	}

	p = w.start(t, name, `trap 'echo got it' INT; echo $$ >pids; while :; do sleep 0.05; done`)
	group := p.pids(1)[0]
	_ = p.Process.Signal(syscall.SIGINT) // its end is looked at
	awaitLines(t, &p.stdout, 1)          // the first one has been passed on
	time.Sleep(2 * sameSignal)
	_ = p.Process.Signal(syscall.SIGINT)
	p.want(137, "signal 9")
	if p.stdout.String() != "got it\n" {
		t.Errorf("the command printed %q", p.stdout.String())
	}
	groupIsEmpty(t, group, 0)
	w.assertUnpublished(t, name)
	w.assertFree(t, name)
}

// brokenLease: the service says that the lease is lost.
func (w *runWorld) brokenLease(t *testing.T) {
	name := w.create("run.broken")
	p := w.start(t, name, `echo x >out; sleep 999 & echo $$ $! >pids; wait`, "--ttl", "15s")
	group := p.pids(2)[0]
	w.run(exitDone, "lease", "break", name)
	p.want(exitLeaseLost, "nothing was published")
	groupIsEmpty(t, group, 0)
	w.assertUnpublished(t, name)
}

// blackHole: a command whose service does not answer any more has ended, with everything it started,
// while its lease still lives by the database's clock.
func (w *runWorld) blackHole(t *testing.T) {
	for round := range *blackHoles {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			w.cutOff(t, w.create(fmt.Sprint("run.hole-", round)), round)
		})
	}
}

func (w *runWorld) cutOff(t *testing.T, name string, round int) {
	proxy := testenv.NewProxy(t, w.env()["ARTIFACTD_URL"])
	db, err := pgx.Connect(t.Context(), w.env()["ARTIFACTD_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	// Every other one ends only when it is killed.
	trap := ""
	if round%2 == 0 {
		trap = `trap "" TERM; `
	}
	p := w.start(t, name, trap+`echo x >out; sleep 999 & echo $$ $! >pids; wait; sleep 999`, "--url", "http://"+proxy.Addr(), "--ttl", "9s")
	group := p.pids(2)[0]
	time.Sleep(rand.N(3 * time.Second)) // the cut comes anywhere between two renewals
	proxy.Set(testenv.Fault{HoldToServer: true, HoldToClient: true})
	var left float64
	if err := db.QueryRow(t.Context(), `SELECT extract(epoch FROM lease_expires_at - clock_timestamp()) FROM artifactd.pointer WHERE name = $1`, name).Scan(&left); err != nil {
		t.Fatal(err)
	}
	// Whoever looks may be late on a busy machine: what counts is what is seen after the end.
	end := time.Now().Add(time.Duration(left * float64(time.Second)))
	for {
		looked := time.Now()
		if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
			break
		}
		if looked.After(end) {
			t.Errorf("the group is not empty %s after the lease's end", looked.Sub(end))
			groupIsEmpty(t, group, time.Minute)
			break
		}
		time.Sleep(time.Millisecond)
	}
	p.want(exitLeaseLost, "no renewal got through in time")
	w.assertUnpublished(t, name)
}

// lateSignals: a signal at any moment while run waits for its lease ends it, and the command does not
// start after that.
func (w *runWorld) lateSignals(t *testing.T) {
	name := w.create("run.late")
	c := w.client()
	outcomes := map[int]int{}
	for round := range *latecomers {
		lease, err := c.Acquire(t.Context(), name, client.AcquireOptions{Holder: "first", Wait: 2 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		p := w.start(t, name, `touch started; exec sleep 999`, "--wait", "2m", "--ttl", "8s")
		pause := rand.N(400 * time.Millisecond)
		released := make(chan error, 1)
		if round%2 == 0 { // it gets the lease at about the same time
			time.AfterFunc(pause+rand.N(20*time.Millisecond)-10*time.Millisecond, func() { released <- c.Release(t.Context(), lease) })
		}
		time.Sleep(pause)
		_ = p.Process.Signal(syscall.SIGTERM) // its end is looked at
		code := p.end()
		outcomes[code]++
		time.Sleep(20 * time.Millisecond) // for a command that starts late
		_, started := os.Stat(filepath.Join(p.dir, "started"))
		notStarted := code == -1 || strings.Contains(p.stderr.String(), "the command was not started")
		if notStarted && started == nil || !notStarted && code != 143 {
			t.Errorf("round %d: exit code %d, started: %v, stderr %s", round, code, started == nil, p.stderr.String())
		}
		if round%2 == 0 {
			err = <-released
		} else {
			err = c.Release(t.Context(), lease)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("exit codes (-1: by the signal itself): %v", outcomes)
}

// terminal: a command that reads the terminal of run gets it.
func (w *runWorld) terminal(t *testing.T) {
	name, dir := w.create("run.terminal"), t.TempDir()
	cmd := exec.Command(w.program, "run", name, "--data", w.data, "--file", "out", "--", "sh", "-c", `read line; echo "read $line" >out`)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}
	keys, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	said := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(keys) // it ends with an error when the other side is closed
		said <- string(b)
	}()
	if _, err := io.WriteString(keys, "a line\n"); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, <-said)
	}
	if r := w.run(exitDone, "get", name, "-O", "-"); r.stdout != "read a line\n" {
		t.Errorf("readers see %q", r.stdout)
	}
}
