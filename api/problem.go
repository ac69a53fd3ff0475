package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

const problemMediaType = "application/problem+json"

// Problems that arise in the HTTP layer itself.
var (
	errInvalid           = errors.New("the request is not valid")
	errForbidden         = errors.New("the access token does not cover this")
	errNotFound          = errors.New("there is no such resource")
	errMethodNotAllowed  = errors.New("this resource does not take that method; Allow lists those it takes")
	errLengthRequired    = errors.New("send Content-Length: the number of bytes must be known before the first one is taken")
	errTooLarge          = errors.New("the body is too large")
	errUnsupportedMedia  = errors.New("the body must be JSON: send Content-Type: application/json")
	errRangeNotSatisfied = errors.New("the range lies outside the file")
	errTooManyRequests   = errors.New("too many requests; try again later: Retry-After says when")
	errNotUploaded       = errors.New("the store has no object for this artifact; send the bytes to its upload URL first")
	errDigestMismatch    = artifacts.ErrDigestMismatch
	errSizeMismatch      = artifacts.ErrSizeMismatch
	errDraining          = errors.New("the service is shutting down; ask another replica, or this one again in a moment")
	errInternal          = errors.New("internal error")
	errLostBytes         = errors.New("bytes of a published file are lost")
)

// problemKind is one line of the problem table.
type problemKind struct {
	code   string
	status int
	title  string
}

// The kinds of errors that carry facts of their own.
var (
	kindLeaseHeld      = problemKind{"lease-held", http.StatusLocked, "The lease is held"}
	kindLeaseLost      = problemKind{"lease-lost", http.StatusConflict, "The lease is lost"}
	kindPublishRefused = problemKind{"publish-refused", http.StatusConflict, "The publish was refused"}
	kindOutcomeUnknown = problemKind{"outcome-unknown", http.StatusGatewayTimeout, "The outcome is not known yet"}
	kindInvalid        = problemKind{"invalid-request", http.StatusBadRequest, "The request is not valid"}
	kindTooLarge       = problemKind{"too-large", http.StatusRequestEntityTooLarge, "The body is too large"}
	kindUnavailable    = problemKind{"unavailable", http.StatusServiceUnavailable, "Temporarily unavailable"}
	kindHistoryChanged = problemKind{"history-changed", http.StatusServiceUnavailable, "The database's history changed"}
	kindInternal       = problemKind{"internal", http.StatusInternalServerError, "Internal error"}
)

// atFault names the member or parameter that an error is about, where the error is about one by its
// nature and the handler has not named another.
var atFault = map[error]string{
	pointer.ErrPointerNotFound:   "name",
	pointer.ErrLeaseNotFound:     "lease_id",
	pointer.ErrArtifactNotFound:  "artifact_id",
	pointer.ErrFileNotFound:      "path",
	pointer.ErrOperationNotFound: "operation_id",
	pointer.ErrOperationMismatch: "operation_id",
	ErrPlanNotFound:              "plan_id",
	ErrPlanExpired:               "plan_id",
	ErrRunNotFound:               "run_id",
	ErrForeignKey:                "key",
	errDigestMismatch:            "digest",
	errSizeMismatch:              "size",
	errTooLarge:                  "body",
	errUnsupportedMedia:          echo.HeaderContentType,
	errRangeNotSatisfied:         "Range",
}

