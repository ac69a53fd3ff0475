package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
)

func main() {
	if devstack.RunChild() || ranChild() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(2)
	}
	work := run
	if o.prove {
		work = func(ctx context.Context, _ options, out io.Writer) error { return prove(ctx, out) }
	}
	if err := work(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("campaign", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.DurationVar(&o.duration, "duration", 10*time.Minute, "how long faults and calls go on in the attack on the fence; the one on recovery takes as long as its rollbacks, at most twice this")
	fs.IntVar(&o.rollbacks, "rollbacks", 50, "how often the database is taken back; 0 leaves that attack out")
	fs.StringVar(&o.only, "only", "", `one of the attacks: "fence" (with collection) or "rollbacks"`)
	fs.DurationVar(&o.window, "window", 6*time.Second, "time between two barriers")
	fs.Uint64Var(&o.seed, "seed", 0, "of what generators decide; 0 takes one from the clock")
	fs.IntVar(&o.workers, "workers", 16, "goroutines that acquire, publish and the rest")
	fs.IntVar(&o.readers, "readers", 6, "goroutines that only read")
	fs.IntVar(&o.pointers, "pointers", 12, "pointers they share")
	fs.IntVar(&o.shelves, "shelves", 5, "pointers with short retention that hold real files; 0 for no collection")
	fs.IntVar(&o.publishers, "publishers", 6, "goroutines that publish files on the shelves")
	fs.IntVar(&o.fetchers, "fetchers", 4, "goroutines that read them back")
	fs.DurationVar(&o.crashes, "crashes", 25*time.Second, "mean time between two crashes of Postgres")
	fs.BoolVar(&o.firstOnly, "first", false, "stop soon after the first violation")
	fs.BoolVar(&o.prove, "prove", false, "attack protocols that are broken in one place instead, to see that this is noticed")
	fs.StringVar(&o.report, "report", "", "write the report to this file, and as JSON beside it")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q; everything is a flag", fs.Arg(0))
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1_000_000_000
	}
	return o, o.validate()
}

// run runs a campaign and reports. Violations are an error.
func run(ctx context.Context, o options, out io.Writer) error {
	fmt.Fprintf(out, "seed %d (repeat the generators' decisions with SEED=%d)\n", o.seed, o.seed)
	r := report{Seed: o.seed}
	fence, history := o.split()
	if fence > 0 {
		o.duration = fence
		var err error
		if r, err = attack(ctx, o); err != nil {
			return err
		}
	}
	if history > 0 {
		o.duration = history
		losses, violations, err := attackHistory(ctx, o)
		if err != nil {
			return err
		}
		r.Losses, r.Violations = &losses, append(r.Violations, violations...)
	}
	fmt.Fprint(out, r.markdown())
	if o.report != "" {
		if err := r.write(o.report); err != nil {
			return err
		}
	}
	if n := len(r.Violations); n > 0 {
		return fmt.Errorf("%d violations, the first: %s", n, r.Violations[0])
	}
	return nil
}

// split is how long each attack may last. A rollback took 10 s on a quiet machine and 17 s on a busy one:
// 50 need up to a quarter of an hour.
func (o options) split() (fence, history time.Duration) {
	fence, history = o.duration, 2*o.duration
	if o.only == onlyFence || o.rollbacks == 0 {
		history = 0
	}
	if o.only == onlyRollbacks {
		fence = 0
	}
	return fence, history
}

const onlyFence, onlyRollbacks = "fence", "rollbacks"

// fenceStack is a stack for attacks on the fence. With collects its services collect and reconcile all
// the time; otherwise they never do.
func fenceStack(sabotage string, collects bool) stackOptions {
	return stackOptions{
		sabotage: sabotage,
		// Postgres is stopped every few seconds, and each start of it has to be looked at.
		confirm: 4 * time.Second,
		configure: func(c *daemon.Config) {
			c.UploadURLTTL = uploadTTL
			c.GC.Interval, c.GC.ReconcileInterval = 0, 0
			if collects {
				c.GC = daemon.GCConfig{Interval: 200 * time.Millisecond, ResumeGrace: time.Second, LandingGrace: time.Second,
					ReconcileInterval: time.Second, ReconcileGrace: time.Second, ReconcileMaxShare: 1}
			}
		},
	}
}

// attack is a whole campaign on servers of its own.
func attack(ctx context.Context, o options) (r report, err error) {
	s, err := startStack(ctx, fenceStack(o.sabotage, o.shelves > 0))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	c := newCampaign(o, s)
	if err := c.run(ctx); err != nil {
		return r, err
	}
	return c.report(), nil
}
