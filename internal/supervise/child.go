package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// RunChild must be called first thing in main and in TestMain. In a process that this package started
// as a supervisor it serves as that and then exits the process; in every other it returns false.
func RunChild() bool {
	if os.Getenv(childEnv) == "" {
		return false
	}
	// The descriptors are not for the command.
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(reportFD)
	nameProcess(processName)
	report := json.NewEncoder(os.NewFile(reportFD, "report"))
	if err := watch(os.NewFile(controlFD, "control"), report); err != nil {
		_ = report.Encode(event{Fault: err.Error()}) // nobody is left to tell otherwise
		os.Exit(1)
	}
	os.Exit(0)
	return true
}

// Bounds of ending.
const (
	// killEvery is how often killing is repeated: processes may fork while they are looked for.
	killEvery = 10 * time.Millisecond
	// killTime is how long it is repeated before what still runs counts as out of reach.
	killTime = 10 * time.Second
)

// watcher is the supervisor of one command.
type watcher struct {
	pid    int
	orders chan order // closed when the starter is gone
	leader chan Status
	stops  chan stopped
	empty  chan struct{} // no child is left

	foreground int  // see plan
	handedOver bool // the terminal, to the command
	wanted     bool // see Status.WantedTerminal

	status  Status
	reaped  bool // the command itself has ended
	asking  bool // everything was asked to end
	killing *time.Ticker
	gaveUp  <-chan time.Time
}

// watch runs the command that the starter names, to its end and that of everything it started.
func watch(control io.Reader, report *json.Encoder) error {
	// The command's parent-death signal comes when the thread that started it ends.
	runtime.LockOSThread()
	// A handler, not SIG_IGN: that would be passed on to the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGPIPE)
	orders := json.NewDecoder(control)
	var p plan
	if err := orders.Decode(&p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if p.Scratch != "" {
		defer os.RemoveAll(p.Scratch)
	}
	if err := adoptOrphans(); err != nil {
		return err
	}
	attr := &syscall.ProcAttr{Env: p.Env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
	dieWithParent(attr.Sys)
	pid, err := syscall.ForkExec(p.Path, p.Argv, attr)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Path, err)
	}
	w := &watcher{pid: pid, orders: make(chan order), leader: make(chan Status, 1), stops: make(chan stopped), empty: make(chan struct{}), killing: time.NewTicker(killEvery), foreground: p.Foreground}
	w.killing.Stop()
	_ = report.Encode(event{Started: pid}) // a starter that is gone shows itself in the orders
	go w.listen(orders)
	go w.reap()
	w.run(p)
	w.takeBack()
	w.status.WantedTerminal = w.wanted
	_ = report.Encode(event{Ended: &w.status})
	return nil
}

// listen reads orders until the starter is gone.
func (w *watcher) listen(orders *json.Decoder) {
	defer close(w.orders)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			return
		}
		w.orders <- o
	}
}

// reap waits for the command and for everything that became our child, until there is none.
func (w *watcher) reap() {
	defer close(w.empty)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no children
			w.awaitGroup()
			return
		case ws.Stopped():
			w.stops <- stopped{pid: pid, by: ws.StopSignal()}
		case pid == w.pid:
			w.leader <- statusOf(ws)
		}
	}
}

// run returns when nothing of the command is left, or what is left cannot be ended, or may stay.
func (w *watcher) run(p plan) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	due := time.NewTimer(time.Hour) // of KillIn
	due.Stop()
	orders := w.orders
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				orders = nil
				w.kill()
				continue
			}
			w.obey(o, timer, due)
		case w.status = <-w.leader:
			w.reaped = true
			if w.asking {
				continue
			}
			if p.Leave {
				return
			}
			timer.Reset(p.Settle)
		case s := <-w.stops:
			w.resume(s)
		case <-w.empty:
			if !w.reaped {
				w.status = <-w.leader
			}
			return
		case <-timer.C:
			if w.asking {
				w.kill()
				continue
			}
			w.ask()
			timer.Reset(p.Grace)
		case <-due.C:
			w.kill()
		case <-w.killing.C:
			w.signal(syscall.SIGKILL)
		case <-w.gaveUp:
			if !w.reaped {
				w.status = Status{Code: 128 + int(syscall.SIGKILL), Signal: syscall.SIGKILL}
			}
			w.status.Survivors = w.members()
			return
		}
	}
}

func (w *watcher) obey(o order, timer, due *time.Timer) {
	switch {
	case o.Signal != 0:
		w.signalGroup(o.Signal)
	case o.KillIn != nil:
		due.Reset(max(0, *o.KillIn))
	case o.StopWithin != nil:
		w.ask()
		timer.Reset(max(0, *o.StopWithin))
	}
}

// ask asks everything to end. What is stopped goes on, or it could not.
func (w *watcher) ask() {
	w.asking = true
	w.signal(syscall.SIGTERM)
	w.signal(syscall.SIGCONT)
}

// kill begins to kill everything, again and again until nothing is left.
func (w *watcher) kill() {
	if w.gaveUp != nil {
		return
	}
	w.asking = true
	w.gaveUp = time.After(killTime)
	w.signal(syscall.SIGKILL)
	w.killing.Reset(killEvery)
}

// signal sends to the group and to what has left it. Processes that are gone, or belong to another
// account, are not reached; gaveUp sees to it that this ends.
func (w *watcher) signal(s syscall.Signal) {
	w.signalGroup(s)
	for _, pid := range descendants() {
		_ = syscall.Kill(pid, s)
	}
}
