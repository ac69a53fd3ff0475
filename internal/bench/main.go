package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

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
		os.Exit(2) // the flag set has said why
	}
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are what can be told on the command line.
type options struct {
	duration   time.Duration // of one side of one round
	rounds     int           // of each benchmark
	only       string        // names with commas between them; empty for all
	json       string        // file that gets the report too; empty for none
	cpuProfile string        // folder that gets CPU profiles of the service; empty for none
	size       int64         // bytes of a large file
	files      int           // files of a version of many
	slow       int           // slow connections of hostile
	live       int           // files in the catalogue beside which is collected
	dead       int           // objects of one collection
	listed     int           // objects of one reconcile pass
	dir        string        // folder that the servers' data is made in
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	mebibytes := fs.Int64("size", 1024, "MiB of the file of large and read")
	fs.IntVar(&o.files, "files", 20_000, "files of many and flip")
	fs.IntVar(&o.slow, "slow", 10_000, "slow connections of hostile; fewer where the limit of open files is low")
	fs.IntVar(&o.live, "live", 100_000, "live files in the catalogue of collect, catalogue and beside")
	fs.IntVar(&o.dead, "dead", 10_000, "objects that one round of these deletes")
	fs.IntVar(&o.listed, "objects", 10_000, "objects that one round of reconcile lists")
	fs.DurationVar(&o.duration, "duration", 3*time.Second, "length of one side of one round")
	fs.IntVar(&o.rounds, "rounds", 3, "rounds of each benchmark, fewer of the long ones; both sides run in each")
	fs.StringVar(&o.only, "only", "", "run these benchmarks only, with commas between them: "+strings.Join(names(), ", "))
	fs.StringVar(&o.json, "json", "", "write the report to this file too, as JSON")
	fs.StringVar(&o.cpuProfile, "cpuprofile", "", "write CPU profiles of the service to this folder, one a round (costs a few percent)")
	fs.StringVar(&o.dir, "dir", "", "make the servers' data in this folder, whose disk is then measured too; empty for the temporary one")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.size = *mebibytes * mebibyte
	var fault error
	switch {
	case *mebibytes < 1 || *mebibytes > 64<<10:
		fault = errors.New("-size must be between 1 and 65536")
	case o.files < 2 || o.files > 100_000:
		fault = errors.New("-files must be between 2 and 100000")
	case o.slow < 1 || o.slow > 50_000:
		fault = errors.New("-slow must be between 1 and 50000")
	case o.live < 100 || o.live > 10_000_000 || o.dead < 10 || o.dead > 1_000_000 || o.listed < 10 || o.listed > 1_000_000:
		fault = errors.New("-live must be between 100 and 10000000, -dead and -objects between 10 and 1000000")
	case fs.NArg() > 0:
		fault = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case o.duration < 100*time.Millisecond || o.duration > time.Minute:
		fault = errors.New("-duration must be between 100ms and 1m")
	case o.rounds < 1 || o.rounds > 100:
		fault = errors.New("-rounds must be between 1 and 100")
	case slices.ContainsFunc(o.chosen(), func(name string) bool { return !slices.Contains(names(), name) }):
		fault = fmt.Errorf("-only must be of %s, not %q", strings.Join(names(), ", "), o.only)
	}
	if fault != nil {
		fmt.Fprintln(stderr, "bench:", fault)
	}
	return o, fault
}

// chosen are the benchmarks to run, empty for all.
func (o options) chosen() []string {
	if o.only == "" {
		return nil
	}
	return strings.Split(o.only, ",")
}

// settingUp is how long everything beside the measured rounds may take, those of the bulk benchmarks
// included, which have no length of their own.
const settingUp = 15 * time.Minute

// run measures what o asks for and writes the table to stdout, progress to stderr.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	chosen := slices.DeleteFunc(benchmarks(), func(b benchmark) bool { return o.only != "" && !slices.Contains(o.chosen(), b.name) })
	// A pgbench round lasts whole seconds, and a round ends with its last operation.
	sides := time.Duration(2 * len(chosen) * (o.rounds + 1))
	for _, b := range chosen {
		sides += time.Duration(2 * b.pairs * o.rounds)
	}
	ctx, cancel := context.WithTimeout(ctx, settingUp+2*sides*(o.duration+time.Second))
	defer cancel()
	if o.cpuProfile != "" {
		if err := os.MkdirAll(o.cpuProfile, 0o755); err != nil {
			return fmt.Errorf("-cpuprofile: %w", err)
		}
	}
	fmt.Fprintln(stderr, "bench: starting Postgres, S3 and the service")
	s, err := startStack(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	report := newReport(o, s)
	for _, b := range chosen {
		result, err := measure(ctx, s, b, o, stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		report.Results = append(report.Results, result)
	}
	if o.json != "" {
		if err := report.writeFile(o.json); err != nil {
			return fmt.Errorf("-json: %w", err)
		}
	}
	return report.print(stdout)
}