// problemTable maps every other error to its code and status. The first match wins.
var problemTable = []struct {
	err error
	problemKind
}{
	{errInvalid, kindInvalid},
	{pointer.ErrUnauthenticated, problemKind{"unauthenticated", http.StatusUnauthorized, "Not authenticated"}},
	{pointer.ErrUnreadable, problemKind{"forbidden", http.StatusForbidden, "Not allowed"}},
	{errForbidden, problemKind{"forbidden", http.StatusForbidden, "Not allowed"}},
	{errNotFound, problemKind{"not-found", http.StatusNotFound, "Not found"}},
	{pointer.ErrPointerNotFound, problemKind{"pointer-not-found", http.StatusNotFound, "No such pointer"}},
	{pointer.ErrNothingPublished, problemKind{"nothing-published", http.StatusNotFound, "Nothing is published"}},
	{pointer.ErrPointerRetired, problemKind{"pointer-retired", http.StatusGone, "The pointer is retired"}},
	{pointer.ErrLeaseNotFound, problemKind{"lease-not-found", http.StatusNotFound, "No such lease"}},
	{pointer.ErrArtifactNotFound, problemKind{"artifact-not-found", http.StatusNotFound, "No such artifact"}},
	{pointer.ErrVersionNotFound, problemKind{"version-not-found", http.StatusNotFound, "No such version"}},
	{pointer.ErrFileNotFound, problemKind{"file-not-found", http.StatusNotFound, "No such file"}},
	{pointer.ErrOperationNotFound, problemKind{"operation-not-found", http.StatusNotFound, "No such operation"}},
	{pointer.ErrOperationMismatch, problemKind{"operation-mismatch", http.StatusUnprocessableEntity, "The operation id belongs to another request"}},
	{ErrRunNotFound, problemKind{"run-not-found", http.StatusNotFound, "No such collection"}},
	{ErrPlanNotFound, problemKind{"plan-not-found", http.StatusNotFound, "No such plan"}},
	{ErrPlanExpired, problemKind{"plan-expired", http.StatusGone, "The plan has expired"}},
	{ErrForeignKey, kindInvalid},
	{errMethodNotAllowed, problemKind{"method-not-allowed", http.StatusMethodNotAllowed, "Method not allowed"}},
	{errNotUploaded, problemKind{"not-uploaded", http.StatusConflict, "Not uploaded"}},
	{errLengthRequired, problemKind{"length-required", http.StatusLengthRequired, "Content-Length is required"}},
	{errTooLarge, kindTooLarge},
	{errUnsupportedMedia, problemKind{"unsupported-media-type", http.StatusUnsupportedMediaType, "Unsupported media type"}},
	{errRangeNotSatisfied, problemKind{"range-not-satisfiable", http.StatusRequestedRangeNotSatisfiable, "Range not satisfiable"}},
	{errDigestMismatch, problemKind{"digest-mismatch", http.StatusUnprocessableEntity, "The bytes do not match the digest"}},
	{errSizeMismatch, problemKind{"size-mismatch", http.StatusUnprocessableEntity, "The bytes do not match the size"}},
	{errTooManyRequests, problemKind{"too-many-requests", http.StatusTooManyRequests, "Too many requests"}},
	{errDraining, kindUnavailable},
	{pointer.ErrUnconfirmed, kindUnavailable},
	{pointer.ErrStandby, kindUnavailable},
	{pointer.ErrUnavailable, kindUnavailable},
	{artifacts.ErrStoreUnavailable, kindUnavailable},
	{artifacts.ErrStoreFull, kindUnavailable},
	{artifacts.ErrStoreDenied, kindUnavailable},
	{context.DeadlineExceeded, kindUnavailable},
	{context.Canceled, kindUnavailable},
}

// lacking says what the service lacks when it cannot do its work, and what to look at. The errors
// themselves may name hosts and addresses, which are not the caller's business.
var lacking = map[error]string{
	pointer.ErrUnavailable:        "the database does not answer; try again, and look at Postgres if it stays so",
	pointer.ErrStandby:            "the database is a standby in recovery: promote it, or connect the service to the primary",
	pointer.ErrUnconfirmed:        "the object store has not confirmed the epoch lately, and nothing is written without that; try again, and look at the store if it stays so (reads go on)",
	artifacts.ErrStoreUnavailable: "the object store does not answer; try again, and look at the store if it stays so",
	context.DeadlineExceeded:      "it took too long, because the database or the object store is slow or does not answer; try again",
	context.Canceled:              "it was cut off; try again",
}

// fault is an error of the HTTP layer with the member at fault and a text for people. Unwrap
// leads to the line of the problem table.
type fault struct {
	kind   error
	field  string
	detail string
}

func (f *fault) Error() string { return f.detail }
func (f *fault) Unwrap() error { return f.kind }

// invalid is a 400 that names what is at fault.
func invalid(field, format string, args ...any) error {
	return &fault{kind: errInvalid, field: field, detail: fmt.Sprintf(format, args...)}
}

// newProblem starts a document of one kind.
func newProblem(k problemKind, detail string) types.Problem {
	return types.Problem{Type: "/problems/" + k.code, Title: k.title, Status: k.status, Code: k.code, Detail: detail}
}

// storeRetryAfter is how long to wait when the store itself needs an operator.
const storeRetryAfter = 30 * time.Second

// problemOf turns an error into the document that tells it. unexpected is true for the errors that
// nobody planned for: their text stays out of the answer and belongs into the log.
func problemOf(err error) (p types.Problem, retryAfter time.Duration, unexpected bool) {
	if p, retryAfter, ok := factualProblem(err); ok {
		return p, retryAfter, false
	}
	if p, ok := requestProblem(err); ok {
		return p, 0, false
	}
	for _, line := range problemTable {
		if !errors.Is(err, line.err) {
			continue
		}
		p := newProblem(line.problemKind, line.err.Error())
		if told, ok := lacking[line.err]; ok {
			p.Detail = told
		}
		p.Field = optional(atFault[line.err])
		if f := (*fault)(nil); errors.As(err, &f) {
			p.Detail = f.detail
			if f.field != "" {
				p.Field = &f.field
			}
		}
		if line.err == artifacts.ErrStoreFull || line.err == artifacts.ErrStoreDenied {
			return p, storeRetryAfter, false // what it says helps whoever has to ask an operator
		}
		if line.status == http.StatusServiceUnavailable {
			return p, time.Second, false
		}
		if l := (*limitError)(nil); errors.As(err, &l) {
			p.Detail = l.detail
			return p, l.after, false
		}
		return p, 0, false
	}
	if errors.Is(err, errLostBytes) {
		return newProblem(kindInternal, "The store has lost the bytes of this file, or has others under its key. Publish the file again for a whole version; "+
			"an operator sees with `artifactd verify` what else is missing. The error id names the line in the service's log."), 0, true
	}
	return newProblem(kindInternal, "The service failed in a way it did not expect. Report the error id."), 0, true
}

