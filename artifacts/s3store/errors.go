package s3store

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// translate is [bucket.Translate] with this SDK's errors. Every error of this driver passes here.
func (s *Store) translate(ctx context.Context, doing, key string, err error) error {
	return bucket.Translate(ctx, doing, key, err, meaning)
}

// meaning is the sentinel for an error of the SDK.
func meaning(err error) error {
	var resp *awshttp.ResponseError
	if !errors.As(err, &resp) {
		return withoutResponse(err)
	}
	code := ""
	var api smithy.APIError
	if errors.As(err, &api) {
		code = api.ErrorCode()
	}
	return bucket.Meaning(code, resp.HTTPStatusCode())
}

// withoutResponse tells an error on the way to the store from one that never left: a parameter
// that does not fit, or credentials that cannot be had.
func withoutResponse(err error) error {
	var (
		params  *smithy.InvalidParamsError
		signing *smithy.SerializationError
	)
	if errors.As(err, &params) || errors.As(err, &signing) {
		return bucket.ErrRequest
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
	var bodyErr *bucket.BodyError
	if errors.As(err, &bodyErr) {
		return aws.FalseTernary
	}
	return aws.UnknownTernary
}
