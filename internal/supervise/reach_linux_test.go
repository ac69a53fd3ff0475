package supervise

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A daemon: it leaves the group and the session, and loses its parents.
const daemon = `(setsid sh -c 'trap "" TERM; echo $$ >%s; while :; do sleep 1; done' &) ; sleep 999`

func TestDaemonsAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	g := start(t, shell(fmt.Sprintf(daemon, file)))
	family := pids(t, file, 1)
	g.Stop(3 * time.Second) // for the command to end by itself; the daemon does not
	if s, err := g.Wait(); err != nil || s.Signal != syscall.SIGTERM || len(s.Survivors) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
	assertGone(t, family, 0)
}

func TestDaemonsOfAKilledStarter(t *testing.T) {
	starter, family := startStarter(t, daemon, 1)
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	assertGone(t, family, time.Minute)
}

// TestSupervisorKilled: the starter notices, and the group goes.
func TestSupervisorKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pids")
	g := start(t, shell(fmt.Sprintf(stubborn, file)))
	family := pids(t, file, 3)
	if err := syscall.Kill(g.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Wait(); err != errSupervisor {
		t.Errorf("%v", err)
	}
	assertGone(t, family, time.Minute)
}
