package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

func (p *Program) pointerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "pointer", Short: "Create, list, show and retire pointers"}
	cmd.AddCommand(p.pointerCreateCommand(), p.pointerListCommand(), p.pointerShowCommand(), p.pointerRetireCommand())
	return cmd
}

func (p *Program) pointerCreateCommand() *cobra.Command {
	var keepVersions int32
	var keepSeconds int64
	var public, site bool
	var labels []string
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a pointer, or change its settings", Args: cobra.ExactArgs(1),
		Long: "Create a pointer, or change the settings that are given. A retired one is created again and continues its numbers.",
	}
	cmd.RunE = p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		var s types.PutPointerRequest
		if cmd.Flags().Changed("keep-versions") {
			s.KeepVersions = &keepVersions
		}
		if cmd.Flags().Changed("keep-seconds") {
			s.KeepSeconds = &keepSeconds
		}
		if cmd.Flags().Changed("public") {
			s.Public = &public
		}
		if cmd.Flags().Changed("site") {
			s.Site = &site
		}
		if cmd.Flags().Changed("label") {
			all, err := parseLabels(labels)
			if err != nil {
				return err
			}
			s.Labels = &all
		}
		settings, err := c.PutPointer(ctx, args[0], s)
		if err != nil {
			return err
		}
		return p.printSettings(settings)
	})
	cmd.Flags().Int32Var(&keepVersions, "keep-versions", 5, "displaced versions kept whatever their age")
	cmd.Flags().Int64Var(&keepSeconds, "keep-seconds", 86400, "seconds that a displaced version is kept at least")
	cmd.Flags().BoolVar(&public, "public", false, "readable without an access token")
	cmd.Flags().BoolVar(&site, "site", false, "browsers show its files, and index.html for a folder, without scripts")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "key=value; can be repeated; replaces all labels")
	return p.clientCommand(cmd)
}

func parseLabels(given []string) (types.Labels, error) {
	labels := types.Labels{}
	for _, g := range given {
		k, v, ok := strings.Cut(g, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%w: --label must be key=value, not %q", errUsage, g)
		}
		labels[k] = v
	}
	return labels, nil
}

func (p *Program) printSettings(s types.PointerSettings) error {
	return p.print(s, func(t *table) {
		t.row("POINTER", "KEEP VERSIONS", "KEEP SECONDS", "PUBLIC", "CREATED", "RETIRED")
		t.row(s.Name, s.KeepVersions, s.KeepSeconds, mark(s.Public), stamp(s.CreatedAt), optionalStamp(s.RetiredAt))
	})
}

func (p *Program) pointerListCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "ls [PREFIX]", Short: "List pointers, what they show and who holds them", Args: cobra.MaximumNArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			items, err := collect(c.Pointers(ctx, strings.Join(args, "")), limit)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"items": items}, func(t *table) { pointerRows(t, items...) })
		}),
	}
	cmd.Flags().IntVar(&limit, "limit", 0, "most pointers to list; 0 for all")
	return p.clientCommand(cmd)
}

func pointerRows(t *table, items ...types.PointerItem) {
	t.row("POINTER", "VERSION", "LEASE", "HOLDER", "EXPIRES IN", "KEEP VERSIONS", "KEEP SECONDS", "PUBLIC", "STATE")
	for _, i := range items {
		state := "active"
		if i.RetiredAt != nil {
			state = "retired"
		}
		t.row(i.Name, orDash(value(i.CurrentVersion)), orDash(value(i.Lease.Token)), orDash(value(i.Lease.Holder)),
			remaining(i.Lease.ExpiresInSeconds), i.KeepVersions, i.KeepSeconds, mark(i.Public), state)
	}
}

func (p *Program) pointerShowCommand() *cobra.Command {
	return p.clientCommand(&cobra.Command{
		Use: "show NAME", Short: "Show a pointer's settings, version and lease", Args: cobra.ExactArgs(1),
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			// In a list by prefix the name itself comes first. Asking for the settings says why it
			// does not.
			items, err := collect(c.Pointers(ctx, args[0]), 1)
			if err != nil || len(items) == 0 || items[0].Name != args[0] {
				if _, settingsErr := c.PointerSettings(ctx, args[0]); settingsErr != nil {
					err = settingsErr
				}
				if err == nil {
					err = client.ErrPointerNotFound
				}
				return err
			}
			return p.print(items[0], func(t *table) { pointerRows(t, items[0]) })
		}),
	})
}

func (p *Program) pointerRetireCommand() *cobra.Command {
	var current string
	cmd := &cobra.Command{
		Use: "retire NAME", Short: "End a pointer: readers no longer resolve it", Args: cobra.ExactArgs(1),
		Long: "End a pointer: its lease ends and readers no longer resolve it. Its name and numbers are never forgotten.",
		RunE: p.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			if current == "" {
				var err error
				if current, err = confirmCurrent(ctx, c, args[0]); err != nil {
					return err
				}
			}
			if err := c.RetirePointer(ctx, args[0], current); err != nil {
				return err
			}
			return p.done(map[string]any{"name": args[0], "retired": true}, "%s is retired", args[0])
		}),
	}
	cmd.Flags().StringVar(&current, "current", "", "refuse unless this version is published now (default: whatever is)")
	return p.clientCommand(cmd)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
