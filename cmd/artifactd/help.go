package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups that the program's commands are listed in.
const (
	groupWork    = "work"
	groupLook    = "look"
	groupOperate = "operate"
)

// group puts the commands into the groups they are listed in; those that are in none come last.
func group(root *cobra.Command) {
	root.AddGroup(
		&cobra.Group{ID: groupWork, Title: "Publish and read:"},
		&cobra.Group{ID: groupLook, Title: "Look after pointers:"},
		&cobra.Group{ID: groupOperate, Title: "Run a service:"},
	)
	of := map[string]string{
		"publish": groupWork, "run": groupWork, "get": groupWork, "resolve": groupWork, "watch": groupWork,
		"pointer": groupLook, "history": groupLook, "rollback": groupLook, "lease": groupLook,
		"version": "", "help": "", "completion": "", "man": "", "exit-codes": "", "environment": "",
	}
	for _, cmd := range root.Commands() {
		id, known := of[cmd.Name()]
		if !known {
			id = groupOperate
		}
		cmd.GroupID = id
	}
}

// section is a heading that some flags are listed under.
type section struct {
	title string
	flags *pflag.FlagSet
}

// sections sorts a command's flags: its own first, then those that many commands have.
func sections(cmd *cobra.Command) []section {
	titles := []string{"Flags", "Which service", "Which store", "Access and limits", "Every command"}
	found := make([]section, len(titles))
	for i, title := range titles {
		found[i] = section{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { found[sectionOf(cmd, f)].flags.AddFlag(f) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { found[len(found)-1].flags.AddFlag(f) })
	return found
}

func sectionOf(cmd *cobra.Command, f *pflag.Flag) int {
	switch name := f.Name; {
	case cmd.Annotations[remoteAnnotation] != "" && strings.Contains(" url token token-file github-audience ca-file ", " "+name+" "):
		return 1
	case strings.HasPrefix(name, "s3-"):
		return 2
	case strings.HasPrefix(name, "tls-"), strings.HasPrefix(name, "max-connections"), strings.HasSuffix(name, "-rate"),
		name == "caller-concurrency", name == "trusted-proxies", name == "oidc-config":
		return 3
	}
	return 0
}

// usage prints how a command is called.
func usage(cmd *cobra.Command) error {
	if cmd.IsAdditionalHelpTopicCommand() {
		return nil // its text is all there is
	}
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		for _, g := range append(cmd.Groups(), &cobra.Group{}) {
			title := g.Title
			switch {
			case title == "" && len(cmd.Groups()) == 0:
				title = "Commands:"
			case title == "":
				title = "Besides:"
			}
			fmt.Fprintf(&b, "\n%s\n", title)
			for _, sub := range shown(cmd) {
				if sub.GroupID == g.ID {
					fmt.Fprintf(&b, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
				}
			}
		}
	}
	for _, s := range sections(cmd) {
		if s.flags.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n%s:\n%s", s.title, s.flags.FlagUsages())
		}
	}
	if exits := exitsOf(cmd); len(exits) > 0 {
		b.WriteString("\nExit codes, besides 0, 1 and 2:\n")
		for _, code := range exits {
			fmt.Fprintf(&b, "  %d %s\n", code, exitName(code))
		}
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\"%s COMMAND --help\" says more about a command.\n", cmd.CommandPath())
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), b.String())
	return err
}

// shown are the commands below one, and the topics, that its help lists.
func shown(cmd *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands()), func(sub *cobra.Command) bool {
		return !sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() && sub.Name() != "help"
	})
}

// completionTime bounds what a shell waits for when somebody presses Tab.
const completionTime = 2 * time.Second

// mostCompletions is how many names are offered.
const mostCompletions = 200

// completePointer offers the names of pointers as the first argument, and files after that.
func (p *Program) completePointer(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if err := p.settle(cmd); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := p.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), completionTime)
	defer cancel()
	var names []string
	for item, err := range c.Pointers(ctx, typed) {
		if err != nil || len(names) == mostCompletions {
			break // there is nobody to tell
		}
		names = append(names, item.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// complete gives the commands what shells can offer to type.
func (p *Program) complete(cmd *cobra.Command) {
	if cmd.Annotations[remoteAnnotation] != "" && cmd.ValidArgsFunction == nil {
		if takesName(cmd) {
			cmd.ValidArgsFunction = p.completePointer
		} else {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
	for flag, choices := range map[string][]string{
		"output": {"table", "json"}, "scope": {"read", "publish", "admin"}, "s3-driver": {"aws", "minio"}, "log-level": {"debug", "info", "warn", "error"},
	} {
		if cmd.Flags().Lookup(flag) != nil || cmd.PersistentFlags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that is not there
		}
	}
	for _, sub := range cmd.Commands() {
		p.complete(sub)
	}
}
