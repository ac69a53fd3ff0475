package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// temporaryName is a name beside base that nobody else uses.
func temporaryName(base string) string { return "." + base + ".artifactd-" + rand.Text() }

// withClient runs a command that needs nothing but the service.
func (p *Program) withClient(run func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := p.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd.Context(), c, args)
	}
}

func (p *Program) resolveCommand() *cobra.Command {
	return p.clientCommand(&cobra.Command{
		Use: "resolve NAME", Short: "Show the current version of a pointer", Args: cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := c.Resolve(ctx, args[0])
			if err != nil {
				return err
			}
			return p.print(v, func(t *table) {
				t.row("VERSION", "PATH", "SIZE", "DIGEST")
				for _, f := range v.Files {
					t.row(v.Version, f.Path, f.Size, f.Digest)
				}
				if v.FilesTruncated {
					p.note("artifactd: %d of %d files are shown", len(v.Files), v.FileCount)
				}
			})
		}),
	})
}

func (p *Program) historyCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "history NAME", Short: "Show every generation of a pointer and what became of it", Args: cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			items, err := collect(c.History(ctx, args[0]), limit)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"items": items}, func(t *table) {
				t.row("VERSION", "STATE", "CURRENT", "HOLDER", "ACQUIRED", "ENDED", "FILES", "SIZE", "NOTE")
				for _, g := range items {
					t.row(g.Version, g.State, mark(g.Current), g.Holder, stamp(g.AcquiredAt), optionalStamp(g.EndedAt), g.FileCount, size(g.TotalBytes), generationNote(g))
				}
			})
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "most generations to show, newest first; 0 for all")
	return p.clientCommand(cmd)
}

func generationNote(g types.Generation) string {
	var notes []string
	if g.RollbackOf != nil {
		notes = append(notes, "rollback of "+*g.RollbackOf)
	}
	if g.RecoveredFrom != nil {
		notes = append(notes, "recovered, was "+*g.RecoveredFrom)
	}
	if g.Pinned {
		notes = append(notes, "pinned")
	}
	if g.CollectedAt != nil {
		notes = append(notes, "collected "+stamp(*g.CollectedAt))
	}
	return strings.Join(notes, ", ")
}

func (p *Program) rollbackCommand() *cobra.Command {
	var operation, current string
	cmd := &cobra.Command{
		Use: "rollback NAME VERSION", Short: "Publish an old version's files again, as a new version", Args: cobra.ExactArgs(2),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := parseOperationID(operation)
			if err != nil {
				return err
			}
			if current == "" {
				v, err := c.Resolve(ctx, args[0])
				if err != nil {
					return err
				}
				current = v.Version
			}
			published, err := c.Rollback(ctx, args[0], args[1], current, id)
			if err != nil {
				return err
			}
			return p.printPublished(args[0], published)
		}),
	}
	cmd.Flags().StringVar(&current, "current", "", "refuse unless this version is published now (default: whatever is)")
	cmd.Flags().StringVar(&operation, "operation-id", "", "UUID of this rollback, to repeat it safely")
	return p.clientCommand(cmd)
}

func (p *Program) leaseCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "lease", Short: "Look at a pointer's lease, or end it"}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show who holds the lease", Args: cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			l, err := c.LeaseStatus(ctx, args[0])
			if err != nil {
				return err
			}
			return p.print(l, func(t *table) {
				t.row("LIVE", "TOKEN", "HOLDER", "EXPIRES IN")
				t.row(mark(l.Live), value(l.Token), value(l.Holder), remaining(l.ExpiresInSeconds))
			})
		}),
	}
	breaking := &cobra.Command{
		Use: "break NAME [TOKEN]", Short: "End somebody else's lease", Args: cobra.RangeArgs(1, 2),
		Long: "End somebody else's lease, for good. With TOKEN, only if the lease still has that token.",
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 1 {
				l, err := c.LeaseStatus(ctx, args[0])
				switch {
				case err != nil:
					return err
				case !l.Live || l.Token == nil:
					return p.done(map[string]any{"pointer": args[0], "broken": false}, "no lease of %s is live", args[0])
				}
				args = append(args, *l.Token)
			}
			if err := c.BreakLease(ctx, args[0], args[1]); err != nil {
				return err
			}
			return p.done(map[string]any{"pointer": args[0], "token": args[1], "broken": true}, "lease %s of %s is broken", args[1], args[0])
		}),
	}
	cmd.AddCommand(p.clientCommand(show), p.clientCommand(breaking))
	return cmd
}

func (p *Program) healthCommand() *cobra.Command {
	return p.clientCommand(&cobra.Command{
		Use: "health", Short: "Ask the service whether it is ready", Args: cobra.NoArgs,
		Long: `Ask the service whether it is ready: "ready", or "read-only" with what it lacks while nothing can be
written, for example because its object store does not answer (exit code 0: reads go on). When its
database does not answer, or nothing does within 10 seconds, the exit code is 14.`,
		RunE: p.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			silent := &client.TransportError{Host: c.Host(), Err: fmt.Errorf("nothing came within %s", healthPatience)}
			ctx, cancel := context.WithTimeoutCause(ctx, healthPatience, silent)
			defer cancel()
			h, err := c.Ready(ctx)
			if err != nil {
				return err
			}
			return p.print(h, func(t *table) {
				if t.row(h.Status); h.Detail != nil {
					t.row(*h.Detail)
				}
			})
		}),
	})
}

// healthPatience is how long a service may take to say how it is: longer than it waits for its own
// database, shorter than a monitor or a person does.
const healthPatience = 10 * time.Second

// collect takes the first limit items of a walk; 0 takes all.
func collect[T any](walk iter.Seq2[T, error], limit int) ([]T, error) {
	items := []T{}
	for item, err := range walk {
		if err != nil {
			return nil, err
		}
		if items = append(items, item); limit > 0 && len(items) == limit {
			break
		}
	}
	return items, nil
}

// value is what an optional member holds, or the zero value.
func value[T any](v *T) T {
	if v == nil {
		var zero T
		return zero
	}
	return *v
}

func mark(yes bool) string {
	if yes {
		return "yes"
	}
	return "-"
}

func optionalStamp(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return stamp(*t)
}

func remaining(s *float64) string {
	if s == nil {
		return "-"
	}
	return time.Duration(*s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// confirmCurrent finds the version that a pointer shows, "" when it shows none.
func confirmCurrent(ctx context.Context, c *client.Client, name string) (string, error) {
	v, err := c.Resolve(ctx, name)
	if errors.Is(err, client.ErrNothingPublished) {
		return "", nil
	}
	return v.Version, err
}
