package s3store

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// ListMultiparts implements [artifacts.BlobLister].
func (s *Store) ListMultiparts(ctx context.Context, prefix string) iter.Seq2[artifacts.Multipart, error] {
	return bucket.ListMultiparts(ctx, prefix, func(ctx context.Context, keyMarker string) (bucket.UploadsPage, error) {
		out, err := s.client.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{
			Bucket: &s.cfg.Bucket, KeyMarker: optional(keyMarker), EncodingType: types.EncodingTypeUrl,
		})
		if err != nil {
			return bucket.UploadsPage{}, s.translate(ctx, "list the multipart uploads of", s.cfg.Bucket, err)
		}
		page, err := uploadsPage(out)
		if err != nil {
			return page, fmt.Errorf("s3: list the multipart uploads of %s: %w: %w", s.cfg.Bucket, artifacts.ErrStoreUnavailable, err)
		}
		return page, nil
	})
}

func uploadsPage(out *s3.ListMultipartUploadsOutput) (bucket.UploadsPage, error) {
	if out.IsTruncated == nil {
		return bucket.UploadsPage{}, errors.New("the store does not say whether the listing is complete")
	}
	page := bucket.UploadsPage{Truncated: *out.IsTruncated, Uploads: make([]artifacts.Multipart, len(out.Uploads))}
	var err error
	if page.NextKey, err = decodeKey(aws.ToString(out.NextKeyMarker), out.EncodingType); err != nil {
		return page, err
	}
	for i, u := range out.Uploads {
		m := artifacts.Multipart{UploadID: aws.ToString(u.UploadId), Initiated: aws.ToTime(u.Initiated)}
		if m.Key, err = decodeKey(aws.ToString(u.Key), out.EncodingType); err != nil {
			return page, err
		}
		page.Uploads[i] = m
	}
	return page, nil
}
