//go:build !linux

package supervise

import (
	"syscall"
	"time"
)

// adoptOrphans: this kernel gives orphans to init.
func adoptOrphans() error { return nil }

// nameProcess: it keeps its program's name.
func nameProcess(string) {}

// endAdopted: nothing was adopted.
func endAdopted() []int { return nil }

// killBelow kills the command's group.
func (g *Group) killBelow() { _ = syscall.Kill(-g.pid, syscall.SIGKILL) } // it may have ended

// dieWithParent: this kernel does not tell a child that its parent died.
func dieWithParent(*syscall.SysProcAttr) {}

func (w *watcher) signalGroup(s syscall.Signal) {
	_ = syscall.Kill(-w.pid, s) // it may have ended
}

// awaitGroup waits until the group is empty: who loses its parents is init's child, not ours.
func (w *watcher) awaitGroup() {
	for !w.gone() {
		time.Sleep(killEvery)
	}
}

func (w *watcher) gone() bool { return syscall.Kill(-w.pid, 0) == syscall.ESRCH }

// members are the processes that are left: no more is known than the group's id.
func (w *watcher) members() []int {
	if w.gone() {
		return nil
	}
	return []int{w.pid}
}

// descendants: without a way to tell, the group is what can be reached.
func descendants() []int { return nil }
