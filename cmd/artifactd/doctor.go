package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/doctor"
)

// errStoreLacks says that the store cannot do what artifactd needs.
var errStoreLacks = errors.New("the store lacks what artifactd needs")

func (p *Program) doctorCommand() *cobra.Command {
	config := daemon.Default()
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find out what the configured store really does", Args: cobra.NoArgs,
		Long: `Find out what the configured store really does, by trying, and what artifactd makes of it. It takes the
settings of "artifactd serve", or those of "artifactd dev". Every object it makes is below PREFIX/probe/
and is removed at the end; nothing else in the bucket is touched. With --database-url the database's
clock is compared too.

Verdicts: ok; degraded, artifactd works, and how is told; missing, something breaks. It exits with 1
when anything is missing.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.S3.ValidateStore(); err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			report, err := daemon.Doctor(cmd.Context(), config.S3, config.DatabaseURL)
			if len(report.Findings) > 0 {
				err = errors.Join(err, p.printFindings(report))
			}
			if err != nil {
				return unavailable(err)
			}
			if n := report.Count(doctor.Missing); n > 0 {
				return fmt.Errorf("%w: %d of %d probes; see the rows marked %q", errStoreLacks, n, len(report.Findings), doctor.Missing)
			}
			return nil
		},
	}
	config.S3.Bind(cmd.Flags())
	cmd.Flags().StringVar(&config.DatabaseURL, "database-url", "", "Postgres, to compare its clock; empty leaves it out")
	return withClientEnv(cmd)
}

func (p *Program) printFindings(r doctor.Report) error {
	return p.print(r, func(t *table) {
		t.row("PROBE", "VERDICT", "FOUND", "WHAT IT MEANS")
		for _, f := range r.Findings {
			t.row(f.Probe, f.Verdict, f.Found, f.Means)
		}
	})
}
