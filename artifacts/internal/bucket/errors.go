package bucket

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/artifactd/artifactd/artifacts"
)

// outcomes are the error codes of S3, and of stores like it, that mean something to a caller.
var outcomes = map[string]error{
	"NoSuchKey":                    artifacts.ErrNotFound,
	"NotFound":                     artifacts.ErrNotFound, // HEAD has no body to say more in
	"NoSuchVersion":                artifacts.ErrNotFound,
	"NoSuchUpload":                 artifacts.ErrUploadGone,
	"InvalidPart":                  artifacts.ErrPartMismatch,
	"InvalidPartOrder":             artifacts.ErrPartMismatch,
	"PreconditionFailed":           artifacts.ErrExists,
	"BadDigest":                    artifacts.ErrDigestMismatch,
	"XAmzContentSHA256Mismatch":    artifacts.ErrDigestMismatch,
	"XAmzContentChecksumMismatch":  artifacts.ErrDigestMismatch,
	"IncompleteBody":               artifacts.ErrSizeMismatch,
	"InvalidRange":                 artifacts.ErrBadRange,
	"InternalError":                artifacts.ErrStoreUnavailable,
	"RequestTimeout":               artifacts.ErrStoreUnavailable,
	"RequestTimeTooSkewed":         ErrClock,
	"SlowDown":                     artifacts.ErrStoreUnavailable,
	"ConditionalRequestConflict":   artifacts.ErrStoreUnavailable,
	"OperationAborted":             artifacts.ErrStoreUnavailable,
	"NoSuchBucket":                 ErrNoBucket,
	"AccessDenied":                 ErrDenied,
	"Forbidden":                    ErrDenied,
	"InvalidAccessKeyId":           ErrDenied,
	"SignatureDoesNotMatch":        ErrDenied,
	"ExpiredToken":                 ErrDenied,
	"PermanentRedirect":            ErrRegion,
	"AuthorizationHeaderMalformed": ErrRegion,
	"XMinioStorageFull":            ErrFull,
	"InsufficientStorage":          ErrFull,
	"QuotaExceeded":                ErrFull,
}

// Faults of the set-up. Most are nobody's business but the operator's, and have no sentinel in
// package artifacts: to callers they are failures, and trying again does not help.
var (
	ErrNoBucket = errors.New("the bucket does not exist: create it, or correct the bucket's name")
	ErrDenied   = artifacts.ErrStoreDenied
	ErrRegion   = errors.New("the bucket lies in another region: correct the region")
	ErrClock    = errors.New("the store's clock and this machine's are too far apart: set this machine's clock")
	ErrFull     = artifacts.ErrStoreFull
	ErrRefused  = errors.New("the store refused the request")
	ErrBody     = errors.New("read the bytes to store")
	ErrRequest  = errors.New("the request could not be made")
)

// Meaning is the sentinel for a store's answer: its error code, "" where it gave none, and its
// HTTP status, 0 where there was none.
func Meaning(code string, status int) error {
	if outcome, ok := outcomes[code]; ok {
		return outcome
	}
	switch {
	case status == http.StatusNotFound:
		return artifacts.ErrNotFound
	case status == http.StatusPreconditionFailed:
		return artifacts.ErrExists
	case status == http.StatusRequestedRangeNotSatisfiable:
		return artifacts.ErrBadRange
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return ErrDenied
	case status == http.StatusMovedPermanently, status == http.StatusTemporaryRedirect:
		return ErrRegion
	case status == http.StatusInsufficientStorage:
		return ErrFull
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500, status < 400:
		// Below 400 the answer itself could not be read.
		return artifacts.ErrStoreUnavailable
	}
	return ErrRefused
}

// Translate turns an error of an SDK into one of package artifacts. meaning is the driver's reading of
// what did not come from the body: a sentinel, found by the error's code, status and type.
func Translate(ctx context.Context, doing, key string, err error, meaning func(error) error) error {
	var bodyErr *BodyError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bodyErr):
		return wrap(ctx, doing, key, ErrBody, err)
	}
	return wrap(ctx, doing, key, meaning(err), err)
}

// wrap says what failed and why. Once the context has ended, that is why.
func wrap(ctx context.Context, doing, key string, sentinel, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("s3: %s %s: %w", doing, key, cause)
	}
	return fmt.Errorf("s3: %s %s: %w: %w", doing, key, sentinel, err)
}

// BatchRefusal is the meaning of one key's error in a 200 answer to a batch. A code that is not
// known says nothing about the key, so trying again is right.
func BatchRefusal(code string) error {
	if outcome, ok := outcomes[code]; ok {
		return outcome
	}
	return artifacts.ErrStoreUnavailable
}
