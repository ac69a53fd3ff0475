package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/artifactd/artifactd/artifacts"
)

// Reading is what a driver can do to read an object.
type Reading interface {
	// TryHead sends a HEAD.
	TryHead(ctx context.Context, key string) (artifacts.Object, error)
	// TryGet sends a GET with this Range header, or without one when it is "".
	TryGet(ctx context.Context, key, rangeHeader string) (Answer, error)
	// BucketExists asks for the bucket.
	BucketExists(ctx context.Context) (bool, error)
}

// Answer is what a store answers to a GET.
type Answer struct {
	Object       artifacts.Object // without its size
	Body         io.ReadCloser
	Length       int64 // of the body, in bytes; below 0 when the store does not tell it
	ContentRange string
}

// Head tells of an object. The answer to a HEAD has no body, and 404 in it may mean either: a bucket
// that is missing is not taken for an object that is.
func Head(ctx context.Context, d Reading, c Config, key string) (artifacts.Object, error) {
	o, err := d.TryHead(ctx, key)
	if !errors.Is(err, artifacts.ErrNotFound) {
		return o, err
	}
	exists, askErr := d.BucketExists(ctx)
	switch {
	case askErr == nil && !exists:
		err = fmt.Errorf("s3: bucket %s: %w", c.Bucket, ErrNoBucket)
	case askErr != nil && !errors.Is(askErr, ErrDenied): // a key may read objects and not be allowed to ask for the bucket
		err = askErr
	}
	return artifacts.Object{}, err
}

// Get opens a range of an object. The Object has no SHA256: the SDKs would then hash every read, and
// callers that want proof hash for themselves.
func Get(ctx context.Context, d Reading, c Config, key string, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Length == 0 {
		o, err := Head(ctx, d, c, key)
		if err != nil {
			return nil, artifacts.Object{}, err
		}
		return nothing(o, r)
	}
	header, err := rangeHeader(r)
	if err != nil {
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", key, err)
	}
	// The reader outlives this call, and so does its context: closing the reader cancels it.
	ctx, cancel := context.WithCancelCause(ctx)
	a, err := d.TryGet(ctx, key, header)
	if err != nil {
		cancel(nil)
		return nil, artifacts.Object{}, err
	}
	want, size, err := extent(r, a.Length, a.ContentRange)
	if err != nil {
		cancel(nil)
		_ = a.Body.Close()
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w: %w", key, artifacts.ErrStoreUnavailable, err)
	}
	a.Object.Size = size
	return newReader(ctx, cancel, key, a.Body, want, c.ResponseTimeout), a.Object, nil
}

// rangeHeader is the Range header for r, "" for the whole object. r.Length must not be 0.
func rangeHeader(r artifacts.ByteRange) (string, error) {
	switch {
	case r == artifacts.WholeObject:
		return "", nil
	case r.Offset < 0:
		return "", fmt.Errorf("%w: offset %d", artifacts.ErrBadRange, r.Offset)
	case r.Length < 0:
		return fmt.Sprintf("bytes=%d-", r.Offset), nil
	}
	return fmt.Sprintf("bytes=%d-%d", r.Offset, r.Offset+r.Length-1), nil
}

// nothing answers a range of no bytes, which HTTP cannot ask for, of an object that is there.
func nothing(o artifacts.Object, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Offset < 0 || r.Offset > o.Size {
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", o.Key, artifacts.ErrBadRange)
	}
	return http.NoBody, o, nil
}

// extent is how many bytes the answer to a GET must bring, and the size of the whole object.
// length is the answer's Content-Length, below 0 when it has none.
func extent(r artifacts.ByteRange, length int64, contentRange string) (want, size int64, err error) {
	if r == artifacts.WholeObject {
		if length < 0 {
			return 0, 0, errors.New("the store does not say how long the object is")
		}
		return length, length, nil
	}
	first, last, size, ok := parseContentRange(contentRange)
	if !ok {
		return 0, 0, fmt.Errorf("the store ignored the range: Content-Range is %q", contentRange)
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

// reader reads exactly as many bytes as the answer promised, or fails.
type reader struct {
	ctx      context.Context // of the request: cancelled to abort it
	cancel   context.CancelCauseFunc
	key      string
	body     io.ReadCloser
	left     int64
	silence  time.Duration
	patience *time.Timer // armed while a Read waits for the store
	err      error       // the last word; it stays
}

// newReader reads want bytes of body. ctx is the request's, and cancel ends it; between two bytes
// the store may be silent for so long.
func newReader(ctx context.Context, cancel context.CancelCauseFunc, key string, body io.ReadCloser, want int64, silence time.Duration) *reader {
	return &reader{
		ctx: ctx, cancel: cancel, key: key, body: body, left: want, silence: silence,
		patience: time.AfterFunc(never, func() { cancel(errSilent) }),
	}
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err == nil && r.ctx.Err() != nil { // what has come already would still be given for a while
		r.err = r.fault(r.ctx.Err())
	}
	if r.err != nil {
		return 0, r.err
	}
	r.patience.Reset(r.silence)
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

func (r *reader) fault(err error) error {
	if cause := context.Cause(r.ctx); errors.Is(cause, errSilent) {
		return fmt.Errorf("s3: get %s: %w: %w for %v", r.key, artifacts.ErrStoreUnavailable, errSilent, r.silence)
	} else if cause != nil {
		return fmt.Errorf("s3: get %s: %w", r.key, r.ctx.Err())
	}
	return fmt.Errorf("s3: get %s: %w, %d bytes are missing: %w", r.key, artifacts.ErrStoreUnavailable, r.left, err)
}

// Close ends the read. One that is not finished drops its connection rather than drain it.
func (r *reader) Close() error {
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
