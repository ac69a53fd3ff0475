package main

import (
	"os"
	"syscall"
	"testing"
)

// The program's own context may end before a signal is looked at, also where both are the same
// Ctrl-C: the command gets that one, and not the one that stands for all others.
func TestTheSignalThatArrivedIsPassedOn(t *testing.T) {
	t.Parallel()
	s := &signals{arrived: make(chan os.Signal, 1)}
	s.arrived <- os.Interrupt
	for _, want := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if got := s.waiting(); got != want {
			t.Errorf("passed on %v, want %v", got, want)
		}
	}
}
