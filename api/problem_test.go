package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// Every outcome has one code and one status, however deep it is wrapped.
func TestProblemOfEveryError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err    error
		status int
		code   string
	}{
		{&pointer.InvalidError{Field: "f", Detail: "d"}, 400, "invalid-request"},
		{pointer.ErrUnauthenticated, 401, "unauthenticated"},
		{errForbidden, 403, "forbidden"},
		{echo.ErrNotFound, 404, "not-found"},
		{pointer.ErrPointerNotFound, 404, "pointer-not-found"},
		{pointer.ErrNothingPublished, 404, "nothing-published"},
		{pointer.ErrLeaseNotFound, 404, "lease-not-found"},
		{pointer.ErrArtifactNotFound, 404, "artifact-not-found"},
		{pointer.ErrVersionNotFound, 404, "version-not-found"},
		{pointer.ErrFileNotFound, 404, "file-not-found"},
		{pointer.ErrOperationNotFound, 404, "operation-not-found"},
		{ErrRunNotFound, 404, "run-not-found"},
		{ErrPlanNotFound, 404, "plan-not-found"},
		{ErrPlanExpired, 410, "plan-expired"},
		{ErrForeignKey, 400, "invalid-request"},
		{echo.ErrMethodNotAllowed, 405, "method-not-allowed"},
		{&pointer.LeaseLostError{Reason: pointer.ReasonExpired}, 409, "lease-lost"},
		{&pointer.RefusedError{Aborted: true}, 409, "publish-refused"},
		{errNotUploaded, 409, "not-uploaded"},
		{pointer.ErrPointerRetired, 410, "pointer-retired"},
		{errLengthRequired, 411, "length-required"},
		{&http.MaxBytesError{Limit: 5}, 413, "too-large"},
		{errTooLarge, 413, "too-large"},
		{errUnsupportedMedia, 415, "unsupported-media-type"},
		{errRangeNotSatisfied, 416, "range-not-satisfiable"},
		{artifacts.ErrDigestMismatch, 422, "digest-mismatch"},
		{artifacts.ErrSizeMismatch, 422, "size-mismatch"},
		{pointer.ErrOperationMismatch, 422, "operation-mismatch"},
		{&pointer.LeaseHeldError{Holder: "h", ExpiresIn: time.Second}, 423, "lease-held"},
		{errTooManyRequests, 429, "too-many-requests"},
		{errors.New("surprise"), 500, "internal"},
		{artifacts.ErrNotFound, 500, "internal"},
		{pointer.ErrUnavailable, 503, "unavailable"},
		{artifacts.ErrStoreUnavailable, 503, "unavailable"},
		{context.DeadlineExceeded, 503, "unavailable"},
		{context.Canceled, 503, "unavailable"},
		{&pointer.OutcomeUnknownError{OperationID: uuid.New(), Cause: errors.New("reset")}, 504, "outcome-unknown"},
		{&pointer.OutcomeUnknownError{Cause: pointer.ErrUnavailable}, 504, "outcome-unknown"},
	} {
		p, retry, unexpected := problemOf(fmt.Errorf("while doing: %w", tc.err))
		if p.Status != tc.status || p.Code != tc.code || p.Type != "/problems/"+tc.code || p.Title == "" || p.Detail == "" {
			t.Errorf("%v: %+v", tc.err, p)
		}
		if (tc.status == 503 || tc.status == 423) != (retry > 0) {
			t.Errorf("%v: retry after %s", tc.err, retry)
		}
		if unexpected != (tc.status == 500) {
			t.Errorf("%v: unexpected is %v", tc.err, unexpected)
		}
	}
}

func TestProblemMembers(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	p, _, _ := problemOf(&pointer.RefusedError{OperationID: id, Refusals: []pointer.Refusal{
		{Pointer: "a", Reason: pointer.ReasonExpired, Token: pointer.Token{Epoch: 1, Generation: 2}, CurrentToken: pointer.Token{Epoch: 1, Generation: 1}},
	}})
	if *p.Reason != "expired" || *p.OperationId != id.String() || *p.Token != "1.2" || *p.CurrentToken != "1.1" || len(p.Refusals) != 1 {
		t.Errorf("refused: %+v", p)
	}
	p, retry, _ := problemOf(&pointer.LeaseHeldError{Holder: "h", CurrentToken: pointer.Token{Epoch: 1, Generation: 2}, ExpiresIn: 1500 * time.Millisecond})
	if *p.Holder != "h" || *p.CurrentToken != "1.2" || *p.ExpiresInSeconds != 1.5 || retryAfterSeconds(retry) != "2" {
		t.Errorf("held: %+v, %s", p, retry)
	}
	p, _, _ = problemOf(&pointer.OutcomeUnknownError{OperationID: id, Cause: errors.New("dial tcp 10.0.0.1")})
	if *p.OperationId != id.String() || p.ErrorId != nil {
		t.Errorf("unknown: %+v", p)
	}
	for _, r := range []pointer.Reason{
		pointer.ReasonTokenMismatch, pointer.ReasonEpochSuperseded, pointer.ReasonAlreadyPublished, pointer.ReasonPointerRetired,
		pointer.ReasonSuperseded, pointer.ReasonBroken, pointer.ReasonReleased, pointer.ReasonExpired, pointer.ReasonAborted,
	} {
		if p, _, _ := problemOf(&pointer.LeaseLostError{Reason: r}); *p.Reason != string(r) || !strings.HasSuffix(p.Detail, ".") || strings.Contains(p.Detail, "the reason is") {
			t.Errorf("lost: %+v", p)
		}
	}
}

// TestProblemsNameTheFieldAtFault, where there is one by the error's nature.
func TestProblemsNameTheFieldAtFault(t *testing.T) {
	t.Parallel()
	for err, field := range map[error]string{
		pointer.ErrPointerNotFound: "name", pointer.ErrLeaseNotFound: "lease_id", pointer.ErrArtifactNotFound: "artifact_id",
		pointer.ErrFileNotFound: "path", pointer.ErrOperationNotFound: "operation_id", pointer.ErrOperationMismatch: "operation_id",
		artifacts.ErrDigestMismatch: "digest", artifacts.ErrSizeMismatch: "size", &http.MaxBytesError{Limit: 5}: "body",
		errUnsupportedMedia: "Content-Type", errRangeNotSatisfied: "Range",
		&fault{kind: errSizeMismatch, field: "Content-Length", detail: "d"}: "Content-Length",
		&fault{kind: errSizeMismatch, detail: "d"}:                          "size",
	} {
		if p, _, _ := problemOf(fmt.Errorf("while doing: %w", err)); p.Field == nil || *p.Field != field {
			t.Errorf("%v: %+v", err, p)
		}
	}
	if p, _, _ := problemOf(pointer.ErrNothingPublished); p.Field != nil {
		t.Errorf("nothing is at fault: %+v", p)
	}
}
