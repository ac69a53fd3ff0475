package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/artifactd/artifactd/artifacts"
)

// outcomes are the error codes of S3, and of stores like it, that mean something to a caller.
var outcomes = map[string]error{
	"NoSuchKey":                    artifacts.ErrNotFound,
	"NotFound":                     artifacts.ErrNotFound, // HEAD has no body to say more in
	"NoSuchVersion":                artifacts.ErrNotFound,
	"PreconditionFailed":           artifacts.ErrExists,
	"BadDigest":                    artifacts.ErrDigestMismatch,
	"XAmzContentSHA256Mismatch":    artifacts.ErrDigestMismatch,
	"XAmzContentChecksumMismatch":  artifacts.ErrDigestMismatch,
	"IncompleteBody":               artifacts.ErrSizeMismatch,
	"InvalidRange":                 artifacts.ErrBadRange,
	"RequestTimeout":               artifacts.ErrStoreUnavailable,
	"RequestTimeTooSkewed":         errClock,
	"SlowDown":                     artifacts.ErrStoreUnavailable,
	"ConditionalRequestConflict":   artifacts.ErrStoreUnavailable,
	"OperationAborted":             artifacts.ErrStoreUnavailable,
	"NoSuchBucket":                 errNoBucket,
	"AccessDenied":                 errDenied,
	"Forbidden":                    errDenied,
	"InvalidAccessKeyId":           errDenied,
	"SignatureDoesNotMatch":        errDenied,
	"ExpiredToken":                 errDenied,
	"PermanentRedirect":            errRegion,
	"AuthorizationHeaderMalformed": errRegion,
}

// Faults of the set-up. They are nobody's business but the operator's, so they have no sentinel
// in package artifacts: to callers they are failures, and trying again does not help.
var (
	errNoBucket = errors.New("the bucket does not exist: create it, or correct the bucket's name")
	errDenied   = errors.New("the store refused access: check the access key, and that it may read, write, list and delete in the bucket")
	errRegion   = errors.New("the bucket lies in another region: correct the region")
	errClock    = errors.New("the store's clock and this machine's are too far apart: set this machine's clock")
)

// translate turns an error of the SDK into one of package artifacts, by its code, status and
// type. Every error of this driver passes here.
func (s *Store) translate(ctx context.Context, doing, key string, err error) error {
	if err == nil {
		return nil
	}
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("s3: %s %s: %w", doing, key, cause)
	}
	return fmt.Errorf("s3: %s %s: %w: %w", doing, key, meaning(err), err)
}

// meaning is the sentinel for an error of the SDK.
func meaning(err error) error {
	var bodyErr *bodyError
	if errors.As(err, &bodyErr) {
		return errBody
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		if outcome, ok := outcomes[api.ErrorCode()]; ok {
			return outcome
		}
	}
	var resp *awshttp.ResponseError
	if !errors.As(err, &resp) {
		return withoutResponse(err)
	}
	switch code := resp.HTTPStatusCode(); {
	case code == http.StatusNotFound:
		return artifacts.ErrNotFound
	case code == http.StatusPreconditionFailed:
		return artifacts.ErrExists
	case code == http.StatusRequestedRangeNotSatisfiable:
		return artifacts.ErrBadRange
	case code == http.StatusForbidden, code == http.StatusUnauthorized:
		return errDenied
	case code == http.StatusMovedPermanently, code == http.StatusTemporaryRedirect:
		return errRegion
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500, code < 400:
		// Below 400 the answer itself could not be read.
		return artifacts.ErrStoreUnavailable
	}
	return errRefused
}

var (
	errRefused = errors.New("the store refused the request")
	errBody    = errors.New("read the bytes to store")
	errRequest = errors.New("the request could not be made")
)

// withoutResponse tells an error on the way to the store from one that never left: a parameter
// that does not fit, or credentials that cannot be had.
func withoutResponse(err error) error {
	var (
		params  *smithy.InvalidParamsError
		signing *smithy.SerializationError
	)
	if errors.As(err, &params) || errors.As(err, &signing) {
		return errRequest
	}
	return artifacts.ErrStoreUnavailable
}

// status is the HTTP status of the store's refusal, or 0.
func status(err error) int {
	var resp *awshttp.ResponseError
	if errors.As(err, &resp) {
		return resp.HTTPStatusCode()
	}
	return 0
}

// neverRetryBodies stops the SDK from repeating a request whose body was at fault.
type neverRetryBodies struct{}

func (neverRetryBodies) IsErrorRetryable(err error) aws.Ternary {
	var bodyErr *bodyError
	if errors.As(err, &bodyErr) {
		return aws.FalseTernary
	}
	return aws.UnknownTernary
}