// factualProblem handles the errors of package pointer that carry facts for the caller.
func factualProblem(err error) (types.Problem, time.Duration, bool) {
	var (
		bad     *pointer.InvalidError
		held    *pointer.LeaseHeldError
		lost    *pointer.LeaseLostError
		refused *pointer.RefusedError
		unknown *pointer.OutcomeUnknownError
		changed *pointer.HistoryChangedError
	)
	switch {
	case errors.As(err, &bad):
		p := newProblem(kindInvalid, bad.Detail)
		p.Field = optional(bad.Field)
		return p, 0, true
	case errors.As(err, &held):
		p := newProblem(kindLeaseHeld, fmt.Sprintf("%s holds the lease for another %.1f s unless it renews; try again then.", strconv.Quote(held.Holder), held.ExpiresIn.Seconds()))
		p.Holder = &held.Holder
		p.CurrentToken = optionalToken(held.CurrentToken)
		p.ExpiresInSeconds = new(held.ExpiresIn.Seconds())
		return p, max(held.ExpiresIn, time.Second), true
	case errors.As(err, &lost):
		p := newProblem(kindLeaseLost, lostDetail(lost.Reason))
		p.Reason = new(string(lost.Reason))
		return p, 0, true
	case errors.As(err, &refused):
		return refusedProblem(refused), 0, true
	case errors.As(err, &unknown):
		p := newProblem(kindOutcomeUnknown, "The database did not say whether this happened. Repeat the call with the same operation id, or settle it.")
		if unknown.OperationID != uuid.Nil {
			p.OperationId = new(unknown.OperationID.String())
		} else {
			p.Detail = "The database did not say whether this happened. Read the state back before trying again."
		}
		return p, 0, true
	case errors.As(err, &changed):
		p, retryAfter := historyProblem(changed)
		return p, retryAfter, true
	}
	return types.Problem{}, 0, false
}

// historyProblem tells what settles itself from what waits for a person, which nobody should wait for.
func historyProblem(e *pointer.HistoryChangedError) (types.Problem, time.Duration) {
	if e.Operator {
		p := newProblem(kindHistoryChanged, "This waits for an operator (`artifactd recover`), and trying again does not help before that: "+
			e.Seen+". Reads go on.")
		p.OperatorRequired = new(true)
		return p, 0
	}
	return newProblem(kindHistoryChanged, "Nothing is written until it is settled which history the database is in: "+e.Seen+
		". A clean failover settles itself within seconds; anything else waits for an operator (`artifactd recover`). Reads go on."), historyRetry
}

// historyRetry is when to ask again after a change of the history: one that settles itself takes
// seconds.
const historyRetry = 5 * time.Second

// refusedProblem tells a recorded refusal.
func refusedProblem(e *pointer.RefusedError) types.Problem {
	p := newProblem(kindPublishRefused, refusedDetail(e.Reason()))
	p.Reason = new(string(e.Reason()))
	if e.OperationID != uuid.Nil {
		p.OperationId = new(e.OperationID.String())
	}
	if len(e.Refusals) == 1 {
		p.Token = optionalToken(e.Refusals[0].Token)
		p.CurrentToken = optionalToken(e.Refusals[0].CurrentToken)
	}
	p.Refusals = refusals(e.Refusals)
	return p
}

// refusedDetail says what a publisher can do about a refusal.
func refusedDetail(r pointer.Reason) string {
	switch r {
	case pointer.ReasonIncomplete:
		return "Not every file of the manifest is stored, or there are not as many as file_count says. Complete them and publish with a new operation id; the lease is alive."
	case pointer.ReasonSourceStale:
		return "A newer source revision is published already. The lease is alive; publish from a newer source with a new operation id."
	case pointer.ReasonAborted:
		return "This operation was settled as aborted before it happened. Use a new operation id."
	case pointer.ReasonAlreadyPublished:
		return "This generation has published already. Acquire the next one."
	}
	return "Nothing was published: " + lostDetail(r)
}

