package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/migrations"
)

// logLevel is a flag for the least important line that is logged.
type logLevel struct{ slog.Level }

func (l *logLevel) Set(s string) error { return l.UnmarshalText([]byte(s)) }
func (l *logLevel) String() string     { return strings.ToLower(l.Level.String()) }
func (l *logLevel) Type() string       { return "level" }

func bindLogLevel(cmd *cobra.Command, l *logLevel) {
	cmd.Flags().Var(l, "log-level", "debug, info, warn or error")
}

func (p *Program) serveCommand() *cobra.Command {
	config := daemon.Default()
	level := &logLevel{slog.LevelInfo}
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the service", Args: cobra.NoArgs,
		Long: `Run the service on a database and a bucket of yours. Run "artifactd migrate" first, as the database's
owner. Secrets are better given by environment than by flag. Any number of replicas may run.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Validate(); err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			return unavailable(daemon.Run(cmd.Context(), config, daemon.Options{
				Logger: p.logger(level.Level),
				Ready:  func(a net.Addr) { p.note("artifactd: serving on %s", a) },
			}))
		},
	}
	config.Bind(cmd.Flags())
	bindLogLevel(cmd, level)
	return cmd
}

func (p *Program) migrateCommand() *cobra.Command {
	var url, role string
	level := &logLevel{slog.LevelInfo}
	cmd := &cobra.Command{
		Use: "migrate", Short: "Bring the database to this program's schema", Args: cobra.NoArgs,
		Long: `Bring the database to this program's schema. Connect as the role that shall own the tables, not as the
service's. It is safe to run at any time, more than once and at once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if url == "" {
				return fmt.Errorf("%w: --database-url (%s) is required, as the role that shall own the tables", errUsage, daemon.EnvName("database-url"))
			}
			err := migrations.Up(cmd.Context(), url, migrations.Options{ServiceRole: role, Logger: p.logger(level.Level)})
			if err != nil {
				return unavailable(err)
			}
			return p.done(map[string]any{"up_to_date": true}, "the schema is up to date")
		},
	}
	cmd.Flags().StringVar(&url, "database-url", "", "Postgres, as the owner of the tables")
	cmd.Flags().StringVar(&role, "service-role", migrations.DefaultServiceRole, "role that gets the service's rights; its members may serve")
	bindLogLevel(cmd, level)
	return cmd
}

// unavailable gives a database or network that does not answer its exit code. The error number in a
// file's error passes for a network's, so files are left out.
func unavailable(err error) error {
	var network net.Error
	var file *fs.PathError
	if errors.Is(err, daemon.ErrUnavailable) || errors.As(err, &network) && !errors.As(err, &file) {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}
