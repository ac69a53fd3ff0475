package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Code is the stable name of a problem, the last part of its type. It is an error, so that
// errors.Is(err, client.ErrLeaseHeld) works on what the calls of this package return.
type Code string

// The codes that the service answers.
const (
	ErrInvalidRequest    Code = "invalid-request"
	ErrUnauthenticated   Code = "unauthenticated"
	ErrForbidden         Code = "forbidden"
	ErrNotFound          Code = "not-found"
	ErrPointerNotFound   Code = "pointer-not-found"
	ErrPointerRetired    Code = "pointer-retired"
	ErrNothingPublished  Code = "nothing-published"
	ErrLeaseNotFound     Code = "lease-not-found"
	ErrArtifactNotFound  Code = "artifact-not-found"
	ErrVersionNotFound   Code = "version-not-found"
	ErrFileNotFound      Code = "file-not-found"
	ErrOperationNotFound Code = "operation-not-found"
	ErrRunNotFound       Code = "run-not-found"
	ErrPlanNotFound      Code = "plan-not-found"
	ErrPlanExpired       Code = "plan-expired"
	ErrLeaseHeld         Code = "lease-held"
	ErrLeaseLost         Code = "lease-lost"
	ErrPublishRefused    Code = "publish-refused"
	ErrOperationMismatch Code = "operation-mismatch"
	ErrOutcomeUnknown    Code = "outcome-unknown"
	ErrDigestMismatch    Code = "digest-mismatch"
	ErrSizeMismatch      Code = "size-mismatch"
	ErrNotUploaded       Code = "not-uploaded"
	ErrUnavailable       Code = "unavailable"
	ErrHistoryChanged    Code = "history-changed"
	ErrMethodNotAllowed  Code = "method-not-allowed"
	ErrLengthRequired    Code = "length-required"
	ErrTooLarge          Code = "too-large"
	ErrUnsupportedMedia  Code = "unsupported-media-type"
	ErrBadRange          Code = "range-not-satisfiable"
	ErrTooManyRequests   Code = "too-many-requests"
	ErrInternal          Code = "internal"
)

func (c Code) Error() string { return string(c) }

// Refusal says why one of several pointers was not published.
type Refusal struct {
	Pointer string `json:"pointer"`
	Reason  string `json:"reason"`
}

// Problem is an answer of the service other than success (RFC 9457). Members that the service left
// out are zero.
type Problem struct {
	Code   Code   `json:"code"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Field is the member or parameter of the request that is at fault.
	Field string `json:"field"`
	// Reason says why a lease was lost or a publish refused, for example "superseded".
	Reason string `json:"reason"`
	// Holder and ExpiresInSeconds tell of the live lease behind lease-held.
	Holder           string  `json:"holder"`
	ExpiresInSeconds float64 `json:"expires_in_seconds"`
	OperationID      string  `json:"operation_id"`
	Token            string  `json:"token"`
	CurrentToken     string  `json:"current_token"`
	// ErrorID names the service's log line of an internal error.
	ErrorID string `json:"error_id"`
	// OperatorRequired says of history-changed that it waits for a person, because the database is known
	// to have lost something: trying again does not help.
	OperatorRequired bool      `json:"operator_required"`
	Refusals         []Refusal `json:"refusals"`
	// RetryAfter is the service's Retry-After, or zero.
	RetryAfter time.Duration `json:"-"`
}

// Error is one line: the code, then what there is to say about it.
func (p *Problem) Error() string {
	var b strings.Builder
	b.WriteString(string(p.Code))
	if p.Reason != "" {
		fmt.Fprintf(&b, " (%s)", p.Reason)
	}
	if p.Detail != "" {
		b.WriteString(": " + p.Detail)
	}
	if p.Field != "" && !strings.Contains(p.Detail, p.Field) {
		fmt.Fprintf(&b, " (field %s)", p.Field)
	}
	if p.ErrorID != "" {
		fmt.Fprintf(&b, " (error id %s)", p.ErrorID)
	}
	return b.String()
}

// Is makes errors.Is compare the code.
func (p *Problem) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == p.Code
}

// temporary reports whether the service said that it cannot now, rather than that it will not.
func (p *Problem) temporary() bool {
	switch p.Status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// maxProblem bounds what is read of an error answer, in bytes.
const maxProblem = 64 << 10

// problemFrom reads the problem document of an answer. An answer that is none, from a proxy or
// another server for example, gets a code after its status.
func problemFrom(resp *http.Response) *Problem {
	p := &Problem{}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil || media != "application/problem+json" || json.Unmarshal(body, p) != nil || p.Code == "" {
		p = &Problem{Code: codeOfStatus(resp.StatusCode)}
		p.Detail = fmt.Sprintf("%s answered %s without a problem document; is this an artifactd service?", resp.Request.URL.Host, resp.Status)
		if resp.Request.Method == http.MethodHead {
			p.Detail = fmt.Sprintf("%s answered %s", resp.Request.URL.Host, resp.Status)
		}
	}
	p.Status = resp.StatusCode
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
		p.RetryAfter = time.Duration(s) * time.Second
	}
	return p
}

// codeOfStatus is the nearest code for an answer that carried none.
func codeOfStatus(status int) Code {
	switch {
	case status == http.StatusUnauthorized:
		return ErrUnauthenticated
	case status == http.StatusForbidden:
		return ErrForbidden
	case status == http.StatusNotFound:
		return ErrNotFound
	case status == http.StatusTooManyRequests || status >= 500:
		return ErrUnavailable
	}
	return ErrInvalidRequest
}

// asProblem is errors.As for the usual case.
func asProblem(err error) (*Problem, bool) {
	var p *Problem
	ok := errors.As(err, &p)
	return p, ok
}
