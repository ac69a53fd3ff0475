package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/artifactd/artifactd/artifacts"
)

// StoredPart is a part that the store holds, with the name it must be completed by.
type StoredPart struct {
	artifacts.Part
	ETag string
}

// assemble picks the parts to complete u with from those that are there, and checks that they are
// the ones that were asked for. A store that does not tell the digest of a part leaves its proof
// to the reading of the whole.
func assemble(u artifacts.Upload, asked []artifacts.Part, there []StoredPart) ([]StoredPart, error) {
	if err := checkParts(u, asked); err != nil {
		return nil, err
	}
	byNumber := make(map[int]StoredPart, len(there))
	for _, p := range there {
		byNumber[p.Number] = p
	}
	parts := make([]StoredPart, len(asked))
	for i, want := range asked {
		got, ok := byNumber[want.Number]
		switch {
		case !ok:
			return nil, fmt.Errorf("s3: complete %s: %w: part %d is not there", u.Key, artifacts.ErrPartMismatch, want.Number)
		case got.Size != want.Size:
			return nil, fmt.Errorf("s3: complete %s: %w: part %d has %d bytes, %d were declared", u.Key, artifacts.ErrPartMismatch,
				want.Number, got.Size, want.Size)
		case !got.SHA256.IsZero() && got.SHA256 != want.SHA256:
			return nil, fmt.Errorf("s3: complete %s: %w: part %d hashes to %s, %s was declared", u.Key, artifacts.ErrPartMismatch,
				want.Number, got.SHA256, want.SHA256)
		}
		got.SHA256 = want.SHA256
		parts[i] = got
	}
	return parts, nil
}

// checkParts makes sure that the parts are the whole of u.
func checkParts(u artifacts.Upload, parts []artifacts.Part) error {
	var size int64
	for i, p := range parts {
		if p.Number != i+1 {
			return fmt.Errorf("s3: complete %s: part %d stands at place %d: give all parts, in order, from 1", u.Key, p.Number, i+1)
		}
		size += p.Size
	}
	if size != u.Size {
		return fmt.Errorf("s3: complete %s: %w: the parts have %d bytes, the object %d", u.Key, artifacts.ErrSizeMismatch, size, u.Size)
	}
	return nil
}

// AppendParts adds a page of a listing of parts, and checks that it goes on where the last ended.
func AppendParts(parts, page []StoredPart) ([]StoredPart, error) {
	last := 0
	if len(parts) > 0 {
		last = parts[len(parts)-1].Number
	}
	for _, p := range page {
		if p.Number <= last || p.Number > artifacts.MaxParts || p.Size < 0 {
			return nil, fmt.Errorf("the store lists part %d, of %d bytes, after part %d", p.Number, p.Size, last)
		}
		last = p.Number
	}
	return append(parts, page...), nil
}

// Multiparting is what a driver can do with a multipart upload.
type Multiparting interface {
	artifacts.BlobReader
	// Stored lists the parts.
	Stored(ctx context.Context, m artifacts.Multipart) ([]StoredPart, error)
	// TryPutPart sends the bytes of a part, and tells how often it sent the request.
	TryPutPart(ctx context.Context, m artifacts.Multipart, p artifacts.Part, body io.Reader) (attempts int, err error)
	// TryComplete sends the request, create-only or not, and tells how often it did, and with
	// which status the store refused.
	TryComplete(ctx context.Context, m artifacts.Multipart, parts []StoredPart, createOnly bool) (attempts, status int, err error)
	// TryAbort sends the request.
	TryAbort(ctx context.Context, m artifacts.Multipart) error
}

// PutPart stores one part. See [artifacts.BlobMultiparter].
func PutPart(ctx context.Context, d Multiparting, m artifacts.Multipart, p artifacts.Part, src io.Reader) error {
	if err := CheckPart(m, p); err != nil {
		return err
	}
	verified, stream := newBody(src, p.Size, p.SHA256)
	attempts, err := d.TryPutPart(ctx, m, p, stream)
	if err == nil {
		return nil
	}
	return verified.settle(ctx, "put a part of", m.Key, attempts, err, func() error { return settlePart(ctx, d, m, p, err) })
}

// Complete makes the object of its parts, once. See [artifacts.BlobMultiparter].
func Complete(ctx context.Context, d Multiparting, u artifacts.Upload, uploadID string, asked []artifacts.Part) error {
	m := artifacts.Multipart{Key: u.Key, UploadID: uploadID}
	if err := errors.Join(CheckMultipart(u), CheckUploadID(m)); err != nil {
		return err
	}
	there, err := d.Stored(ctx, m)
	if errors.Is(err, artifacts.ErrUploadGone) {
		return settle(ctx, d, u, err) // an earlier call may have completed it
	}
	if err != nil {
		return err
	}
	parts, err := assemble(u, asked, there)
	if err != nil {
		return err
	}
	attempts, status, err := d.TryComplete(ctx, m, parts, true)
	if status == http.StatusNotImplemented {
		// A store without conditions on Complete. The key is this upload's alone all the same.
		var more int
		more, status, err = d.TryComplete(ctx, m, parts, false)
		attempts += more
	}
	if err == nil {
		return nil
	}
	if status == http.StatusConflict {
		// Something else wrote to the key meanwhile: S3 wants the upload to start over.
		err = fmt.Errorf("%w: %w", artifacts.ErrUploadGone, err)
	}
	if unclear(err, attempts) || errors.Is(err, artifacts.ErrUploadGone) {
		return settle(ctx, d, u, err)
	}
	return err
}

// abortTries bounds how often an upload that comes back is aborted in one call.
const abortTries = 5

// Abort aborts a multipart upload until the store does not know it any more: a part that was on
// its way when the first request arrived may have brought it back.
func Abort(ctx context.Context, d Multiparting, m artifacts.Multipart) error {
	if err := CheckUploadID(m); err != nil {
		return err
	}
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 50 * time.Millisecond, Multiplier: 2, MaxInterval: time.Second, RandomizationFactor: 0.5,
	}
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		if err := d.TryAbort(ctx, m); err != nil && !errors.Is(err, artifacts.ErrUploadGone) {
			return struct{}{}, backoff.Permanent(err)
		}
		parts, err := d.Stored(ctx, m)
		switch {
		case errors.Is(err, artifacts.ErrUploadGone):
			return struct{}{}, nil
		case err != nil:
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, fmt.Errorf("s3: abort the upload to %s: %w: the store still holds it, with %d parts: abort it again later",
			m.Key, artifacts.ErrStoreUnavailable, len(parts))
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(abortTries), backoff.WithMaxElapsedTime(0))
	return err
}

// settlePart asks the store whether it holds a part after all. failure stands when it does not.
func settlePart(ctx context.Context, d Multiparting, m artifacts.Multipart, p artifacts.Part, failure error) error {
	there, err := d.Stored(ctx, m)
	if err != nil {
		return failure
	}
	for _, got := range there {
		if got.Number == p.Number && got.Size == p.Size && got.SHA256 == p.SHA256 {
			return nil
		}
	}
	return failure
}

// ListParts tells the parts that are there. See [artifacts.BlobMultiparter].
func ListParts(ctx context.Context, d Multiparting, m artifacts.Multipart) ([]artifacts.Part, error) {
	stored, err := d.Stored(ctx, m)
	parts := make([]artifacts.Part, len(stored))
	for i, p := range stored {
		parts[i] = p.Part
	}
	return parts, err
}
