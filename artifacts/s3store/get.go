package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
)

// Head implements [artifacts.BlobReader]. A bucket that is missing is not taken for an object
// that is.
func (s *Store) Head(ctx context.Context, key string) (artifacts.Object, error) {
	out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{
		Bucket: &s.cfg.Bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled,
	})
	if err != nil {
		err = s.translate(ctx, "head", key, err)
		if errors.Is(err, artifacts.ErrNotFound) {
			return artifacts.Object{}, s.orNoBucket(ctx, err)
		}
		return artifacts.Object{}, err
	}
	o := artifacts.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ContentType: aws.ToString(out.ContentType),
		Metadata: lowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
	}
	o.SHA256 = fullChecksum(out.ChecksumSHA256, out.ChecksumType)
	return o, nil
}

// orNoBucket is notFound if the bucket is there. The answer to a HEAD has no body, and 404 in it
// may mean either.
func (s *Store) orNoBucket(ctx context.Context, notFound error) error {
	_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.cfg.Bucket})
	if err == nil {
		return notFound
	}
	err = s.translate(ctx, "look for the bucket", s.cfg.Bucket, err)
	if errors.Is(err, artifacts.ErrNotFound) {
		return fmt.Errorf("s3: bucket %s: %w", s.cfg.Bucket, errNoBucket)
	}
	if errors.Is(err, errDenied) {
		return notFound // the key may read objects without being allowed to ask for the bucket
	}
	return err
}

// fullChecksum is the store's SHA-256 of the whole object. That of a multipart upload is one of
// the parts' checksums ("…-3") and proves nothing about the whole.
func fullChecksum(base64 *string, kind types.ChecksumType) artifacts.Digest {
	if base64 == nil || kind == types.ChecksumTypeComposite || strings.Contains(*base64, "-") {
		return artifacts.Digest{}
	}
	return decodeChecksum(*base64)
}

// Get implements [artifacts.BlobReader]. The Object has no SHA256: the SDK would then hash every
// read, and callers that want proof hash for themselves.
func (s *Store) Get(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Length == 0 {
		return s.getNothing(ctx, key, r)
	}
	header, err := rangeHeader(r)
	if err != nil {
		return nil, artifacts.Object{}, err
	}
	// The reader outlives this call, and so does its context: closing the reader cancels it.
	ctx, cancel := context.WithCancelCause(ctx)
	out, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.cfg.Bucket, Key: &key, Range: header})
	if err != nil {
		err = s.translate(ctx, "get", key, err)
		cancel(nil)
		return nil, artifacts.Object{}, err
	}
	want, size, err := extent(r, out)
	if err != nil {
		cancel(nil)
		_ = out.Body.Close()
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w: %w", key, artifacts.ErrStoreUnavailable, err)
	}
	o := artifacts.Object{
		Key: key, Size: size, ContentType: aws.ToString(out.ContentType),
		Metadata: lowerKeys(out.Metadata), LastModified: aws.ToTime(out.LastModified),
	}
	return &countedReader{
		store: s, ctx: ctx, cancel: cancel, key: key, body: out.Body, left: want,
		patience: time.AfterFunc(never, func() { cancel(errSilent) }),
	}, o, nil
}

// getNothing answers a range of no bytes, which HTTP cannot ask for.
func (s *Store) getNothing(ctx context.Context, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	o, err := s.Head(ctx, key)
	if err != nil {
		return nil, artifacts.Object{}, err
	}
	if r.Offset < 0 || r.Offset > o.Size {
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", key, artifacts.ErrBadRange)
	}
	return http.NoBody, o, nil
}

func rangeHeader(r artifacts.ByteRange) (*string, error) {
	switch {
	case r == artifacts.WholeObject:
		return nil, nil
	case r.Offset < 0:
		return nil, fmt.Errorf("%w: offset %d", artifacts.ErrBadRange, r.Offset)
	case r.Length < 0:
		return aws.String(fmt.Sprintf("bytes=%d-", r.Offset)), nil
	}
	return aws.String(fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1)), nil
}

// extent is how many bytes the answer must bring, and the size of the whole object.
func extent(r artifacts.ByteRange, out *s3.GetObjectOutput) (want, size int64, err error) {
	if r == artifacts.WholeObject {
		if out.ContentLength == nil || *out.ContentLength < 0 {
			return 0, 0, errors.New("the store does not say how long the object is")
		}
		return *out.ContentLength, *out.ContentLength, nil
	}
	first, last, size, ok := parseContentRange(aws.ToString(out.ContentRange))
	if !ok {
		return 0, 0, fmt.Errorf("the store ignored the range: Content-Range is %q", aws.ToString(out.ContentRange))
	}
	end := size - 1
	if r.Length > 0 {
		end = min(end, r.Offset+r.Length-1)
	}
	if first != r.Offset || last != end {
		return 0, 0, fmt.Errorf("the store sends bytes %d to %d of %d, not %d to %d", first, last, size, r.Offset, end)
	}
	return last - first + 1, size, nil
}

// parseContentRange reads "bytes first-last/size".
func parseContentRange(h string) (first, last, size int64, ok bool) {
	h, ok = strings.CutPrefix(h, "bytes ")
	if !ok {
		return 0, 0, 0, false
	}
	span, total, ok1 := strings.Cut(h, "/")
	a, b, ok2 := strings.Cut(span, "-")
	if !ok1 || !ok2 {
		return 0, 0, 0, false
	}
	first, err1 := strconv.ParseInt(a, 10, 64)
	last, err2 := strconv.ParseInt(b, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	return first, last, size, errors.Join(err1, err2, err3) == nil
}

// never is longer than any process lives: a timer that is armed later.
const never time.Duration = 1 << 62

var errSilent = errors.New("the store fell silent in the middle of an object")

// countedReader reads exactly as many bytes as the answer promised, or fails.
type countedReader struct {
	store    *Store
	ctx      context.Context // of the request: cancelled to abort it
	cancel   context.CancelCauseFunc
	key      string
	body     io.ReadCloser
	left     int64
	patience *time.Timer // armed while a Read waits for the store
	err      error       // the last word; it stays
}

func (r *countedReader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	r.patience.Reset(r.store.cfg.ResponseTimeout)
	n, err := r.body.Read(p)
	r.patience.Stop()
	r.left -= int64(n)
	switch {
	case r.left < 0:
		r.err = r.fault(errors.New("the store sent more than it promised"))
		return 0, r.err
	case err == io.EOF && r.left > 0:
		r.err = r.fault(io.ErrUnexpectedEOF)
	case err == io.EOF:
		r.err = io.EOF
	case err != nil:
		r.err = r.fault(err)
	}
	return n, r.err
}

func (r *countedReader) fault(err error) error {
	if cause := context.Cause(r.ctx); errors.Is(cause, errSilent) {
		return fmt.Errorf("s3: get %s: %w: %w for %v", r.key, artifacts.ErrStoreUnavailable, errSilent, r.store.cfg.ResponseTimeout)
	} else if cause != nil {
		return fmt.Errorf("s3: get %s: %w", r.key, r.ctx.Err())
	}
	return fmt.Errorf("s3: get %s: %w, %d bytes are missing: %w", r.key, artifacts.ErrStoreUnavailable, r.left, err)
}

// Close ends the read. One that is not finished drops its connection rather than drain it.
func (r *countedReader) Close() error {
	r.patience.Stop()
	if r.err != io.EOF {
		r.cancel(context.Canceled)
	}
	err := r.body.Close()
	r.cancel(context.Canceled)
	if r.err == nil {
		r.err = errors.New("read after Close")
	}
	return err
}
