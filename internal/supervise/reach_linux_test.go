package supervise

import (
	"bytes"
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

// TestDaemonsOfAKilledSupervisor: the starter has adopted what left the group, and ends it.
func TestDaemonsOfAKilledSupervisor(t *testing.T) {
	starter, family := startStarter(t, `f=%s; (setsid sh -c 'trap "" TERM; echo $$ >'$f'; while :; do sleep 1; done' &)
while [ ! -s $f ]; do sleep 0.05; done; sleep 0.2; kill -9 $PPID; sleep 999`, 1)
	if err := starter.Wait(); err != nil {
		t.Error(err)
	}
	assertGone(t, family, 0)
}

// TestSupervisorsName: who kills all processes of the program's name does not hit it.
func TestSupervisorsName(t *testing.T) {
	var out bytes.Buffer
	c := shell(`cat /proc/$PPID/comm`)
	c.Stdout = &out
	if _, err := start(t, c).Wait(); err != nil || out.String() != processName+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
