// Command artifactd publishes immutable artifacts behind fenced pointers: the service, everything
// it needs on one machine (`artifactd dev`), and the command line for it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/supervise"
)

// version is set by the linker.
var version = "unknown"

// sameSignal is how far apart two signals are that mean two things.
const sameSignal = 300 * time.Millisecond

func main() {
	// `dev` starts this program again as its servers' child process, `run` as its command's supervisor.
	devstack.RunChild()
	supervise.RunChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := Program{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Sole: true}
	// After the first signal the next one ends the program at once, as it does without us. A second
	// one that comes with the first is the same: `timeout` signals its child and then its group.
	context.AfterFunc(ctx, func() { time.AfterFunc(sameSignal, stop) })
	code := p.Run(ctx)
	stop()
	os.Exit(code)
}
