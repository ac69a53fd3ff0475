package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// signals are those sent to this program while it stands in for a command.
type signals struct {
	// ctx ends with the first signal, or when the program's own context does.
	ctx context.Context
	// again is closed at the second.
	again chan struct{}

	cancel  context.CancelFunc
	arrived chan os.Signal
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	mu      sync.Mutex
	sig     syscall.Signal
}

// passOn is how long to wait for a signal after the program's context ended by it: which one it was is
// told on another way.
const passOn = 50 * time.Millisecond

// listenForSignals listens until stop is called.
func listenForSignals(ctx context.Context) *signals {
	s := &signals{again: make(chan struct{}), arrived: make(chan os.Signal, 8), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP} {
		// `nohup` has a hang-up ignored, and that stays so.
		if !signal.Ignored(sig) {
			signal.Notify(s.arrived, sig)
		}
	}
	s.wg.Go(func() { s.listen(ctx) })
	return s
}

func (s *signals) listen(program context.Context) {
	ended := program.Done()
	var late <-chan time.Time
	var last time.Time
	for {
		select {
		case sig := <-s.arrived:
			switch {
			case s.ctx.Err() == nil:
				last = time.Now()
				s.take(sig.(syscall.Signal))
			case time.Since(last) >= sameSignal:
				close(s.again)
				return
			}
		case <-ended:
			ended, late = nil, time.After(passOn)
		case <-late:
			if s.ctx.Err() == nil {
				last = time.Now()
				s.take(s.waiting())
			}
		case <-s.done:
			return
		}
	}
}

// waiting is the signal that has arrived and that nobody has looked at yet, as on a busy machine, or
// SIGTERM.
func (s *signals) waiting() syscall.Signal {
	select {
	case sig := <-s.arrived:
		return sig.(syscall.Signal)
	default:
		return syscall.SIGTERM
	}
}

func (s *signals) take(sig syscall.Signal) {
	s.mu.Lock()
	s.sig = sig
	s.mu.Unlock()
	s.cancel()
}

// first is the first signal.
func (s *signals) first() syscall.Signal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sig
}

// code is the exit code of a program that the first signal ended.
func (s *signals) code() int { return 128 + int(s.first()) }

// endProgram leaves the second signal to what it does to any program: there is no command any more
// that it could be for.
func (s *signals) endProgram() { context.AfterFunc(s.ctx, func() { signal.Stop(s.arrived) }) }

// stop ends the listening. It may be called twice.
func (s *signals) stop() {
	s.once.Do(func() {
		signal.Stop(s.arrived)
		close(s.done)
		s.wg.Wait()
		s.cancel()
	})
}
