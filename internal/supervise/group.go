package supervise

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Command is what to run.
type Command struct {
	// Path is the executable; no shell is involved. Argv begins with the name it goes by.
	Path string
	Argv []string
	// Env is its environment, KEY=value.
	Env            []string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Scratch, when not empty, is a folder that is removed once the command has ended, even when this
	// process is dead by then.
	Scratch string
	// Grace is how long what the command leaves behind may take to end when asked to, before it is
	// killed.
	Grace time.Duration
	// Adopt has this process take the supervisor's place if that is killed: on Linux what left the
	// command's group then becomes this process's child, and is ended. It is for a program that has no
	// other children: every child it has is taken for the command's, as long as it lives.
	Adopt bool

	// Leave lets what the command leaves behind when it ends by itself run on, on its own: it may have
	// started a server. What it leaves when it is ended is ended all the same.
	Leave bool

	settle time.Duration // settleTime, except in tests
}

// settleTime is how long what the command left behind may run before it is asked to end: the other
// end of a pipe gets to write its last lines.
const settleTime = 500 * time.Millisecond

// Group is a running command with everything that it started.
type Group struct {
	cmd   *exec.Cmd
	pid   int
	adopt bool
	// insist fires at the time that KillBy told last.
	insist *time.Timer

	mu      sync.Mutex
	control *os.File

	done   chan struct{}
	status Status
	err    error
}

// streamsDelay is how long the copying of standard streams may go on after the end, where they are no
// files.
const streamsDelay = 5 * time.Second

// Start starts a command under a supervisor.
func Start(c Command) (*Group, error) {
	if c.Adopt {
		if err := adoptOrphans(); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	input, control, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	report, output, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, input.Close(), control.Close())
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.ExtraFiles = []*os.File{input, output} // controlFD, reportFD
	cmd.WaitDelay = streamsDelay
	// What is sent to our group, by a terminal for example, is ours to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_, _ = input.Close(), output.Close() // the child's ends
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), control.Close(), report.Close())
	}
	g := &Group{cmd: cmd, adopt: c.Adopt, control: control, done: make(chan struct{})}
	g.insist = time.AfterFunc(time.Hour, g.killUntilDone)
	g.insist.Stop()
	begun := make(chan struct{})
	go g.wakeUntil(begun) // the command runs already when that is told
	events := json.NewDecoder(report)
	err = g.begin(c, events)
	close(begun)
	if err != nil {
		_ = control.Close() // it ends the supervisor
		_ = cmd.Wait()      // whose own failure says less than err
		return nil, errors.Join(err, report.Close())
	}
	go g.await(events, report)
	return g, nil
}

// begin sends the plan and waits until the command runs.
func (g *Group) begin(c Command, events *json.Decoder) error {
	err := json.NewEncoder(g.control).Encode(plan{
		Path: c.Path, Argv: c.Argv, Env: c.Env, Scratch: c.Scratch, Grace: c.Grace, Settle: cmp.Or(c.settle, settleTime), Leave: c.Leave, Foreground: foregroundOf(c.Stdin),
	})
	if err != nil {
		return fmt.Errorf("instruct the supervisor: %w", err)
	}
	var started event
	if err := events.Decode(&started); err != nil {
		return fmt.Errorf("the supervisor ended before the command ran: %w", err)
	}
	if started.Fault != "" {
		return errors.New(started.Fault)
	}
	g.pid = started.Started
	return nil
}

// errSupervisor says that the command's end was not seen; it was killed with whatever could be reached.
var errSupervisor = errors.New("the command's supervisor was killed, and the command with it")

func (g *Group) await(events *json.Decoder, report io.Closer) {
	defer close(g.done)
	defer g.insist.Stop()
	var last event
	err := events.Decode(&last)
	_ = report.Close() // only read from
	if err != nil || last.Ended == nil {
		// The kernel has killed the command itself where it can. Nobody has reaped under our feet: with
		// its supervisor gone the group's leader is init's, and its id is not used again while the
		// group has members.
		_ = syscall.Kill(-g.pid, syscall.SIGKILL)
		g.err = errSupervisor
	} else {
		g.status = *last.Ended
	}
	_ = g.cmd.Wait() // it has reported, or is dead
	if g.err != nil && g.adopt {
		g.status.Survivors = endAdopted()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.control.Close()
}

// Pid is the process id of the command, and the id of its process group.
func (g *Group) Pid() int { return g.pid }

// Done is closed when nothing of the command runs any more but what may stay.
func (g *Group) Done() <-chan struct{} { return g.done }

// Wait waits for that and tells how the command ended. The error says that this is not known; the
// status then has nothing but survivors.
func (g *Group) Wait() (Status, error) {
	<-g.done
	return g.status, g.err
}

// Signal sends a signal to the command's group.
func (g *Group) Signal(s syscall.Signal) { g.send(order{Signal: s}) }

// KillBy has everything killed at a time, unless told another time before. It also holds when this
// process does not run then.
func (g *Group) KillBy(t time.Time) {
	in := time.Until(t)
	g.send(order{KillIn: &in})
	g.insist.Reset(max(0, in))
}

// wake has a supervisor go on that somebody has stopped: it must not sleep through its orders.
func (g *Group) wake() { _ = g.cmd.Process.Signal(syscall.SIGCONT) } // it may have ended

// wakeUntil wakes the supervisor, however often it is stopped again.
func (g *Group) wakeUntil(done <-chan struct{}) {
	ticker := time.NewTicker(killEvery)
	defer ticker.Stop()
	for {
		g.wake()
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// killUntilDone does at the time of KillBy what the supervisor does, as long as that has not: one that is
// stopped again and again, by the command itself for example, may not get to it.
func (g *Group) killUntilDone() {
	ticker := time.NewTicker(killEvery)
	defer ticker.Stop()
	for {
		g.wake()
		select {
		case <-g.done:
			return
		case <-ticker.C:
			g.killBelow()
		}
	}
}

// Stop asks everything to end (SIGTERM), and kills it after the grace.
func (g *Group) Stop(grace time.Duration) { g.send(order{StopWithin: &grace}) }

// Kill ends everything at once.
func (g *Group) Kill() { g.KillBy(time.Now()) }

// send tells the supervisor. One that does not listen any more has ended, and everything with it.
func (g *Group) send(o order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = json.NewEncoder(g.control).Encode(o)
	g.wake()
}
