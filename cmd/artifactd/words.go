package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/pointer"
)

// takesName reports whether a command's first argument is a pointer's name.
func takesName(cmd *cobra.Command) bool {
	words := strings.Fields(cmd.Use)
	return cmd.Annotations[remoteAnnotation] != "" && len(words) > 1 && strings.Trim(words[1], "[]") == "NAME"
}

// nameOf is the name that a command was given, if it takes one.
func nameOf(cmd *cobra.Command) (string, bool) {
	args := cmd.Flags().Args()
	if !takesName(cmd) || len(args) == 0 || cmd.Name() == "run" && cmd.ArgsLenAtDash() == 0 {
		return "", false
	}
	return args[0], true
}

// checkName refuses what the service would not take for a name, before anything is sent: in a URL ".."
// is no name at all, and the answer would be about something else.
func checkName(cmd *cobra.Command) error {
	name, ok := nameOf(cmd)
	if !ok {
		return nil
	}
	var invalid *pointer.InvalidError
	if errors.As(pointer.CheckName(name), &invalid) {
		return fmt.Errorf("%w: %q cannot be a NAME: %s", errUsage, name, invalid.Detail)
	}
	return nil
}

// wordedError says an error of the API in the words of the command line.
type wordedError struct {
	text string
	err  error
	// whole: the text says what to do next, too.
	whole bool
}

func (e *wordedError) Error() string { return e.text }
func (e *wordedError) Unwrap() error { return e.err }

// worded puts what the service said of a request into the words of the command that made it. Other
// errors stay as they are.
func worded(cmd *cobra.Command, err error) error {
	var problem *client.Problem
	said := ""
	var code client.Code
	switch {
	case errors.As(err, &problem):
		code, said = problem.Code, problem.Error()
	case errors.As(err, &code):
		said, problem = code.Error(), &client.Problem{Code: code}
	default:
		return err
	}
	text, whole := "", false
	name, named := nameOf(cmd)
	switch {
	case named && code == client.ErrPointerNotFound:
		text = fmt.Sprintf("there is no pointer %q", name)
	case named && code == client.ErrPointerRetired:
		text = fmt.Sprintf("pointer %q is retired", name)
	case named && code == client.ErrNothingPublished:
		text = fmt.Sprintf("nothing is published under %q", name)
	case code == client.ErrPublishRefused && problem.Reason == string(pointer.ReasonSourceStale):
		text = "nothing was published (" + problem.Reason + "): a newer source revision is published already; publish from a newer source"
		if id := cmd.Flags().Lookup("operation-id"); id != nil && id.Changed {
			text += " with a new --operation-id"
		}
	case code == client.ErrLeaseHeld && waited(cmd) != "":
		whole, text = true, fmt.Sprintf("%s still holds the lease after %s, for another %s unless it renews it; wait longer, or end it with `artifactd lease break`",
			legible(problem.Holder), waited(cmd), period(time.Duration(problem.ExpiresInSeconds*float64(time.Second))))
	case code == client.ErrInvalidRequest:
		fault, ok := strings.CutPrefix(problem.Detail, problem.Field+": ")
		if word := wordFor(cmd, problem.Field); ok && word != "" {
			text = word + ": " + fault
		}
	}
	if text == "" {
		return err
	}
	return &wordedError{strings.Replace(err.Error(), said, text, 1), err, whole}
}

// waited is how long a command has waited for somebody else's lease, "" when it has not.
func waited(cmd *cobra.Command) string {
	wait, err := cmd.Flags().GetDuration("wait")
	if err != nil || wait == 0 {
		return ""
	}
	return period(wait)
}

// words are what members of requests are called here, where that is not the name of a flag.
var words = map[string]string{
	"name": "NAME", "pointer": "NAME", "prefix": "PREFIX", "to": "VERSION", "token": "TOKEN", "key": "KEY",
	"ttl_seconds": "--ttl", "wait_seconds": "--wait", "labels": "--label", "current_token": "--current",
}

// wordFor is the flag or argument that a member of a request came from, "" when it is not known.
func wordFor(cmd *cobra.Command, field string) string {
	if i := strings.IndexAny(field, ".["); i >= 0 {
		field = field[:i]
	}
	if word := words[field]; word != "" {
		return word
	}
	flag := strings.ReplaceAll(field, "_", "-")
	if flag == "" || cmd.Flags().Lookup(flag) == nil {
		return ""
	}
	return "--" + flag
}
