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

// RangeHeader is the Range header for r, "" for the whole object. r.Length must not be 0.
func RangeHeader(r artifacts.ByteRange) (string, error) {
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

// Nothing answers a range of no bytes, which HTTP cannot ask for, of an object that is there.
func Nothing(o artifacts.Object, r artifacts.ByteRange) (io.ReadCloser, artifacts.Object, error) {
	if r.Offset < 0 || r.Offset > o.Size {
		return nil, artifacts.Object{}, fmt.Errorf("s3: get %s: %w", o.Key, artifacts.ErrBadRange)
	}
	return http.NoBody, o, nil
}

// Extent is how many bytes the answer to a GET must bring, and the size of the whole object.
// length is the answer's Content-Length, below 0 when it has none.
func Extent(r artifacts.ByteRange, length int64, contentRange string) (want, size int64, err error) {
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

// Reader reads exactly as many bytes as the answer promised, or fails.
type Reader struct {
	ctx      context.Context // of the request: cancelled to abort it
	cancel   context.CancelCauseFunc
	key      string
	body     io.ReadCloser
	left     int64
	silence  time.Duration
	patience *time.Timer // armed while a Read waits for the store
	err      error       // the last word; it stays
}

// NewReader reads want bytes of body. ctx is the request's, and cancel ends it; between two bytes
// the store may be silent for so long.
func NewReader(ctx context.Context, cancel context.CancelCauseFunc, key string, body io.ReadCloser, want int64, silence time.Duration) *Reader {
	return &Reader{
		ctx: ctx, cancel: cancel, key: key, body: body, left: want, silence: silence,
		patience: time.AfterFunc(never, func() { cancel(errSilent) }),
	}
}

func (r *Reader) Read(p []byte) (int, error) {
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

func (r *Reader) fault(err error) error {
	if cause := context.Cause(r.ctx); errors.Is(cause, errSilent) {
		return fmt.Errorf("s3: get %s: %w: %w for %v", r.key, artifacts.ErrStoreUnavailable, errSilent, r.silence)
	} else if cause != nil {
		return fmt.Errorf("s3: get %s: %w", r.key, r.ctx.Err())
	}
	return fmt.Errorf("s3: get %s: %w, %d bytes are missing: %w", r.key, artifacts.ErrStoreUnavailable, r.left, err)
}

// Close ends the read. One that is not finished drops its connection rather than drain it.
func (r *Reader) Close() error {
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
