package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// page is what the manual says of a command beyond what the command says itself.
type page struct {
	long     string // where the command has no text of its own
	examples string // one a line; lines that begin with # explain the next
	exits    []int  // the exit codes that tell something apart, besides 0, 1 and 2
}

// remoteExits are those of every command that asks a service.
var remoteExits = []int{exitNotAllowed, exitUnavailable}

// manual has a page for every command that does something, by its path below the program.
var manual = map[string]page{
	"dev":   {examples: "artifactd dev\nartifactd dev --data /var/tmp/artifacts --listen 127.0.0.1:0", exits: []int{exitUnavailable}},
	"serve": {examples: "artifactd serve --database-url postgres://artifactd@db/artifactd --s3-bucket artifacts --listen :8080", exits: []int{exitUnavailable}},
	"migrate": {
		examples: "artifactd migrate --database-url postgres://owner@db/artifactd", exits: []int{exitUnavailable},
	},
	"token": {long: `Work on access tokens in the database itself, as its owner or as the service's role: so the first
administrator needs no password that somebody has chosen, and whoever cannot reach the database makes none.`},
	"pointer": {long: `A pointer is a name that readers resolve, such as acme.reports.daily; the dots are its hierarchy, which
access tokens are given out by. It has one current version at most, and a history.`},
	"lease": {long: `A lease is the right to publish the next version of a pointer, for as long as it is renewed. Whoever lost it
publishes nothing, however late that arrives.`},
	"gc": {long: `What no reader can reach any more and no worker can publish is collected: by the service from time to time,
or now. "gc plan" says what would go before it does.`},
	"token create": {exits: []int{exitUnavailable}},
	"token ls": {
		long:     "List access tokens: whose they are, what they may do, when they were last used. Secrets are kept nowhere.",
		examples: "artifactd token ls\nartifactd token ls -o json | jq -r '.items[].id'", exits: []int{exitUnavailable},
	},
	"token revoke": {
		long:     "End an access token. Every replica refuses it within seconds.",
		examples: "artifactd token revoke 018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f", exits: []int{exitNotFound, exitUnavailable},
	},
	"pointer create": {examples: "artifactd pointer create acme.reports.daily --keep-versions 10\nartifactd pointer create acme.site --public"},
	"pointer ls": {
		long:     "List the pointers that the access token may read: what they show, and who holds their lease.",
		examples: "artifactd pointer ls\nartifactd pointer ls acme. -o json",
	},
	"pointer show": {
		long:     "Show a pointer's settings, the version that readers resolve, and who holds the lease.",
		examples: "artifactd pointer show acme.reports.daily", exits: []int{exitNotFound},
	},
	"pointer retire": {examples: "artifactd pointer retire acme.reports.daily", exits: []int{exitNotFound, exitLeaseLost}},
	"publish":        {exits: []int{exitNotFound, exitLeaseHeld, exitLeaseLost, exitMismatch, exitUnknown}},
	"run":            {exits: []int{exitNotFound, exitLeaseHeld, exitLeaseLost, exitMismatch, exitUnknown}},
	"get":            {exits: []int{exitNotFound, exitMismatch}},
	"watch":          {exits: []int{exitNotFound}},
	"resolve": {
		long: `Show the version that readers get at this moment, with its files. It is asked of the database's primary:
a publish that was acknowledged before is never missed.`,
		examples: "artifactd resolve acme.reports.daily\nartifactd resolve acme.reports.daily -o json | jq -r .version", exits: []int{exitNotFound},
	},
	"history": {
		long: `Show every generation of a pointer, newest first, and what became of it: published, or released, expired,
broken or superseded before it could publish. A version that was brought back after the database lost it
names the version that it was then.`,
		examples: "artifactd history acme.reports.daily\nartifactd history acme.reports.daily --limit 0 -o json", exits: []int{exitNotFound},
	},
	"rollback": {
		long: `Publish an old version's files again, as a new version: no byte moves, and readers see it at once. It is
refused while a lease is live, and when something else was published meanwhile.`,
		examples: "artifactd rollback acme.site 1.41\nartifactd rollback acme.site 1.41 --current 1.42",
		exits:    []int{exitNotFound, exitLeaseHeld, exitLeaseLost, exitUnknown},
	},
	"lease show": {
		long:     "Show who holds a pointer's lease and for how long, unless it is renewed.",
		examples: "artifactd lease show acme.reports.daily", exits: []int{exitNotFound},
	},
	"lease break": {examples: "artifactd lease break acme.reports.daily\nartifactd lease break acme.reports.daily 1.43", exits: []int{exitNotFound, exitLeaseLost}},
	"gc run":      {examples: "artifactd gc run\nartifactd gc run -o json", exits: []int{exitPartial}},
	"gc runs":     {long: "Show the last collections and what each deleted, or one of them as far as it has come.", examples: "artifactd gc runs", exits: []int{exitNotFound}},
	"gc plan":     {examples: "artifactd gc plan\nartifactd gc plan acme.reports.daily"},
	"gc explain": {
		long:     "Say of one object in the bucket whose it is, and what keeps it or when it goes.",
		examples: "artifactd gc explain artifacts/9f86d081…/018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f",
	},
	"gc reconcile": {examples: "artifactd gc reconcile", exits: []int{exitPartial, exitUnavailable}},
	"verify":       {examples: "artifactd verify\nartifactd verify --deep", exits: []int{exitPartial, exitUnavailable}},
	"recover":      {examples: "artifactd recover\nartifactd recover --yes --resume-collection", exits: []int{exitUnavailable}},
	"health": {
		long:     "Ask the service whether it can do its work. It needs no access token.",
		examples: "artifactd health --url https://artifacts.example.com", exits: []int{exitUnavailable},
	},
	"doctor":  {examples: "artifactd doctor\nartifactd doctor --s3-endpoint https://s3.example.com --s3-bucket artifacts", exits: []int{exitUnavailable}},
	"man":     {examples: "artifactd man --dir /usr/local/share/man/man1"},
	"version": {examples: "artifactd version", long: "Print the version of this program, and nothing else."},
}

