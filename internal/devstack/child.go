package devstack

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// childEnv marks a process that this package started from os.Executable(), and says as what.
const childEnv = "ARTIFACTD_DEVSTACK_CHILD"

const (
	childS3         = "s3"
	childSupervisor = "supervisor"
)

// childGrace is how long a child that lost its parent may take to end in order.
const childGrace = 10 * time.Second

// RunChild must be the first call of main and of TestMain. In a process that this package
// started as its child it serves as that child and then exits the process; in every other
// process it returns false at once.
func RunChild() bool {
	kind := os.Getenv(childEnv)
	if kind == "" {
		return false
	}
	// A child's own children must not take themselves for this one.
	if err := os.Unsetenv(childEnv); err != nil {
		exitChild(err)
	}
	switch kind {
	case childS3:
		exitChild(runS3Child(os.Stdin))
	case childSupervisor:
		exitChild(runSupervisor(os.Stdin))
	default:
		exitChild(fmt.Errorf("unknown child kind %q in %s", kind, childEnv))
	}
	return true
}

func exitChild(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "artifactd child process:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// receiveConfig reads the JSON document that the parent sends first, and returns a channel that
// closes when the child should end: its parent is gone (standard input closed) or asks (SIGTERM).
func receiveConfig(stdin io.Reader, config any) (<-chan struct{}, error) {
	dec := json.NewDecoder(stdin)
	if err := dec.Decode(config); err != nil {
		return nil, fmt.Errorf("read the configuration from standard input: %w", err)
	}
	// SIGINT from a terminal goes to the whole group; the parent decides when the stack stops.
	signal.Ignore(syscall.SIGINT)
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	orphaned := make(chan struct{})
	go func() {
		defer close(orphaned)
		// Nothing but the end of the stream ever follows the configuration.
		_, _ = io.Copy(io.Discard, stdin)
	}()
	end := make(chan struct{})
	go func() {
		defer close(end)
		select {
		case <-terminated:
		case <-orphaned:
		}
	}()
	return end, nil
}
