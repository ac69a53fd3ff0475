package miniostore

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// partsPage is how many parts are asked for at once.
const partsPage = 1000

// CreateMultipart implements [artifacts.BlobMultiparter].
func (s *Store) CreateMultipart(ctx context.Context, u artifacts.Upload) (string, error) {
	if err := bucket.CheckMultipart(u); err != nil {
		return "", err
	}
	options := described(u)
	options.UserMetadata["X-Amz-Checksum-Algorithm"] = "SHA256"
	id, err := s.core.NewMultipartUpload(ctx, s.cfg.Bucket, u.Key, options)
	switch code := status(err); {
	case code == http.StatusNotImplemented, code == http.StatusMethodNotAllowed:
		return "", fmt.Errorf("s3: begin an upload to %s: %w: %w", u.Key, artifacts.ErrNoMultipart, err)
	case err != nil:
		return "", s.translate(ctx, "begin an upload to", u.Key, err)
	case id == "":
		return "", fmt.Errorf("s3: begin an upload to %s: %w: the store gave no upload id", u.Key, artifacts.ErrStoreUnavailable)
	}
	return id, nil
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
	marker := 0
	for {
		page, err := s.core.ListObjectParts(ctx, s.cfg.Bucket, m.Key, m.UploadID, marker, partsPage)
		if err != nil {
			return nil, s.translate(ctx, "list the parts of", m.Key, err)
		}
		parts, err = bucket.AppendParts(parts, storedParts(page.ObjectParts))
		if err != nil {
			return nil, fmt.Errorf("s3: list the parts of %s: %w: %w", m.Key, artifacts.ErrStoreUnavailable, err)
		}
		if !page.IsTruncated {
			return parts, nil
		}
		marker = page.NextPartNumberMarker
	}
}

func storedParts(page []minio.ObjectPart) []bucket.StoredPart {
	parts := make([]bucket.StoredPart, len(page))
	for i, p := range page {
		parts[i] = bucket.StoredPart{ETag: p.ETag, Part: artifacts.Part{
			Number: p.PartNumber, Size: p.Size, SHA256: bucket.Checksum(p.ChecksumSHA256),
		}}
	}
	return parts
}

func (s driver) TryPutPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, body io.Reader) (attempts int, err error) {
	_, err = s.core.PutObjectPart(counted(ctx, &attempts), s.cfg.Bucket, m.Key, m.UploadID, p.Number, body, p.Size, minio.PutObjectPartOptions{
		Sha256Hex: p.SHA256.Hex(), DisableContentSha256: true, CustomHeader: http.Header{checksumHeader: {p.SHA256.Base64()}},
	})
	return attempts, s.translate(ctx, "put a part of", m.Key, err)
}

func (s driver) TryComplete(ctx context.Context, m artifacts.Multipart, parts []bucket.StoredPart, createOnly bool) (int, int, error) {
	completed := make([]minio.CompletePart, len(parts))
	for i, p := range parts {
		completed[i] = minio.CompletePart{PartNumber: p.Number, ETag: p.ETag, ChecksumSHA256: p.SHA256.Base64()}
	}
	var options minio.PutObjectOptions
	if createOnly {
		options.SetMatchETagExcept("*")
	}
	attempts := 0
	_, err := s.core.CompleteMultipartUpload(counted(ctx, &attempts), s.cfg.Bucket, m.Key, m.UploadID, completed, options)
	return attempts, status(err), s.translate(ctx, "complete", m.Key, err)
}

func (s driver) TryAbort(ctx context.Context, m artifacts.Multipart) error {
	return s.translate(ctx, "abort the upload to", m.Key, s.core.AbortMultipartUpload(ctx, s.cfg.Bucket, m.Key, m.UploadID))
}
