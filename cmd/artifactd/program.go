package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/client"
)

// Program is one run of the command line. Nothing in it is global, so that a test runs as many as
// it likes at once.
type Program struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string // KEY=value, as os.Environ
	// Sole: this process is the program's alone, and all its children are the program's.
	Sole bool

	root *cobra.Command
	// running is set once flags and arguments are known to be good; errors before that are usage.
	running bool

	// Flags that several commands have.
	data   string
	format string
	quiet  bool

	progressEvery time.Duration // see there; 0 outside of tests
	shown         atomic.Pointer[bar]
	remote        remote
}

// defaultData is the folder of `dev`, in the current one.
const defaultData = ".artifactd"

// remote is how the service is reached.
type remote struct{ url, token, tokenFile, githubAudience, caFile string }

// Run runs the command and returns the exit code. Data goes to Stdout, everything else to Stderr.
func (p *Program) Run(ctx context.Context) int {
	p.root = p.command()
	p.root.SetArgs(p.Args)
	p.root.SetIn(p.Stdin)
	p.root.SetOut(p.Stdout)
	p.root.SetErr(p.Stderr)
	cmd, err := p.root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	err = worded(cmd, err)
	if !p.running {
		if !errors.Is(err, errUsage) {
			err = fmt.Errorf("%w: %w", errUsage, err)
		}
		err = fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
	}
	var several *severalError
	if errors.As(err, &several) {
		for _, fault := range several.told {
			fmt.Fprintf(p.Stderr, "artifactd: %s\n", complaint(fault))
		}
		if several.more > 0 {
			fmt.Fprintf(p.Stderr, "artifactd: and %d more\n", several.more)
		}
	}
	fmt.Fprintf(p.Stderr, "artifactd: %s\n", complaint(err))
	return outcomeOf(err).code
}

func (p *Program) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "artifactd",
		Short: "Publish immutable artifacts behind fenced pointers",
		Long: `artifactd publishes files under names ("pointers") so that readers only ever see a whole, verified
version from the worker that was entitled to publish it. "artifactd dev" runs everything on this
machine; the other commands find it by themselves.

Every flag can be set by environment too: --s3-bucket is ARTIFACTD_S3_BUCKET. "artifactd help environment"
and "artifactd help exit-codes" tell the rest to whoever writes scripts.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.settle(cmd); err != nil {
				return err
			}
			if err := checkName(cmd); err != nil {
				return err
			}
			p.running = true
			return nil
		},
	}
	root.PersistentFlags().StringVar(&p.data, "data", defaultData, "folder of \"artifactd dev\", and where its client.env is found")
	root.PersistentFlags().StringVarP(&p.format, "output", "o", "table", "table or json")
	root.PersistentFlags().BoolVarP(&p.quiet, "quiet", "q", false, "no progress and no remarks: errors alone")
	root.AddCommand(p.devCommand(), p.serveCommand(), p.migrateCommand(), p.tokenCommand())
	root.AddCommand(p.pointerCommand(), p.publishCommand(), p.runCommand(), p.getCommand(), p.watchCommand(), p.resolveCommand(), p.historyCommand(),
		p.rollbackCommand(), p.leaseCommand(), p.gcCommand(), p.verifyCommand(), p.recoverCommand(), p.healthCommand(), p.doctorCommand(), p.versionCommand(), p.manCommand())
	root.AddCommand(topics()...)
	for _, cmd := range append(root.Commands(), root) {
		if cmd.HasSubCommands() {
			refuseUnknown(cmd)
		}
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	group(root)
	document(root)
	p.complete(root)
	root.SetUsageFunc(usage)
	return root
}

// refuseUnknown makes a command that only groups others refuse what it does not have. By itself it
// prints its help and reports success, which a script with a misspelt word would take for done.
func refuseUnknown(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // so that RunE sees them
	cmd.SuggestionsMinimumDistance = 2
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		meant := ""
		if suggested := cmd.SuggestionsFor(args[0]); len(suggested) > 0 {
			meant = " did you mean " + strings.Join(suggested, " or ") + "?"
		}
		return fmt.Errorf("%w: unknown command %q for %q;%s see `%s --help`", errUsage, args[0], cmd.CommandPath(), meant, cmd.CommandPath())
	}
}

func (p *Program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return p.print(map[string]string{"version": version}, func(t *table) { t.row(version) })
		},
	}
}

// remoteAnnotation marks commands that talk to a service.
const remoteAnnotation = "artifactd/remote"

// clientCommand marks a command that talks to a service, so that it has the flags for it and reads
// client.env.
func (p *Program) clientCommand(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&p.remote.url, "url", "", "the service, for example https://artifacts.example.com")
	cmd.Flags().StringVar(&p.remote.token, "token", "", "access token (better given by environment)")
	cmd.Flags().StringVar(&p.remote.tokenFile, "token-file", "", "file with the access or identity token, read anew for every request")
	cmd.Flags().StringVar(&p.remote.githubAudience, "github-audience", "", "in a GitHub Actions job: use its identity tokens, made for this audience")
	cmd.Flags().StringVar(&p.remote.caFile, "ca-file", "", "file with certificates, as PEM, of authorities to trust besides the system's")
	withClientEnv(cmd).Annotations[remoteAnnotation] = "yes"
	return cmd
}

// client makes the client that the flags describe.
func (p *Program) client() (*client.Client, error) {
	if p.remote.url == "" {
		return nil, fmt.Errorf("%w: no service given and no %s found in %s; start one with `artifactd dev`, or give --url and --token (ARTIFACTD_URL, ARTIFACTD_TOKEN)", errUsage, clientEnvName, p.data)
	}
	o := client.Options{UserAgent: "artifactd/" + version, Silent: p.silent}
	var err error
	if o.Token, err = p.tokenSource(); err == nil {
		o.RootCAs, err = p.authorities()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	c, err := client.New(p.remote.url, p.remote.token, o)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return c, nil
}

// tokenSource is where tokens come from that are not given at once; nil when one is.
func (p *Program) tokenSource() (client.TokenSource, error) {
	switch r := p.remote; {
	case r.tokenFile != "" && r.githubAudience != "":
		return nil, errors.New("--token-file and --github-audience exclude each other")
	case r.tokenFile != "":
		source := client.TokenFile(r.tokenFile)
		_, err := source(context.Background()) // what is wrong with it now is told before anything is sent
		return source, err
	case r.githubAudience != "":
		env := parseEnviron(p.Environ)
		return client.GitHubToken(env["ACTIONS_ID_TOKEN_REQUEST_URL"], env["ACTIONS_ID_TOKEN_REQUEST_TOKEN"], r.githubAudience)
	}
	return nil, nil
}

// authorities are the system's and those of --ca-file; nil without that.
func (p *Program) authorities() (*x509.CertPool, error) {
	if p.remote.caFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(p.remote.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-file: %s has no certificate in PEM form", p.remote.caFile)
	}
	return roots, nil
}

// logger writes to Stderr, in lines for people or, with -o json, for machines.
func (p *Program) logger(level slog.Level) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if p.format == "json" {
		return slog.New(slog.NewJSONHandler(p.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(p.Stderr, opts))
}

// note tells a person something that is not data, unless that person wants to hear of errors alone.
func (p *Program) note(format string, args ...any) {
	if p.quiet {
		return
	}
	line := fmt.Sprintf(strings.TrimRight(format, "\n")+"\n", args...)
	if p.shown.Load().above(line) {
		return
	}
	fmt.Fprint(p.Stderr, line)
}

// stamp is a time as the tables show it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
