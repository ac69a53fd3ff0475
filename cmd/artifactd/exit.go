package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"unicode"

	"github.com/artifactd/artifactd/client"
)

// Exit codes. Scripts rely on them; they never change their meaning.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotAllowed  = 4
	exitNotFound    = 10
	exitLeaseHeld   = 11 // or the wait for it timed out
	exitLeaseLost   = 12 // or the publish was refused
	exitMismatch    = 13 // bytes that do not match their digest or size
	exitUnavailable = 14 // service, database or store
	exitPartial     = 15 // gc and verify: done in part
	exitUnknown     = 16 // the outcome of a publish is not known
)

// Errors of the command line itself.
var (
	errUsage       = errors.New("usage")
	errPartial     = errors.New("not everything could be done")
	errUnavailable = errors.New("backend unavailable")
	errNotFound    = errors.New("not found")
)

// outcome is what a kind of error means to whoever runs the program: an exit code, and what to do
// next where the error itself does not say it.
type outcome struct {
	target error
	code   int
	hint   string
}

// outcomes is searched from the top.
var outcomes = []outcome{
	{errUsage, exitUsage, ""},
	{errPartial, exitPartial, ""},
	{client.ErrOutcomeUnknown, exitUnknown, "run the same command again with --operation-id set to that id: it is told, or done, once"},
	{client.ErrUnauthenticated, exitNotAllowed, "give a valid access token with --token, ARTIFACTD_TOKEN or the client.env of `artifactd dev`"},
	{client.ErrForbidden, exitNotAllowed, "use an access token whose scope and names cover this"},
	{client.ErrLeaseHeld, exitLeaseHeld, "wait for it with --wait, or end it with `artifactd lease break`"},
	{client.ErrPublishRefused, exitLeaseLost, ""},
	{client.ErrOperationMismatch, exitLeaseLost, "nothing was changed; take a new --operation-id for a new request"},
	{client.ErrLeaseLost, exitLeaseLost, "run the same command again: it takes a new lease, and uploaded bytes are found again"},
	{client.ErrDigestMismatch, exitMismatch, ""},
	{client.ErrSizeMismatch, exitMismatch, ""},
	{client.ErrSourceChanged, exitMismatch, ""},
	{client.ErrPointerNotFound, exitNotFound, "see `artifactd pointer ls`; `artifactd pointer create` makes one"},
	{client.ErrNothingPublished, exitNotFound, "publish something under this name first"},
	{client.ErrPointerRetired, exitNotFound, "`artifactd pointer create` with the same name goes on with it"},
	{client.ErrLeaseNotFound, exitNotFound, ""},
	{client.ErrArtifactNotFound, exitNotFound, ""},
	{client.ErrVersionNotFound, exitNotFound, "see `artifactd history`"},
	{client.ErrFileNotFound, exitNotFound, "see `artifactd resolve`"},
	{client.ErrOperationNotFound, exitNotFound, ""},
	{client.ErrRunNotFound, exitNotFound, "see `artifactd gc runs`"},
	{client.ErrPlanNotFound, exitNotFound, "`artifactd gc plan` makes one"},
	{client.ErrPlanExpired, exitNotFound, "`artifactd gc plan` makes one"},
	{client.ErrNotFound, exitNotFound, ""},
	{errNotFound, exitNotFound, ""},
	{client.ErrInvalidRequest, exitUsage, ""},
	{client.ErrHistoryChanged, exitUnavailable, ""},
	{client.ErrUnavailable, exitUnavailable, "the log of the service says more"},
	{errUnavailable, exitUnavailable, ""},
	{fs.ErrPermission, exitFailed, ""},
	{context.Canceled, exitFailed, ""},
}

// outcomeOf finds what an error means.
func outcomeOf(err error) outcome {
	if ended, ok := asEnded(err); ok {
		return outcome{code: ended.code}
	}
	for _, o := range outcomes {
		if errors.Is(err, o.target) {
			return o
		}
	}
	var transport *client.TransportError
	if errors.As(err, &transport) && transport.Store {
		return outcome{code: exitUnavailable, hint: "is the store running, and can it be reached from here? try again"}
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return outcome{code: exitUnavailable, hint: "is this the service? if its certificate is of an authority of your own, name that with --ca-file"}
	}
	if errors.As(err, &transport) {
		return outcome{code: exitUnavailable, hint: "is the service running there? see --url, or start one with `artifactd dev`"}
	}
	var store *client.StoreError
	errors.As(err, &store)
	switch {
	case store == nil:
		return outcome{code: exitFailed}
	case store.Status == http.StatusInsufficientStorage:
		return outcome{code: exitUnavailable, hint: "it has no space left: free some, or raise its quota, and run this again"}
	case store.Status == http.StatusRequestedRangeNotSatisfiable:
		return outcome{code: exitUnavailable, hint: "the object is shorter than what was published: see `artifactd verify`"}
	case store.Status == http.StatusNotFound:
		return outcome{code: exitUnavailable, hint: "its version was collected meanwhile, or the store has lost the object: see `artifactd history` and `artifactd verify`"}
	}
	return outcome{code: exitUnavailable, hint: "try again; the object store refused or could not answer"}
}

// oneLine joins the lines of a text, and spells what would steer the terminal.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	var b strings.Builder
	for _, r := range strings.Join(lines, "; ") {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// quotedPaths quotes the name of a file that an error of the system is about, where it has to be.
func quotedPaths(err error) string {
	text := err.Error()
	var path *fs.PathError
	if errors.As(err, &path) {
		text = strings.ReplaceAll(text, path.Path, legible(path.Path))
	}
	return text
}

// interruptedError is the end that Ctrl-C makes, with what became of the work.
type interruptedError struct{ text string }

func (e *interruptedError) Error() string { return "interrupted; " + e.text }
func (e *interruptedError) Unwrap() error { return context.Canceled }

// complaint is an error as one line that ends with what to do next.
func complaint(err error) string {
	text := oneLine(quotedPaths(err))
	text = strings.TrimPrefix(text, errUsage.Error()+": ")
	text = strings.ReplaceAll(text, ": "+errUsage.Error()+": ", ": ")
	if errors.Is(err, context.Canceled) && !strings.Contains(text, ";") {
		return "interrupted"
	}
	var said *wordedError
	if errors.As(err, &said) && said.whole {
		return text
	}
	if hint := outcomeOf(err).hint; hint != "" && !strings.Contains(text, hint) {
		text = strings.TrimSuffix(text, ".") + "; " + hint
	}
	return text
}
