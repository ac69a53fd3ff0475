package supervise

import (
	"syscall"
	"time"
)

// childEnv marks a process that this package started from os.Executable().
const childEnv = "ARTIFACTD_SUPERVISE_CHILD"

// processName is what a supervisor goes by: whoever kills all processes of the program's name must not
// kill a starter and its supervisor together, which would leave what the command forked.
const processName = "run-supervisor"

// File descriptors of the supervisor besides the command's standard streams.
const (
	controlFD = 3 // it reads what the starter wants
	reportFD  = 4 // it writes what happened
)

// plan is what the starter sends first.
type plan struct {
	Path string
	Argv []string
	Env  []string
	// Scratch is a folder to be removed at the end, also when the starter is dead by then.
	Scratch string
	// Grace is how long what the command leaves behind may take to end.
	Grace time.Duration
	// Settle is how long that may run before it is asked to.
	Settle time.Duration
	// Leave: it may run on, if the command ended by itself.
	Leave bool
	// Foreground is the starter's process group when that has the terminal that is the command's
	// standard input; 0 when it has none, or another one has it.
	Foreground int
}

// order is what the starter may send after that, one member at a time.
type order struct {
	Signal syscall.Signal `json:",omitempty"` // for the command's group
	// KillIn is when to kill everything, from when it is read. Another one replaces it.
	KillIn *time.Duration `json:",omitempty"`
	// StopWithin asks everything to end, and kills it after that.
	StopWithin *time.Duration `json:",omitempty"`
}

// event is what the supervisor tells: that the command runs, or could not be started, and at last
// that nothing of it is left.
type event struct {
	Started int    `json:",omitempty"` // process id, and id of the group
	Fault   string `json:",omitempty"`
	Ended   *Status
}

// Status is how a command ended.
type Status struct {
	// Code is its exit code, or 128 and the number of the signal that ended it.
	Code int
	// Signal is that signal, or 0.
	Signal syscall.Signal `json:",omitempty"`
	// WantedTerminal: it was ended because it wanted to use a terminal that another job has.
	WantedTerminal bool `json:",omitempty"`
	// Survivors are processes that could not be ended.
	Survivors []int `json:",omitempty"`
}

func statusOf(ws syscall.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	}
	return Status{Code: ws.ExitStatus()}
}
