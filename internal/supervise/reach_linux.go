package supervise

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adoptOrphans makes this process the parent of whichever of its descendants loses its own.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the subreaper of the command: %w", err)
	}
	return nil
}

// nameProcess names this process, as ps and killall see it. The kernel keeps 15 bytes.
func nameProcess(name string) {
	_ = os.WriteFile("/proc/self/comm", []byte(name), 0) // without /proc it keeps its program's name
}

// endAdopted kills everything below this process, which has adopted it, until nothing is left or it
// has taken killTime. It returns what could not be ended.
func endAdopted() []int {
	for deadline := time.Now().Add(killTime); ; time.Sleep(killEvery) {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil && err != syscall.EINTR || pid == 0 {
				break
			}
		}
		left := descendants()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}

// killBelow kills what is below the supervisor, which has not ended.
func (g *Group) killBelow() {
	for _, pid := range below(g.cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
}

// dieWithParent has the kernel kill the command when its supervisor dies.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// signalGroup: once the command is reaped the number of its group may be somebody else's, while
// whoever is left of the group is found among the descendants.
func (w *watcher) signalGroup(s syscall.Signal) {
	if !w.reaped {
		_ = syscall.Kill(-w.pid, s) // it may have ended
		return
	}
	for _, pid := range descendants() {
		if group, err := syscall.Getpgid(pid); err == nil && group == w.pid {
			_ = syscall.Kill(pid, s) // it may have ended
		}
	}
}

// awaitGroup: without children there are no descendants either.
func (w *watcher) awaitGroup() {}

// members are the processes that are left.
func (w *watcher) members() []int { return descendants() }

// descendants finds the processes below this one.
func descendants() []int { return below(os.Getpid()) }

// below finds the processes that a process has started, and those that these have. What is not readable
// has just ended.
func below(root int) []int {
	children := map[int][]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // without /proc only the group can be reached
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if parent := parentOf(pid); parent > 0 {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	found := children[root]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i]]...)
	}
	return found
}

// parentOf reads the parent from a process's stat line: "pid (name) state parent …", where the name
// may hold anything.
func parentOf(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0
	}
	return parent
}
