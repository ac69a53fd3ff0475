package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactd/artifactd/internal/daemon"
)

func (p *Program) manCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "man", Short: "Write the manual pages, one for each command", Args: cobra.NoArgs,
		Long: `Write the manual pages, one for each command, as man(1) reads them. The folder is made if there is none.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := writeManual(cmd.Context(), cmd.Root(), dir)
			if err != nil {
				return err
			}
			return p.done(map[string]any{"dir": dir, "pages": n}, "%d pages are in %s", n, dir)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "man1", "folder that the pages are written to")
	return cmd
}

// writeManual writes the pages of a command and all below it.
func writeManual(ctx context.Context, root *cobra.Command, dir string) (pages int, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	var walk func(cmd *cobra.Command) error
	walk = func(cmd *cobra.Command) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		var text strings.Builder
		manPage(&text, cmd)
		if err := os.WriteFile(filepath.Join(dir, manName(cmd)+".1"), []byte(text.String()), 0o644); err != nil {
			return err
		}
		pages++
		for _, sub := range cmd.Commands() {
			if sub.Hidden {
				continue
			}
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return pages, walk(root)
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage writes one page in the man macros.
func manPage(w io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(w, ".TH %q 1 \"\" %q\n", strings.ToUpper(manName(cmd)), "artifactd "+version)
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", roff(manName(cmd)), roff(cmd.Short))
	if !cmd.IsAdditionalHelpTopicCommand() {
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			line = cmd.CommandPath() + " COMMAND"
		}
		fmt.Fprintf(w, ".SH SYNOPSIS\n.B %s\n", roff(line))
	}
	if cmd.Long != "" {
		fmt.Fprintf(w, ".SH DESCRIPTION\n%s", manText(cmd.Long))
	}
	if subs := shown(cmd); len(subs) > 0 {
		fmt.Fprint(w, ".SH COMMANDS\n")
		for _, sub := range subs {
			fmt.Fprintf(w, ".TP\n.BR %s (1)\n%s\n", roff(manName(sub)), roff(sub.Short))
		}
	}
	for _, s := range sections(cmd) {
		if !s.flags.HasAvailableFlags() {
			continue
		}
		fmt.Fprintf(w, ".SH %q\n", strings.ToUpper(s.title))
		s.flags.VisitAll(func(f *pflag.Flag) { manFlag(w, f) })
	}
	if exits := exitsOf(cmd); len(exits) > 0 {
		fmt.Fprint(w, ".SH \"EXIT CODES\"\n")
		for _, e := range exitMeanings {
			if e.code <= exitUsage || slices.Contains(exits, e.code) {
				fmt.Fprintf(w, ".TP\n.B %d\n%s\n", e.code, roff(e.text))
			}
		}
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, ".SH EXAMPLES\n%s", manText(cmd.Example))
	}
	if cmd.HasParent() {
		fmt.Fprintf(w, ".SH \"SEE ALSO\"\n.BR %s (1)\n", roff(manName(cmd.Parent())))
	}
}

func manFlag(w io.Writer, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	kind, text := pflag.UnquoteUsage(f)
	if kind != "" {
		name += " " + kind
	}
	if f.Name != "help" {
		text += "; " + daemon.EnvName(f.Name)
	}
	fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(name), roff(text))
}

// manText is a text of paragraphs; lines that are indented stay as they are.
func manText(text string) string {
	var b strings.Builder
	plain := false
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if indented := strings.HasPrefix(line, " "); indented != plain {
			plain = indented
			b.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[plain])
		}
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roff(line) + "\n")
	}
	if plain {
		b.WriteString(".fi\n")
	}
	return b.String()
}

// roff keeps a line's text from being read as a request, and its dashes from becoming typographic ones.
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line
}
