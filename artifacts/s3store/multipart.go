package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// CreateMultipart implements [artifacts.BlobMultiparter].
func (s *Store) CreateMultipart(ctx context.Context, u artifacts.Upload) (string, error) {
	if err := bucket.CheckMultipart(u); err != nil {
		return "", err
	}
	out, err := s.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &s.cfg.Bucket, Key: &u.Key, ContentType: optional(u.ContentType), Metadata: u.Metadata,
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
	})
	switch code := status(err); {
	case code == http.StatusNotImplemented, code == http.StatusMethodNotAllowed:
		return "", fmt.Errorf("s3: begin an upload to %s: %w: %w", u.Key, artifacts.ErrNoMultipart, err)
	case err != nil:
		return "", s.translate(ctx, "begin an upload to", u.Key, err)
	case aws.ToString(out.UploadId) == "":
		return "", fmt.Errorf("s3: begin an upload to %s: %w: the store gave no upload id", u.Key, artifacts.ErrStoreUnavailable)
	}
	return *out.UploadId, nil
}

func (s *Store) partInput(m artifacts.Multipart, p artifacts.Part) *s3.UploadPartInput {
	return &s3.UploadPartInput{
		Bucket: &s.cfg.Bucket, Key: &m.Key, UploadId: &m.UploadID, PartNumber: aws.Int32(int32(p.Number)),
		ContentLength: &p.Size, ChecksumSHA256: aws.String(p.SHA256.Base64()),
	}
}

// PutPart implements [artifacts.BlobMultiparter].
func (s *Store) PutPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, body io.Reader) error {
	return bucket.PutPart(ctx, driver{s}, m, p, body)
}

// ListParts implements [artifacts.BlobMultiparter].
func (s *Store) ListParts(ctx context.Context, m artifacts.Multipart) ([]artifacts.Part, error) {
	return bucket.ListParts(ctx, driver{s}, m)
}

// CompleteMultipart implements [artifacts.BlobMultiparter].
func (s *Store) CompleteMultipart(ctx context.Context, u artifacts.Upload, uploadID string, parts []artifacts.Part) error {
	return bucket.Complete(ctx, driver{s}, u, uploadID, parts)
}

// AbortMultipart implements [artifacts.BlobMultiparter].
func (s *Store) AbortMultipart(ctx context.Context, m artifacts.Multipart) error {
	return bucket.Abort(ctx, driver{s}, m)
}

func (s driver) Stored(ctx context.Context, m artifacts.Multipart) ([]bucket.StoredPart, error) {
	if err := bucket.CheckUploadID(m); err != nil {
		return nil, err
	}
	var parts []bucket.StoredPart
	in := &s3.ListPartsInput{Bucket: &s.cfg.Bucket, Key: &m.Key, UploadId: &m.UploadID}
	for {
		page, err := s.client.ListParts(ctx, in)
		if err != nil {
			return nil, s.translate(ctx, "list the parts of", m.Key, err)
		}
		parts, err = bucket.AppendParts(parts, storedParts(page.Parts))
		if err == nil && page.IsTruncated == nil {
			err = errors.New("the store does not say whether the listing is complete")
		}
		if err == nil && *page.IsTruncated {
			in.PartNumberMarker, err = nextParts(page.NextPartNumberMarker, in.PartNumberMarker)
		}
		if err != nil {
			return nil, fmt.Errorf("s3: list the parts of %s: %w: %w", m.Key, artifacts.ErrStoreUnavailable, err)
		}
		if !*page.IsTruncated {
			return parts, nil
		}
	}
}

func storedParts(page []types.Part) []bucket.StoredPart {
	parts := make([]bucket.StoredPart, len(page))
	for i, p := range page {
		parts[i] = bucket.StoredPart{ETag: aws.ToString(p.ETag), Part: artifacts.Part{
			Number: int(aws.ToInt32(p.PartNumber)), Size: aws.ToInt64(p.Size), SHA256: bucket.Checksum(aws.ToString(p.ChecksumSHA256)),
		}}
	}
	return parts
}

// nextParts is the marker of the page of parts after this one.
func nextParts(next, current *string) (*string, error) {
	n, err := strconv.Atoi(aws.ToString(next))
	if err != nil || n < 1 || aws.ToString(next) == aws.ToString(current) {
		return nil, errors.New("the store cut the listing short without a way to go on")
	}
	return next, nil
}

func (s driver) TryPutPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, body io.Reader) (attempts int, err error) {
	in := s.partInput(m, p)
	in.Body = body
	_, err = s.client.UploadPart(ctx, in, sendOnce(&attempts))
	return attempts, s.translate(ctx, "put a part of", m.Key, err)
}

func (s driver) TryComplete(ctx context.Context, m artifacts.Multipart, parts []bucket.StoredPart, createOnly bool) (int, int, error) {
	completed := make([]types.CompletedPart, len(parts))
	for i, p := range parts {
		completed[i] = types.CompletedPart{
			PartNumber: aws.Int32(int32(p.Number)), ETag: aws.String(p.ETag), ChecksumSHA256: aws.String(p.SHA256.Base64()),
		}
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &s.cfg.Bucket, Key: &m.Key, UploadId: &m.UploadID,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: completed},
	}
	if createOnly {
		in.IfNoneMatch = aws.String("*")
	}
	attempts := 0
	_, err := s.client.CompleteMultipartUpload(ctx, in, s3.WithAPIOptions(countAttempts(&attempts)))
	return attempts, status(err), s.translate(ctx, "complete", m.Key, err)
}

func (s driver) TryAbort(ctx context.Context, m artifacts.Multipart) error {
	_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &s.cfg.Bucket, Key: &m.Key, UploadId: &m.UploadID})
	return s.translate(ctx, "abort the upload to", m.Key, err)
}
