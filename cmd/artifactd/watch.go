package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// watchFlags are the flags of `watch`.
type watchFlags struct {
	after   string
	command string
}

func (p *Program) watchCommand() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Print a line for every new version of a pointer",
		Long: `Print a line for the current version of a pointer, and then for every new one, until it is interrupted
(exit code 0). With -o json a line is the whole version. With --after it begins after the version of the
last line that was seen: what was published meanwhile and is still kept comes in its order.

With --exec a shell command runs for every version, one after another. It finds ARTIFACTD_POINTER and
ARTIFACTD_VERSION in its environment and the version as JSON on its standard input; its line is printed
once it has ended. When it fails, that is said on standard error, and the watch goes on.`,
		Example: "  artifactd watch acme.site --exec 'artifactd get acme.site -O /srv/site --delete'",
		Args:    cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			return p.watch(ctx, c, args[0], f)
		}),
	}
	cmd.Flags().StringVar(&f.after, "after", "", "version after which to begin")
	cmd.Flags().StringVar(&f.command, "exec", "", "shell command to run for every version")
	return p.clientCommand(cmd)
}

func (p *Program) watch(ctx context.Context, c *client.Client, name string, f watchFlags) error {
	for v, err := range c.Watch(ctx, name, f.after) {
		if err != nil && ctx.Err() != nil {
			return nil // this is how a watch ends
		}
		if err != nil {
			return err
		}
		if f.command != "" {
			err := p.execFor(ctx, f.command, v)
			if ctx.Err() != nil {
				return nil // its line is not printed: it may not have done its work
			}
			if err != nil {
				p.note("artifactd: the command for %s: %v", v.Version, err)
			}
		}
		if err := p.printLine(v); err != nil {
			return err
		}
	}
	return nil
}

// printLine prints a version as one line.
func (p *Program) printLine(v types.ResolvedVersion) error {
	if p.format == "json" {
		enc := json.NewEncoder(p.Stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	_, err := fmt.Fprintf(p.Stdout, "%s  %s  %s  %s\n", v.Version, stamp(v.PublishedAt), counted(int64(v.FileCount), "file"), printable(v.Holder))
	return err
}

// execGrace is how long a command may take to end when the watch is interrupted.
const execGrace = 10 * time.Second

// execFor runs the command for a version.
func (p *Program) execFor(ctx context.Context, command string, v types.ResolvedVersion) error {
	document, err := json.Marshal(v)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env = withEnv(p.Environ, []string{"ARTIFACTD_POINTER=" + v.Name, "ARTIFACTD_VERSION=" + v.Version})
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(document), p.Stdout, p.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = execGrace
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) || err == nil {
		return err
	}
	return fmt.Errorf("run it: %w", err)
}