// lostDetail says why a lease cannot act any more.
func lostDetail(r pointer.Reason) string {
	switch r {
	case pointer.ReasonTokenMismatch:
		return "the token is not this lease's."
	case pointer.ReasonEpochSuperseded:
		return "the database was restored or failed over since; leases from before it are void. Acquire again."
	case pointer.ReasonSuperseded:
		return "somebody else has acquired or published since. Resolve the pointer to see what is current; to publish, acquire again."
	case pointer.ReasonExpired:
		return "the lease expired before this arrived. Acquire again, and renew at a third of the ttl."
	case pointer.ReasonBroken:
		return "an administrator ended the lease. Acquire again."
	case pointer.ReasonReleased:
		return "the lease was released. Acquire again."
	case pointer.ReasonPointerRetired:
		return "the pointer is retired. Create it again to go on."
	case pointer.ReasonAlreadyPublished:
		return "the generation has published already. Acquire the next one."
	case pointer.ReasonAborted:
		return "this operation was settled as aborted before it happened. Use a new operation id."
	}
	return "the reason is " + string(r) + "."
}

// requestProblem handles what net/http, echo and the document's checks say of a request.
func requestProblem(err error) (types.Problem, bool) {
	var (
		large  *http.MaxBytesError
		check  *openapi3filter.RequestError
		router *echo.HTTPError
	)
	switch {
	case errors.As(err, &large):
		p := newProblem(kindTooLarge, fmt.Sprintf("The body is larger than %d bytes, the limit of this call.", large.Limit))
		p.Field = new("body")
		return p, true
	case errors.As(err, &check):
		return checkProblem(check), true
	case errors.As(err, &router):
		return echoProblem(router), true
	}
	return types.Problem{}, false
}

// checkProblem names the parameter or the member that the document does not allow.
func checkProblem(e *openapi3filter.RequestError) types.Problem {
	p := newProblem(kindInvalid, "")
	var field string
	if e.Parameter != nil {
		field = e.Parameter.Name
	}
	var schema *openapi3.SchemaError
	if errors.As(e.Err, &schema) {
		if e.Parameter == nil {
			field = memberPath(append(schema.JSONPointer(), unknownMember(schema)...))
		}
		p.Detail = schema.Reason
		switch limit := schema.Schema; {
		case limit == nil:
		case schema.SchemaField == "pattern" && limit.Pattern != "":
			p.Detail = "must match " + limit.Pattern
		case schema.SchemaField == "maximum" && limit.Max != nil:
			// The library's own text has an exponent in it.
			p.Detail = "number must be at most " + strconv.FormatFloat(*limit.Max, 'f', -1, 64)
		}
	} else if errors.Is(e.Err, openapi3filter.ErrInvalidRequired) && e.RequestBody != nil {
		field, p.Detail = "body", "this call needs a JSON body"
	} else {
		p.Detail = e.Error() // never of a schema's error: it spells the whole value
	}
	if field == "" {
		field = "body"
	}
	p.Field, p.Detail = &field, field+": "+p.Detail
	return p
}

// unknownMember is the first member of an object that its schema does not have. The library's error
// stands at the object and names it in its text alone.
func unknownMember(e *openapi3.SchemaError) []string {
	object, ok := e.Value.(map[string]any)
	if !ok || e.SchemaField != "properties" || e.Schema == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if e.Schema.Properties[name] == nil {
			return []string{name}
		}
	}
	return nil
}

// memberPath spells a JSON pointer like files[3].digest.
func memberPath(pointer []string) string {
	var b []byte
	for _, step := range pointer {
		if _, err := strconv.ParseUint(step, 10, 32); err == nil {
			b = append(append(append(b, '['), step...), ']')
			continue
		}
		if len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, step...)
	}
	return string(b)
}

// echoProblem handles what the router and the generated wrapper refuse.
func echoProblem(e *echo.HTTPError) types.Problem {
	var kind error
	switch e.Code {
	case http.StatusNotFound:
		kind = errNotFound
	case http.StatusMethodNotAllowed:
		kind = errMethodNotAllowed
	case http.StatusBadRequest:
		kind = &fault{kind: errInvalid, detail: fmt.Sprint(e.Message)}
	default:
		kind = errInternal
	}
	p, _, _ := problemOf(kind)
	return p
}

// retryAfterSeconds is a duration as the Retry-After header takes it: whole seconds, rounded up.
func retryAfterSeconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}

// optional is nil for the empty text, so that the member is left out.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// optionalToken is nil for no token.
func optionalToken(t pointer.Token) *string {
	if t.IsZero() {
		return nil
	}
	return new(t.String())
}

// refusals spells the shares of a refused publish.
func refusals(in []pointer.Refusal) []types.Refusal {
	var out []types.Refusal
	for _, r := range in {
		if r.Pointer != "" { // of a lease that is not known any more
			out = append(out, types.Refusal{Pointer: r.Pointer, Reason: string(r.Reason)})
		}
	}
	return out
}