// exitMeanings say what the exit codes mean, to whoever writes a script.
var exitMeanings = []struct {
	code       int
	name, text string
}{
	{exitDone, "done", "Everything that was asked for happened."},
	{exitFailed, "failed", "Something else went wrong; the error says what. So does an interrupt."},
	{exitUsage, "usage", "The command line is not right, and nothing was tried."},
	{exitNotAllowed, "not allowed", "The access token is missing, not good, or does not cover this."},
	{exitNotFound, "not found", "There is no such pointer, version, file or id, or nothing is published."},
	{exitLeaseHeld, "lease held", "Somebody else is at work, for as long as --wait lasted. Try again later."},
	{exitLeaseLost, "lease lost or publish refused", "Nothing was published, for good: something newer came first, or the lease ended."},
	{exitMismatch, "digest mismatch", "Bytes are not the ones that were declared or published. Nothing was put in place."},
	{exitUnavailable, "backend unavailable", "The service, the database or the store could not be reached, or cannot now. Try again."},
	{exitPartial, "partial", "A collection or verification was done in part, or found something wrong."},
	{exitUnknown, "outcome unknown", "Whether the publish happened is not known. Repeat it with the same --operation-id: it is told, or done, once."},
}

func exitName(code int) string {
	for _, e := range exitMeanings {
		if e.code == code {
			return e.name
		}
	}
	return ""
}

// exitsOf are the codes that a command's manual names.
func exitsOf(cmd *cobra.Command) []int {
	exits := manual[commandName(cmd)].exits
	if cmd.Annotations[remoteAnnotation] == "" {
		return exits
	}
	all := slices.Concat(remoteExits, exits)
	slices.Sort(all)
	return slices.Compact(all)
}

// commandName is a command's path below the program: "pointer create".
func commandName(cmd *cobra.Command) string {
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return name
}

// document gives the commands their pages.
func document(cmd *cobra.Command) {
	p := manual[commandName(cmd)]
	if cmd.Long == "" {
		cmd.Long = p.long
	}
	if cmd.Example == "" && p.examples != "" {
		cmd.Example = "  " + strings.ReplaceAll(p.examples, "\n", "\n  ")
	}
	for _, sub := range cmd.Commands() {
		document(sub)
	}
}

// topics are what `artifactd help` explains besides commands.
func topics() []*cobra.Command {
	var exits strings.Builder
	exits.WriteString("What the exit codes mean. They never change.\n\n")
	for _, e := range exitMeanings {
		fmt.Fprintf(&exits, "  %2d  %s: %s\n", e.code, e.name, e.text)
	}
	exits.WriteString("\n`artifactd run` passes on the exit code of a command that fails: 128 and the signal's number if one ended it.")
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: exits.String()},
		{Use: "environment", Short: "The variables that the commands read and set", Long: `Every flag can be set by environment: --s3-bucket is ARTIFACTD_S3_BUCKET. What is on the command line wins.

  ARTIFACTD_URL           the service, for example https://artifacts.example.com
  ARTIFACTD_TOKEN         access token; in a file it is safer still: ARTIFACTD_TOKEN_FILE. Empty means none,
                          also where client.env has one
  ARTIFACTD_DATABASE_URL  the database, for the commands that work on it directly
  ARTIFACTD_S3_…          the bucket and how it is reached; see ` + "`artifactd serve --help`" + `
  ARTIFACTD_DATA          folder of ` + "`artifactd dev`" + ` (.artifactd), whose client.env is read last of all, if it
                          is yours and nobody else can read it

` + "`artifactd run`" + ` sets these for its command:

  ARTIFACTD_POINTER        the pointer's name
  ARTIFACTD_FENCING_TOKEN  token of the lease, for example 3.42; whatever the command changes elsewhere can be
                           fenced with it
  ARTIFACTD_LEASE_ID       the lease's id
  ARTIFACTD_LEASE_FILE     a file, readable by its owner alone, with the lease as JSON`},
	}
}
