package s3store

import (
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Put implements [artifacts.BlobWriter]. Memory does not depend on the size of the body. A fault
// of the body is returned as what body.Read returned, not as a fault of the store.
func (s *Store) Put(ctx context.Context, u artifacts.Upload, body io.Reader) error {
	_, err := s.PutProving(ctx, u, body)
	return err
}

// PutProving implements [artifacts.BlobWriter].
func (s *Store) PutProving(ctx context.Context, u artifacts.Upload, body io.Reader) (artifacts.Digest, error) {
	return bucket.Put(ctx, driver{s}, u, body)
}

func (s driver) TryPut(ctx context.Context, u artifacts.Upload, body io.Reader) (told artifacts.Digest, attempts int, err error) {
	in := s.putInput(u)
	in.Body = body
	out, err := s.client.PutObject(ctx, in, sendOnce(&attempts))
	if err != nil {
		return told, attempts, s.translate(ctx, "put", u.Key, err)
	}
	return bucket.FullChecksum(aws.ToString(out.ChecksumSHA256), string(out.ChecksumType)), attempts, nil
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

// sendOnce reads the body once a request, and counts the attempts. The payload's hash is in the
// checksum header, which is signed; hashing it once more for the signature would need the whole
// body before its first byte is sent.
func sendOnce(attempts *int) func(*s3.Options) {
	return s3.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware, countAttempts(attempts))
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
