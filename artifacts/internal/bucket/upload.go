package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/artifactd/artifactd/artifacts"
)

// Writing is what a driver can do to store an object.
type Writing interface {
	artifacts.BlobReader
	// TryPut sends the bytes in one create-only PUT. It tells the SHA-256 of the whole object that the
	// store answered with, zero where it told none, and how often it sent the request.
	TryPut(ctx context.Context, u artifacts.Upload, body io.Reader) (told artifacts.Digest, attempts int, err error)
}

// Put stores an object, and returns the SHA-256 that the store told of it. See [artifacts.BlobWriter].
func Put(ctx context.Context, d Writing, u artifacts.Upload, src io.Reader) (artifacts.Digest, error) {
	var none artifacts.Digest
	if err := CheckUpload(u); err != nil {
		return none, err
	}
	verified, stream := newBody(src, u.Size, u.Digest)
	if u.Size == 0 {
		if err := verified.checkEmpty(); err != nil {
			return none, wrap(ctx, "put", u.Key, ErrBody, err)
		}
		stream = bytes.NewReader(nil)
	}
	told, attempts, err := d.TryPut(ctx, u, stream)
	if err == nil {
		return told, nil
	}
	return none, verified.settle(ctx, "put", u.Key, attempts, err, func() error { return settle(ctx, d, u, err) })
}

// CheckUpload refuses what no store would take in one PUT.
func CheckUpload(u artifacts.Upload) error {
	if err := checkDescription(u); err != nil {
		return err
	}
	if u.Size > artifacts.MaxSinglePut {
		return fmt.Errorf("s3: upload to %s: %d bytes are more than one PUT may have (%d)", u.Key, u.Size, int64(artifacts.MaxSinglePut))
	}
	return nil
}

// CheckMultipart refuses what no store would take in parts.
func CheckMultipart(u artifacts.Upload) error {
	if err := checkDescription(u); err != nil {
		return err
	}
	if u.Size == 0 || u.Size > artifacts.MaxObject {
		return fmt.Errorf("s3: upload to %s: %d bytes cannot be stored in parts: 1 to %d can", u.Key, u.Size, int64(artifacts.MaxObject))
	}
	return nil
}

func checkDescription(u artifacts.Upload) error {
	switch {
	case u.Key == "":
		return errors.New("s3: an upload needs a key")
	case u.Digest.IsZero():
		return fmt.Errorf("s3: upload to %s: the digest is missing", u.Key)
	case u.Size < 0:
		return fmt.Errorf("s3: upload to %s: the size is missing", u.Key)
	}
	return nil
}

// CheckUploadID refuses a multipart upload without a name. A request for it would be taken for
// one for the object.
func CheckUploadID(m artifacts.Multipart) error {
	if m.Key == "" || m.UploadID == "" {
		return fmt.Errorf("s3: multipart upload %q to %q: the key and the upload id are needed", m.UploadID, m.Key)
	}
	return nil
}

// CheckPart refuses a part that no store would take.
func CheckPart(m artifacts.Multipart, p artifacts.Part) error {
	if err := CheckUploadID(m); err != nil {
		return err
	}
	switch {
	case p.Number < 1 || p.Number > artifacts.MaxParts:
		return fmt.Errorf("s3: upload to %s: part %d: parts are numbered from 1 to %d", m.Key, p.Number, artifacts.MaxParts)
	case p.Size < 1 || p.Size > artifacts.MaxSinglePut:
		return fmt.Errorf("s3: upload to %s: part %d has %d bytes: 1 to %d are possible", m.Key, p.Number, p.Size, int64(artifacts.MaxSinglePut))
	case p.SHA256.IsZero():
		return fmt.Errorf("s3: upload to %s: part %d: the digest is missing", m.Key, p.Number)
	}
	return nil
}

// unclear reports whether the object may be there although the call failed: the answer to some
// attempt was lost, or a repeated attempt met what an earlier one had stored.
func unclear(err error, attempts int) bool {
	if errors.Is(err, artifacts.ErrStoreUnavailable) {
		return true
	}
	return errors.Is(err, artifacts.ErrExists) && attempts > 1
}

// settle asks the store what it holds. The key is this upload's alone, so an object that is the
// same in every respect is this one. failure stands when there is none, or another.
func settle(ctx context.Context, r artifacts.BlobReader, u artifacts.Upload, failure error) error {
	o, err := r.Head(ctx, u.Key)
	if err != nil {
		return failure
	}
	if o.Size == u.Size && (o.SHA256 == u.Digest || o.SHA256.IsZero()) && maps.Equal(LowerKeys(u.Metadata), o.Metadata) {
		return nil
	}
	return failure
}
