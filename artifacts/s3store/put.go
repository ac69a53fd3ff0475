package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/artifactd/artifactd/artifacts"
)

// Put implements [artifacts.BlobWriter]. Memory does not depend on the size of the body. A fault
// of the body is returned as what body.Read returned, not as a fault of the store.
func (s *Store) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	if err := checkUpload(u); err != nil {
		return err
	}
	verified, stream := wrapBody(body, u.Size, u.Digest)
	in := s.putInput(u)
	in.Body = stream
	if u.Size == 0 {
		// Nothing would ever be read of an empty body: it is checked before the request.
		if err := verified.finishEmpty(); err != io.EOF {
			return s.translate(ctx, "put", u.Key, err)
		}
		in.Body = bytes.NewReader(nil)
	}
	attempts := 0
	_, err := s.client.PutObject(ctx, in, s3.WithAPIOptions(
		// The payload's hash is in the checksum header, which is signed; hashing it once more for
		// the signature would need the whole body before its first byte is sent.
		v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware,
		countAttempts(&attempts),
	))
	if err == nil {
		return nil
	}
	if fault := verified.failed(); fault != nil {
		return s.translate(ctx, "put", u.Key, fault)
	}
	err = s.translate(ctx, "put", u.Key, err)
	if unclear(err, attempts) && verified.complete() {
		return s.settlePut(ctx, u, err)
	}
	return err
}

// checkUpload refuses what no store would take.
func checkUpload(u artifacts.Upload) error {
	switch {
	case u.Key == "":
		return errors.New("s3: an upload needs a key")
	case u.Digest.IsZero():
		return fmt.Errorf("s3: upload to %s: the digest is missing", u.Key)
	case u.Size < 0:
		return fmt.Errorf("s3: upload to %s: the size is missing", u.Key)
	case u.Size > artifacts.MaxSinglePut:
		return fmt.Errorf("s3: upload to %s: %d bytes are more than one PUT may have (%d)", u.Key, u.Size, int64(artifacts.MaxSinglePut))
	}
	return nil
}

func (s *Store) putInput(u artifacts.Upload) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket:         &s.cfg.Bucket,
		Key:            &u.Key,
		ContentLength:  &u.Size,
		ChecksumSHA256: aws.String(u.Digest.Base64()),
		IfNoneMatch:    aws.String("*"),
		Metadata:       u.Metadata,
	}
	if u.ContentType != "" {
		in.ContentType = &u.ContentType
	}
	return in
}

// unclear reports whether the object may be there although the call failed: the answer to some
// attempt was lost, or a repeated attempt met what an earlier one had stored.
func unclear(err error, attempts int) bool {
	if errors.Is(err, artifacts.ErrStoreUnavailable) {
		return true
	}
	return errors.Is(err, artifacts.ErrExists) && attempts > 1
}

// settlePut asks the store what it holds. The key is this upload's alone, so an object that is
// the same in every respect is this one. failure stands when there is none, or another.
func (s *Store) settlePut(ctx context.Context, u artifacts.Upload, failure error) error {
	o, err := s.Head(ctx, u.Key)
	if err != nil {
		return failure
	}
	if o.Size == u.Size && (o.SHA256 == u.Digest || o.SHA256.IsZero()) && maps.Equal(lowerKeys(u.Metadata), o.Metadata) {
		return nil
	}
	return failure
}

// countAttempts counts the attempts that the SDK makes at a request.
func countAttempts(n *int) func(*middleware.Stack) error {
	return func(stack *middleware.Stack) error {
		return stack.Finalize.Insert(middleware.FinalizeMiddlewareFunc("CountAttempts",
			func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
				middleware.FinalizeOutput, middleware.Metadata, error,
			) {
				*n++
				return next.HandleFinalize(ctx, in)
			}), "Retry", middleware.After)
	}
}
