package pointer

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Outcomes that carry no facts of their own. Each has one place in the API's problem table.
var (
	ErrPointerNotFound   = errors.New("there is no pointer of this name")
	ErrNothingPublished  = errors.New("nothing is published under this pointer")
	ErrPointerRetired    = errors.New("this pointer is retired; create it again to go on")
	ErrLeaseNotFound     = errors.New("there is no such lease")
	ErrArtifactNotFound  = errors.New("there is no such artifact")
	ErrVersionNotFound   = errors.New("there is no such readable version")
	ErrFileNotFound      = errors.New("this version has no such file")
	ErrOperationNotFound = errors.New("no outcome is recorded for this operation; settle it for a final answer")
	ErrOperationMismatch = errors.New("this operation id was used for another request; take a new one for a new request")
	ErrUnauthenticated   = errors.New("no valid access token")
	// ErrUnavailable wraps faults of the database or of the way to it. Nothing was decided, or,
	// for calls that only read, the answer is not known.
	ErrUnavailable = errors.New("database unavailable")
	// ErrStandby is a case of ErrUnavailable that does not pass by itself.
	ErrStandby = fmt.Errorf("%w: this server is a standby in recovery; only the primary may answer", ErrUnavailable)
	// ErrUnconfirmed says that the bucket has not confirmed the epoch lately: nothing is written, reads go
	// on. It is what Confirm of [Options] answers then.
	ErrUnconfirmed = errors.New("the epoch is not confirmed")
	// ErrHistoryChanged: see [HistoryChangedError].
	ErrHistoryChanged = errors.New("the database's history may have changed")
)

// Reason says why a lease cannot act or a publish was refused.
type Reason string

// Reasons in the order in which they are tested. Incomplete and SourceStale refuse one publish
// and leave the lease alive; the others before them are final for the lease.
const (
	ReasonTokenMismatch    Reason = "token-mismatch"
	ReasonEpochSuperseded  Reason = "epoch-superseded"
	ReasonAlreadyPublished Reason = "already-published"
	ReasonPointerRetired   Reason = "pointer-retired"
	ReasonSuperseded       Reason = "superseded"
	ReasonBroken           Reason = "broken"
	ReasonReleased         Reason = "released"
	ReasonExpired          Reason = "expired"
	ReasonIncomplete       Reason = "incomplete"
	ReasonSourceStale      Reason = "source-stale"
	ReasonAborted          Reason = "aborted"
)

// InvalidError is a request that could never succeed as it stands.
type InvalidError struct {
	Field  string // the member at fault, as the API names it, e.g. "files[3].path"
	Detail string // what is wrong and what would be right
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// LeaseHeldError refuses an acquisition or a rollback while somebody else's lease lives.
type LeaseHeldError struct {
	Holder       string
	CurrentToken Token         // token of the live lease
	ExpiresIn    time.Duration // by the database's clock when it answered
}

func (e *LeaseHeldError) Error() string {
	return fmt.Sprintf("lease %s is held by %q for another %s", e.CurrentToken, e.Holder, e.ExpiresIn.Round(time.Millisecond))
}

// LeaseLostError says that a lease can no longer act, and never will again.
type LeaseLostError struct{ Reason Reason }

func (e *LeaseLostError) Error() string { return "the lease is lost: " + string(e.Reason) }

// Refusal is one pointer's share of a refused publish.
type Refusal struct {
	Pointer      string
	Reason       Reason
	Token        Token // the token the request named
	CurrentToken Token // what the pointer shows; zero when it shows nothing
}

// RefusedError is a durable refusal: asked again with the same operation id, it is the answer.
type RefusedError struct {
	OperationID uuid.UUID // zero for a retirement, which carries none
	Refusals    []Refusal // at least one, except for an aborted operation
	Aborted     bool      // settled as aborted before it could happen
}

// Reason is the first refusal's reason.
func (e *RefusedError) Reason() Reason {
	if e.Aborted || len(e.Refusals) == 0 {
		return ReasonAborted
	}
	return e.Refusals[0].Reason
}

func (e *RefusedError) Error() string { return "publish refused: " + string(e.Reason()) }

// OutcomeUnknownError says that the database did not tell whether it committed. The outcome is
// recorded or it never happens: [Catalogue.Settle] says which.
type OutcomeUnknownError struct {
	OperationID uuid.UUID // zero when the call carried no operation id
	Cause       error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("the outcome of operation %s is not known yet; settle it: %v", e.OperationID, e.Cause)
}

func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }
