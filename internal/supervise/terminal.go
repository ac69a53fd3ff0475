package supervise

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A terminal belongs to one process group of its session, its foreground. Ours is that at first, and
// the command is in a group of its own: a key like Ctrl-C reaches us, who pass it on. Once the command
// wants to read the terminal the kernel stops it (SIGTTIN), and it is given the terminal as a shell
// would give it; from then on the keys are its own.

// foregroundOf is this process's group if it has the terminal that a stream is, or else 0.
func foregroundOf(stream io.Reader) int {
	f, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return 0 // no terminal, or somebody else's
	}
	return group
}

// stopped is a process that a signal has stopped.
type stopped struct {
	pid int
	by  syscall.Signal
}

// resume decides what becomes of a command that has stopped: one that wants the terminal gets it if
// the starter has it, and is ended otherwise, or it would stand still under a lease that is renewed.
func (w *watcher) resume(s stopped) {
	if group, err := syscall.Getpgid(s.pid); err != nil || group != w.pid || w.asking {
		return
	}
	switch s.by {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if !w.handOver() {
			w.wanted = true
			w.kill()
			return
		}
	case syscall.SIGTSTP:
		if !w.handedOver {
			return
		}
		// The key for it reaches the command alone, and nobody could wake it up.
	default:
		return // whoever stopped it has a reason
	}
	w.signalGroup(syscall.SIGCONT)
}

// handOver makes the command's group the foreground of the terminal.
func (w *watcher) handOver() bool {
	if w.foreground == 0 {
		return false
	}
	has, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil || has != w.foreground && has != w.pid {
		return false
	}
	// Changing it from the background is an offence that would stop us. The command has its own
	// disposition already.
	signal.Ignore(syscall.SIGTTOU)
	w.handedOver = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, w.pid) == nil
	return w.handedOver
}

// takeBack gives the terminal to the starter again.
func (w *watcher) takeBack() {
	if w.handedOver {
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, w.foreground) // a starter that is gone has no use for it
	}
}
