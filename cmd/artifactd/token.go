package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
)

func (p *Program) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", Short: "Create, list and revoke access tokens, directly in the database",
	}
	cmd.AddCommand(p.tokenCreateCommand(), p.tokenListCommand(), p.tokenRevokeCommand())
	return cmd
}

// adminCommand is a command that works in the database itself.
func (p *Program) adminCommand(cmd *cobra.Command, run func(context.Context, *daemon.Admin, []string) error) *cobra.Command {
	var url string
	cmd.Flags().StringVar(&url, "database-url", "", "Postgres, as the service's role or the owner")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if url == "" {
			return fmt.Errorf("%w: --database-url (%s) is required; access tokens are made in the database itself", errUsage, daemon.EnvName("database-url"))
		}
		admin, err := daemon.OpenAdmin(cmd.Context(), url)
		if err != nil {
			return unavailable(err)
		}
		defer admin.Close()
		return adminError(run(cmd.Context(), admin, args))
	}
	return withClientEnv(cmd)
}

// adminError gives the catalogue's errors their exit codes.
func adminError(err error) error {
	var invalid *pointer.InvalidError
	switch {
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: --%w", errUsage, err)
	case errors.Is(err, pointer.ErrTokenNotFound):
		return fmt.Errorf("%w: %w; see `artifactd token ls`", errNotFound, err)
	case errors.Is(err, pointer.ErrUnavailable):
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return err
}

// accessToken is what is told of an access token. Secret only when it was made just now.
type accessToken struct {
	ID         uuid.UUID       `json:"id"`
	Name       string          `json:"name"`
	Scopes     []pointer.Scope `json:"scopes"`
	Patterns   []string        `json:"patterns"`
	CreatedAt  time.Time       `json:"created_at"`
	ExpiresAt  *time.Time      `json:"expires_at,omitempty"`
	RevokedAt  *time.Time      `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time      `json:"last_used_at,omitempty"`
	Secret     string          `json:"secret,omitempty"`
}

func describe(t pointer.AccessToken, secret string) accessToken {
	return accessToken{
		ID: t.ID, Name: t.Name, Scopes: t.Scopes, Patterns: t.Patterns, CreatedAt: t.CreatedAt,
		ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, LastUsedAt: t.LastUsed, Secret: secret,
	}
}

func (p *Program) tokenCreateCommand() *cobra.Command {
	var scopes, patterns []string
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make an access token and print its secret, once", Args: cobra.ExactArgs(1),
		Long: `Make an access token and print its secret, once: only a hash of it is kept. Each scope includes the
weaker ones: read, publish, admin. Patterns say for which pointers: "*", "prefix.*" or a whole name.`,
		Example: "  artifactd token create ci-reports --scope publish --pattern 'acme.reports.*'",
	}
	// No StringSlice: it reads a line of CSV, and drops the lines after the first without a word.
	cmd.Flags().StringArrayVar(&scopes, "scope", []string{"read"}, "read, publish or admin")
	cmd.Flags().StringArrayVar(&patterns, "pattern", nil, `pointers it is for: "*", "prefix.*" or a name (required)`)
	cmd.Flags().DurationVar(&expires, "expires-in", 0, "how long it is valid; 0 until it is revoked")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if expires < 0 {
			return fmt.Errorf("%w: --expires-in must not be negative", errUsage)
		}
		return nil
	}
	return p.adminCommand(cmd, func(ctx context.Context, a *daemon.Admin, args []string) error {
		var typed []pointer.Scope
		for _, s := range separated(scopes) {
			typed = append(typed, pointer.Scope(s))
		}
		var until *time.Time
		if expires > 0 {
			t := time.Now().Add(expires)
			until = &t
		}
		made, secret, err := a.CreateToken(ctx, args[0], typed, separated(patterns), until)
		if err != nil {
			return err
		}
		// In a table the secret stands alone, so that `TOKEN=$(artifactd token create …)` works.
		p.note("artifactd: access token %s; this is the only time its secret is shown", made.ID)
		if err := p.print(describe(made, secret), func(t *table) { t.row(secret) }); err != nil {
			return fmt.Errorf("access token %s was made, but its secret could not be printed and is lost: %w; revoke it with `artifactd token revoke %[1]s` and make another", made.ID, err)
		}
		return nil
	})
}

// separated are the texts of a flag that can be repeated and have several in one, with commas between them.
func separated(values []string) []string {
	var out []string
	for _, v := range values {
		out = append(out, strings.Split(v, ",")...)
	}
	return out
}

func (p *Program) tokenListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Short: "List access tokens, without their secrets", Args: cobra.NoArgs}
	return p.adminCommand(cmd, func(ctx context.Context, a *daemon.Admin, _ []string) error {
		tokens, err := a.ListTokens(ctx)
		if err != nil {
			return err
		}
		items := make([]accessToken, len(tokens))
		for i, t := range tokens {
			items[i] = describe(t, "")
		}
		return p.print(map[string]any{"items": items}, func(t *table) {
			t.row("ID", "NAME", "SCOPES", "PATTERNS", "CREATED", "EXPIRES", "REVOKED", "LAST USED")
			for _, i := range items {
				t.row(i.ID, i.Name, joined(i.Scopes), strings.Join(i.Patterns, ","), stamp(i.CreatedAt),
					optionalStamp(i.ExpiresAt), optionalStamp(i.RevokedAt), optionalStamp(i.LastUsedAt))
			}
		})
	})
}

func joined(scopes []pointer.Scope) string {
	texts := make([]string, len(scopes))
	for i, s := range scopes {
		texts[i] = string(s)
	}
	return strings.Join(texts, ",")
}

func (p *Program) tokenRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "revoke ID", Short: "End an access token", Args: cobra.ExactArgs(1)}
	return p.adminCommand(cmd, func(ctx context.Context, a *daemon.Admin, args []string) error {
		id, err := uuid.Parse(args[0])
		if err != nil {
			return fmt.Errorf("%w: %q is not the id of an access token; see `artifactd token ls`", errUsage, args[0])
		}
		if err := a.RevokeToken(ctx, id); err != nil {
			return err
		}
		return p.done(map[string]any{"id": id, "revoked": true}, "access token %s is revoked", id)
	})
}
