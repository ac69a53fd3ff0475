package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// ProcessSpec says which program to run as a child.
type ProcessSpec struct {
	Path string   // the program, an absolute path
	Args []string // without the program's name
	Env  []string // the whole environment, "KEY=value"
	Dir  string   // working directory
	Log  string   // file that standard output and error are appended to

	// StopSignal asks the program to end in order: from Stop, and when this process dies. Zero
	// means SIGTERM.
	StopSignal syscall.Signal

	identity identity
	// selfEnding: the program is this package's own child, which ends when its standard input
	// closes. input is written there first.
	selfEnding bool
	input      []byte
	// supervise forces the supervisor on a platform that does not need it, for its test.
	supervise bool
}

// Process is a running child that does not outlive this process.
type Process struct {
	cmd    *exec.Cmd
	signal syscall.Signal
	stdin  *os.File // write end; closing it ends a self-ending child or a supervisor
	done   chan struct{}
	err    error // valid after done is closed
	once   sync.Once
}

// StartProcess starts the program. The context only guards the start; the program runs until
// Stop or until this process ends.
func StartProcess(ctx context.Context, spec ProcessSpec) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.StopSignal == 0 {
		spec.StopSignal = syscall.SIGTERM
	}
	if !spec.selfEnding && (spec.supervise || !parentDeathSignals) {
		supervised, err := underSupervisor(spec)
		if err != nil {
			return nil, err
		}
		spec = supervised
	}
	return startDirectly(spec)
}

func startDirectly(spec ProcessSpec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Path, err)
	}
	defer log.Close()

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C in a terminal reaches only the parent, which stops its children
	// in the right order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	setParentDeathSignal(cmd.SysProcAttr, spec.StopSignal)
	spec.identity.apply(cmd.SysProcAttr)

	p := &Process{cmd: cmd, signal: spec.StopSignal, done: make(chan struct{})}
	if spec.selfEnding {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("make a pipe for %s: %w", spec.Path, err)
		}
		defer r.Close()
		cmd.Stdin, p.stdin = r, w
	}
	if err := p.launch(); err != nil {
		p.closeInput()
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	if spec.selfEnding {
		if _, err := p.stdin.Write(spec.input); err != nil {
			p.Kill()
			<-p.done
			return nil, fmt.Errorf("configure %s: %w", spec.Path, err)
		}
	}
	return p, nil
}

// launch starts the command on a thread that lives as long as the command does: Linux sends the
// parent-death signal when the starting thread ends, not when the process does.
func (p *Process) launch() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return <-started
}

// Pid is the process id of the program, or of its supervisor where there is one.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended, for whatever reason.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err tells how the process ended: nil for exit status 0. It is valid once Done is closed.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends a signal to the process. A process that has ended already is no error.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Kill ends the process without asking it.
func (p *Process) Kill() {
	// The only failure is that it has ended, which is what was wanted.
	_ = p.cmd.Process.Kill()
	p.closeInput()
}

// Stop asks the process to end and waits; when the context ends first, it is killed.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(p.signal); err != nil {
		return fmt.Errorf("stop %s: %w", p.cmd.Path, err)
	}
	p.closeInput()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop in time and was killed: %w", p.cmd.Path, ctx.Err())
	}
}

func (p *Process) closeInput() {
	p.once.Do(func() {
		if p.stdin != nil {
			_ = p.stdin.Close() // a pipe: closing cannot lose anything
		}
	})
}

// supervisorConfig is what a supervisor needs to know of its program.
type supervisorConfig struct {
	Path, Dir string
	Args, Env []string
	Signal    syscall.Signal
	Identity  identity
}

// underSupervisor is spec, run by this executable as a supervisor.
func underSupervisor(spec ProcessSpec) (ProcessSpec, error) {
	self, err := os.Executable()
	if err != nil {
		return ProcessSpec{}, fmt.Errorf("find this executable: %w", err)
	}
	input, err := json.Marshal(supervisorConfig{
		Path: spec.Path, Dir: spec.Dir, Args: spec.Args, Env: spec.Env,
		Signal: spec.StopSignal, Identity: spec.identity,
	})
	if err != nil {
		return ProcessSpec{}, err
	}
	return ProcessSpec{
		Path: self, Dir: spec.Dir, Log: spec.Log, StopSignal: syscall.SIGTERM,
		Env:        append(os.Environ(), childEnv+"="+childSupervisor),
		selfEnding: true, input: append(input, '\n'),
	}, nil
}

// runSupervisor runs one program until it ends, or ends it when the parent is gone.
func runSupervisor(stdin io.Reader) error {
	var c supervisorConfig
	end, err := receiveConfig(stdin, &c)
	if err != nil {
		return err
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	setParentDeathSignal(cmd.SysProcAttr, c.Signal)
	c.Identity.apply(cmd.SysProcAttr)
	p := &Process{cmd: cmd, signal: c.Signal, done: make(chan struct{})}
	if err := p.launch(); err != nil {
		return fmt.Errorf("start %s: %w", c.Path, err)
	}
	select {
	case <-p.done:
		return p.err
	case <-end:
	}
	ctx, cancel := context.WithTimeout(context.Background(), childGrace)
	defer cancel()
	return p.Stop(ctx)
}

// pollInterval is how often a starting server is asked whether it is ready.
const pollInterval = 5 * time.Millisecond

// Await asks ready until it says yes, the process ends ([ErrEndedEarly]) or the context does.
func (p *Process) Await(ctx context.Context, ready func(context.Context) (bool, error)) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := ready(ctx)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return ErrEndedEarly
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w", ctx.Err())
		}
	}
}

// ErrEndedEarly says that a server ended before it was ready; its log says why.
var ErrEndedEarly = errors.New("it ended before it was ready")
