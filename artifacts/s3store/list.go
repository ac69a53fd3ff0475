package s3store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// List implements [artifacts.BlobLister]. It fails closed: unless the store says plainly that a
// page was the last and the page agrees with itself, the sequence ends in an error. The objects
// have no content type, metadata or checksum; a listing does not carry them.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[artifacts.Object, error] {
	return func(yield func(artifacts.Object, error) bool) {
		var token *string
		last := ""
		for {
			page, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
				Bucket: &s.cfg.Bucket, Prefix: &prefix, ContinuationToken: token,
				// XML cannot carry every character that a key may have.
				EncodingType: types.EncodingTypeUrl,
			})
			if err != nil {
				yield(artifacts.Object{}, s.translate(ctx, "list", prefix, err))
				return
			}
			objects, err := pageObjects(page, prefix, last)
			if err == nil {
				token, err = nextPage(page, token)
			}
			if err != nil {
				yield(artifacts.Object{}, fmt.Errorf("s3: list %s: %w: %w", prefix, artifacts.ErrStoreUnavailable, err))
				return
			}
			for _, o := range objects {
				if !yield(o, nil) {
					return
				}
				last = o.Key
			}
			if token == nil {
				return
			}
			if err := ctx.Err(); err != nil {
				yield(artifacts.Object{}, s.translate(ctx, "list", prefix, err))
				return
			}
		}
	}
}

// pageObjects reads and checks one page, which follows the key last.
func pageObjects(page *s3.ListObjectsV2Output, prefix, last string) ([]artifacts.Object, error) {
	if n := page.KeyCount; n != nil && int(*n) != len(page.Contents)+len(page.CommonPrefixes) {
		return nil, fmt.Errorf("the store announced %d keys and sent %d", *n, len(page.Contents))
	}
	objects := make([]artifacts.Object, 0, len(page.Contents))
	for _, c := range page.Contents {
		key, err := decodeKey(aws.ToString(c.Key), page.EncodingType)
		if err != nil {
			return nil, err
		}
		if err := bucket.Follows(key, last, prefix); err != nil {
			return nil, err
		}
		last = key
		objects = append(objects, artifacts.Object{
			Key: key, Size: aws.ToInt64(c.Size), LastModified: aws.ToTime(c.LastModified),
		})
	}
	return objects, nil
}

// decodeKey reads a key as a listing spells it.
func decodeKey(key string, encoding types.EncodingType) (string, error) {
	if encoding != types.EncodingTypeUrl {
		return key, nil
	}
	decoded, err := url.QueryUnescape(key)
	if err != nil {
		return "", fmt.Errorf("the store sent an ill-encoded key: %w", err)
	}
	return decoded, nil
}

// nextPage is the token of the page after this one, or nil after the last.
func nextPage(page *s3.ListObjectsV2Output, current *string) (*string, error) {
	if page.IsTruncated == nil {
		return nil, errors.New("the store does not say whether the listing is complete")
	}
	if !*page.IsTruncated {
		return nil, nil
	}
	next := page.NextContinuationToken
	if aws.ToString(next) == "" {
		return nil, errors.New("the store cut the listing short without a way to go on")
	}
	if current != nil && *current == *next {
		return nil, errors.New("the store repeats the same page")
	}
	return next, nil
}
