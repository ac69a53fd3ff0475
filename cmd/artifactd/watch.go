package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/supervise"
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
once it has ended. When it fails, that is said on standard error, and the watch goes on. When the watch is
interrupted or killed the command ends with it, and so does what it started. What a command that has ended
leaves in the background, a server for example, runs on by itself.`,
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

// execFor runs the command for a version. It ends with the watch, however that ends.
func (p *Program) execFor(ctx context.Context, command string, v types.ResolvedVersion) error {
	document, err := json.Marshal(v)
	if err != nil {
		return err
	}
	group, err := supervise.Start(supervise.Command{
		Path: "/bin/sh", Argv: []string{"sh", "-c", command},
		Env:   withEnv(p.Environ, []string{"ARTIFACTD_POINTER=" + v.Name, "ARTIFACTD_VERSION=" + v.Version}),
		Stdin: bytes.NewReader(document), Stdout: p.Stdout, Stderr: p.Stderr, Grace: execGrace, Leave: true,
	})
	if err != nil {
		return fmt.Errorf("run it: %w", err)
	}
	defer context.AfterFunc(ctx, func() { group.Stop(execGrace) })()
	status, err := group.Wait()
	switch {
	case len(status.Survivors) > 0:
		return fmt.Errorf("processes %v of it could not be ended, and may still work", status.Survivors)
	case err != nil:
		return err
	case status.WantedTerminal:
		return errors.New("it was ended because it wanted to use the terminal")
	case status.Signal != 0:
		return fmt.Errorf("it was ended by signal %d (%v)", status.Signal, status.Signal)
	case status.Code != 0:
		return fmt.Errorf("it ended with exit code %d", status.Code)
	}
	return nil
}
