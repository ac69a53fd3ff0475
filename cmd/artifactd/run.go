package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/supervise"
)

// runFlags are the flags of `run`.
type runFlags struct {
	publishFlags
	files []string
	grace time.Duration
}

func (p *Program) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run NAME --file PATH... -- COMMAND [ARG...]",
		Short: "Run a command under a lease and publish what it made",
		Long: `Run a command under the lease of a pointer, and publish the files it made when it succeeds.

The lease is taken before the command starts and renewed while it runs. When it is lost, or the service
cannot be reached, the command and everything it started are ended before the lease could run out:
SIGTERM, then SIGKILL after --grace, which is cut short where the lease leaves less time. Nothing is
published then, nor when the command fails.

No shell is involved; write "-- sh -c '...'" for one. The command finds in its environment
ARTIFACTD_POINTER, ARTIFACTD_FENCING_TOKEN, ARTIFACTD_LEASE_ID, and in ARTIFACTD_LEASE_FILE the name of a
file with the whole lease as JSON, which is kept current. What it leaves running in the background is
ended too.

A command that reads the terminal gets it, as from a shell, when this one has it; Ctrl-C then goes to the
command alone.

The command's exit code is this one's, 128 and the number for a signal. The first signal sent to this
command is passed on, a second one kills the command; while it waits for the lease, a signal ends it.`,
		Example: "  artifactd run acme.reports.daily --wait 10m --file report.pdf -- make report.pdf",
		Args:    cobra.ArbitraryArgs, // checked below, with what stands behind "--"
		RunE: func(cmd *cobra.Command, args []string) error {
			job, err := f.job(cmd, args)
			if err != nil {
				return err
			}
			if job.client, err = p.client(); err != nil {
				return err
			}
			defer job.client.Close()
			return p.run(cmd.Context(), job)
		},
	}
	cmd.Flags().StringArrayVar(&f.files, "file", nil, "file or folder that the command makes, to be published; can be repeated")
	cmd.Flags().StringVar(&f.holder, "holder", "", "who works, for people (default user@host)")
	cmd.Flags().DurationVar(&f.ttl, "ttl", time.Minute, "how long the lease lives without being renewed; it is renewed at a third of this")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for somebody else's lease")
	cmd.Flags().DurationVar(&f.grace, "grace", 10*time.Second, "how long the command may take to end when asked to; at most a quarter of --ttl when the lease is lost")
	cmd.Flags().StringArrayVar(&f.metadata, "metadata", nil, "key=value, or a JSON object; can be repeated")
	cmd.Flags().Int64Var(&f.sourceRevision, "source-revision", 0, "orders sources: older than what is published is refused")
	f.bindFollow(cmd)
	return p.clientCommand(cmd)
}

// job is what `run` was told.
type job struct {
	runFlags
	name        string
	path        string   // of the command's executable
	argv        []string // of the command, its name included
	publication client.Publication
	client      *client.Client
}

// job checks everything that can be wrong before a lease is taken for it.
func (f runFlags) job(cmd *cobra.Command, args []string) (job, error) {
	j := job{runFlags: f}
	dash := cmd.ArgsLenAtDash()
	if dash < 1 || dash == len(args) {
		return j, fmt.Errorf("%w: write `artifactd run NAME --file PATH -- COMMAND`", errUsage)
	}
	j.name, j.argv = args[0], args[dash:]
	j.files = append(j.files, args[1:dash]...) // --file a b
	if len(j.files) == 0 {
		return j, fmt.Errorf("%w: name what the command makes with --file; a version has at least one file", errUsage)
	}
	if f.grace < 0 {
		return j, fmt.Errorf("%w: --grace must not be negative", errUsage)
	}
	var err error
	if j.path, err = exec.LookPath(j.argv[0]); err != nil {
		return j, fmt.Errorf("%w: the command cannot be run: %w", errUsage, err)
	}
	j.publication, err = f.publication(cmd)
	return j, err
}

// run is a job from lease to outcome.
func (p *Program) run(ctx context.Context, j job) error {
	in := listenForSignals(ctx)
	defer in.stop()
	lease, err := j.client.Acquire(in.ctx, j.name, p.acquisition(j.name, j.publishFlags))
	if in.ctx.Err() != nil {
		// Whoever sends another signal now does not want to wait for this.
		in.stop()
		if err == nil {
			release(ctx, j.client, lease)
		}
		return &endedError{code: in.code(), text: "interrupted while it waited for the lease; the command was not started"}
	}
	if err != nil {
		return err
	}
	// A signal is for the command to act on, and ends the lease only with it.
	keeper := j.client.Keep(context.WithoutCancel(ctx), lease)
	published, err := p.runKept(in, j, keeper)
	_ = keeper.Stop() // its reason is in err already
	if err != nil {
		if !errors.Is(err, client.ErrLeaseLost) && !errors.Is(err, client.ErrLeaseNotFound) && !errors.Is(err, client.ErrOutcomeUnknown) {
			release(ctx, j.client, lease)
		}
		return err
	}
	p.note("artifactd: sent %s; %s were there already", size(published.UploadedBytes), size(published.AdoptedBytes))
	return p.printFiles(j.name, published)
}

// runKept runs the command under a kept lease, and publishes what it made.
func (p *Program) runKept(in *signals, j job, k *client.Keeper) (client.FilesPublished, error) {
	var none client.FilesPublished
	file, err := newLeaseFile(k.Lease())
	if err != nil {
		return none, err
	}
	defer file.remove()
	env := withEnv(p.Environ, append(file.environ(), leaseEnviron(k.Lease())...))
	group, err := supervise.Start(supervise.Command{
		Path: j.path, Argv: j.argv, Env: env, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Scratch: file.dir, Grace: j.grace, Adopt: p.Sole,
	})
	if err != nil {
		return none, fmt.Errorf("the command could not be run: %w", err)
	}
	work := leased{group: group, keeper: k, file: file, grace: j.grace, signals: in}
	if err := work.await(); err != nil {
		return none, err
	}
	in.endProgram()
	return p.publishMade(in.ctx, j, k)
}

// publishMade publishes the files that the command made.
func (p *Program) publishMade(ctx context.Context, j job, k *client.Keeper) (client.FilesPublished, error) {
	var none client.FilesPublished
	named, total, err := p.walk(j.files, j.follow)
	if err != nil {
		return none, fmt.Errorf("the command succeeded, but what it should have made cannot be published: %w", err)
	}
	bar := p.progress("hashing", total, len(named))
	defer bar.stop()
	kept, cancel := context.WithCancelCause(k.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	sources, err := hashSources(kept, named, bar)
	if err != nil {
		return none, err
	}
	bar.next("sending", total, len(sources))
	published, err := j.client.PublishKept(ctx, k, bar.follow(sources), j.publication, nil)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = &interruptedError{"nothing was published"}
	}
	return published, err
}

// releaseTime bounds giving a lease back.
const releaseTime = 5 * time.Second

// release gives a lease back so that the next worker need not wait for its expiry. A failure changes
// nothing but that wait.
func release(ctx context.Context, c *client.Client, l client.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	_ = c.Release(ctx, l)
}
