package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// starterEnv makes the test binary a program that starts a command and is killed by the test.
const starterEnv = "SUPERVISE_TEST_STARTER"

func TestMain(m *testing.M) {
	if RunChild() {
		return
	}
	if script := os.Getenv(starterEnv); script != "" {
		c := shell(script)
		c.Adopt = true
		if os.Getenv(terminalEnv) != "" {
			c.Stdin = os.Stdin
		}
		g, err := Start(c)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		status, _ := g.Wait()
		if os.Getenv(terminalEnv) != "" {
			fmt.Printf("ended %+v\n", status)
			useTerminal()
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func shell(script string) Command {
	return Command{
		Path: "/bin/sh", Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH")},
		Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Grace: 5 * time.Second,
	}
}

func start(t *testing.T, c Command) *Group {
	t.Helper()
	g, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Kill()
		<-g.Done()
	})
	return g
}

// pids waits for a file with n process ids.
func pids(t *testing.T, file string, n int) []int {
	t.Helper()
	for range 6000 {
		b, _ := os.ReadFile(file) // not there yet
		if fields := strings.Fields(string(b)); len(fields) == n {
			found := make([]int, n)
			for i, f := range fields {
				var err error
				if found[i], err = strconv.Atoi(f); err != nil {
					t.Fatal(err)
				}
			}
			return found
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s does not name %d processes", file, n)
	return nil
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && !strings.HasPrefix(string(out), "Z")
}

func assertGone(t *testing.T, pids []int, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, pid := range pids {
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Errorf("process %d still runs", pid)
				_ = syscall.Kill(pid, syscall.SIGKILL) // ours, and not to be left behind
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// TestLeave: what a command leaves behind may run on when it ends by itself, and not when it is ended.
func TestLeave(t *testing.T) {
	for _, c := range []struct {
		rest string
		ends func(*Group)
		stay bool
	}{
		{"exit 3", func(*Group) {}, true},
		{"sleep 999", func(g *Group) { g.Stop(time.Minute) }, false},
		{"sleep 999", func(g *Group) { g.Kill() }, false},
	} {
		file := filepath.Join(t.TempDir(), "pids")
		command := shell(`sleep 999 & echo $! >` + file + `; ` + c.rest)
		command.Leave = true
		command.Stdout, command.Stderr = nil, nil // or what stays would hold them
		g := start(t, command)
		left := pids(t, file, 1)
		c.ends(g)
		status, err := g.Wait()
		if err != nil || c.stay && status.Code != 3 {
			t.Errorf("%s: %+v, %v", c.rest, status, err)
		}
		if stays := alive(left[0]); stays != c.stay {
			t.Errorf("%s: what it left runs: %t", c.rest, stays)
		}
		_ = syscall.Kill(left[0], syscall.SIGKILL) // ours; it may have ended
	}
}

// A family of three in the group: the command, and two that it forked and that ignore SIGTERM.
const stubborn = `trap "" TERM; sleep 999 & a=$!; sleep 999 & echo $$ $a $! >%s; wait; sleep 999`

func TestStatus(t *testing.T) {
	for script, want := range map[string]Status{
		"exit 0":      {},
		"exit 7":      {Code: 7},
		"kill -15 $$": {Code: 143, Signal: syscall.SIGTERM},
	} {
		got, err := start(t, shell(script)).Wait()
		if err != nil || got.Code != want.Code || got.Signal != want.Signal || len(got.Survivors) > 0 {
			t.Errorf("%q: %+v, %v; want %+v", script, got, err, want)
		}
	}
	c := shell("")
	c.Path = "/no/such/program"
	if _, err := Start(c); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestStreams: the command has the streams it was given and nothing of ours besides; no shell sees
// its arguments.
func TestStreams(t *testing.T) {
	var out, errs bytes.Buffer
	c := shell(`cat; echo "$1" >&2; for fd in 3 4 5 6 7 8 9; do (eval ": >&$fd") 2>/dev/null && echo "fd $fd"; done; echo "$X$` + childEnv + `"`)
	c.Argv = append(c.Argv, "name", "$HOME; *")
	c.Stdin, c.Stdout, c.Stderr, c.Env = strings.NewReader("in\n"), &out, &errs, append(c.Env, "X=y")
	if s, err := start(t, c).Wait(); err != nil || s.Code != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if out.String() != "in\ny\n" || errs.String() != "$HOME; *\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
}

// TestLeftBehind: what runs on after the command is asked to end, and killed if it does not.
func TestLeftBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	c := shell(fmt.Sprintf(`sleep 999 & a=$!; sh -c 'trap "" TERM; while :; do sleep 1; done' & echo $a $! >%s; sleep 0.2; exit 3`, file))
	c.Grace = 300 * time.Millisecond
	s, err := start(t, c).Wait()
	if err != nil || s.Code != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	assertGone(t, pids(t, file, 2), 0)
}

// TestLastLines: a process that only has to write its last lines gets to.
func TestLastLines(t *testing.T) {
	var out bytes.Buffer
	c := shell(`(sleep 0.2; echo late) & exit 0`)
	c.Stdout, c.settle = &out, time.Minute // however late the machine lets it
	if _, err := start(t, c).Wait(); err != nil || out.String() != "late\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestStop(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	g := start(t, shell(fmt.Sprintf(stubborn, file)))
	family := pids(t, file, 3)
	began := time.Now()
	g.Stop(300 * time.Millisecond)
	s, err := g.Wait()
	if took := time.Since(began); err != nil || s.Signal != syscall.SIGKILL || took < 300*time.Millisecond {
		t.Errorf("%+v, %v after %v", s, err, took)
	}
	assertGone(t, family, 0)
}

func TestSignalReachesTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	g := start(t, shell(fmt.Sprintf(`sleep 999 & a=$!; sleep 999 & echo $$ $a $! >%s; wait`, file)))
	family := pids(t, file, 3)
	g.Signal(syscall.SIGINT) // children of `&` ignore it, the shell does not
	if s, err := g.Wait(); err != nil || s.Code != 128+int(syscall.SIGINT) {
		t.Errorf("%+v, %v", s, err)
	}
	assertGone(t, family, 0)
}

// startStarter runs a script under a starter of its own, and returns it with the family's processes.
func startStarter(t *testing.T, script string, n int) (*exec.Cmd, []int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pids")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	starter := exec.Command(self)
	starter.Env = append(os.Environ(), starterEnv+"="+fmt.Sprintf(script, file))
	starter.Stderr = os.Stderr
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = starter.Process.Kill() // it may have ended
		_ = starter.Wait()         // killed on purpose
	})
	return starter, pids(t, file, n)
}

// TestStarterKilled: kill -9 of the starter leaves nothing, however stubborn.
func TestStarterKilled(t *testing.T) {
	starter, family := startStarter(t, stubborn, 3)
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	assertGone(t, family, time.Minute)
}

// TestKillByHoldsWithoutStarter: time that is up need not be said again, as a frozen starter could not.
func TestKillByHoldsWithoutStarter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	g := start(t, shell(fmt.Sprintf(stubborn, file)))
	family := pids(t, file, 3)
	g.KillBy(time.Now().Add(time.Hour))
	g.KillBy(time.Now().Add(200 * time.Millisecond)) // and nothing after that
	assertGone(t, family, time.Minute)
	if s, err := g.Wait(); err != nil || s.Signal != syscall.SIGKILL {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestStoppedSupervisor: whoever stops the supervisor wins no time by it, however often.
func TestStoppedSupervisor(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		order  func(*Group)
	}{
		"asked": {`kill -STOP $PPID; echo $$ >%s; sleep 999`, func(g *Group) { g.Stop(time.Hour) }},
		"time":  {`trap "" TERM; echo $$ >%s; while :; do kill -STOP $PPID; done`, func(g *Group) { g.KillBy(time.Now().Add(200 * time.Millisecond)) }},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			g := start(t, shell(fmt.Sprintf(tc.script, file)))
			family := pids(t, file, 1)
			tc.order(g)
			select {
			case <-g.Done():
			case <-time.After(time.Minute):
				t.Error("the supervisor sleeps")
				_ = g.cmd.Process.Kill() // its starter ends the rest
			}
			assertGone(t, family, 0)
		})
	}
}
