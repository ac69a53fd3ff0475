package bucket

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/artifactd/artifactd/artifacts"
)

// BodyError is a fault of the bytes, or of whoever sends them, never of the store.
type BodyError struct{ err error }

func (e *BodyError) Error() string { return e.err.Error() }
func (e *BodyError) Unwrap() error { return e.err }

// body passes on exactly the bytes that were declared. The last ones leave only after
// the source has ended and the digest is right: until then the request is incomplete, and no
// store keeps the object of an incomplete request.
type body struct {
	src    io.Reader
	size   int64
	digest artifacts.Digest

	sum  hash.Hash
	read int64 // bytes passed on

	mu    sync.Mutex // the transport may still read while the answer is looked at
	fault *BodyError // the first fault; it stays
	sent  bool       // every byte was passed on
}

func (b *body) Read(p []byte) (int, error) {
	if err := b.failure(); err != nil {
		return 0, err
	}
	if b.read == b.size {
		return 0, b.finishEmpty()
	}
	if len(p) == 0 {
		return 0, nil
	}
	if left := b.size - b.read; int64(len(p)) > left {
		p = p[:left]
	}
	n, err := b.src.Read(p)
	b.sum.Write(p[:n])
	b.read += int64(n)
	switch {
	case b.read == b.size:
		if err := b.check(err); err != nil {
			return 0, err // hold the last bytes back
		}
		b.finish()
		return n, nil
	case err == io.EOF:
		return n, b.fail(fmt.Errorf("%w: %d bytes came, %d were declared", artifacts.ErrSizeMismatch, b.read, b.size))
	case err != nil:
		return n, b.fail(err)
	}
	return n, nil
}

// check is called with every declared byte read and none of the last ones passed on.
func (b *body) check(err error) error {
	if err == nil {
		err = b.sourceEnds()
	}
	if err != io.EOF {
		return b.fail(err)
	}
	if got, _ := artifacts.DigestFromSum(b.sum.Sum(nil)); got != b.digest {
		return b.fail(fmt.Errorf("%w: the bytes hash to %s, %s was declared", artifacts.ErrDigestMismatch, got, b.digest))
	}
	return nil
}

// sourceEnds is io.EOF when nothing more comes.
func (b *body) sourceEnds() error {
	var one [1]byte
	for range 100 { // a Reader may return nothing a few times
		n, err := b.src.Read(one[:])
		if n > 0 {
			return fmt.Errorf("%w: more than the declared %d bytes came", artifacts.ErrSizeMismatch, b.size)
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// checkEmpty proves a body of no bytes, of which nothing would ever be read, before its request.
func (b *body) checkEmpty() error {
	if err := b.finishEmpty(); err != io.EOF {
		return err
	}
	return nil
}

// finishEmpty ends a body; one of no bytes is only checked here.
func (b *body) finishEmpty() error {
	if b.size == 0 && !b.complete() {
		if err := b.check(nil); err != nil {
			return err
		}
		b.finish()
	}
	return io.EOF
}

func (b *body) fail(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil {
		b.fault = &BodyError{err}
	}
	return b.fault
}

// failure is the body's own fault, as an error that is nil when there is none.
func (b *body) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fault == nil {
		return nil
	}
	return b.fault
}

func (b *body) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = true
}

// complete reports whether every byte was passed on, right in size and digest.
func (b *body) complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent
}

// settle sorts the failure of a request that sent the body so often. The body's own fault is not the
// store's. Where the bytes may be stored all the same, ask finds out, and returns the failure if not.
func (b *body) settle(ctx context.Context, doing, key string, attempts int, failure error, ask func() error) error {
	if fault := b.failure(); fault != nil {
		return wrap(ctx, doing, key, ErrBody, fault)
	}
	if unclear(failure, attempts) && b.complete() {
		return ask()
	}
	return failure
}

// rewindableBody is a body that can be sent again.
type rewindableBody struct {
	*body
	seeker io.Seeker
	start  int64 // where the body begins in its source
}

// Seek does what a retry needs: it tells where it is, and goes back to the beginning.
func (b *rewindableBody) Seek(offset int64, whence int) (int64, error) {
	switch {
	case whence == io.SeekCurrent && offset == 0:
		return b.read, nil
	case whence == io.SeekEnd && offset == 0:
		return b.size, nil // asked for the length; the next call goes back
	case whence == io.SeekStart && offset == 0:
		if err := b.failure(); err != nil {
			return 0, err // it would be at fault again: not worth another attempt
		}
		if _, err := b.seeker.Seek(b.start, io.SeekStart); err != nil {
			return 0, b.fail(err)
		}
		b.sum.Reset()
		b.read = 0
		return 0, nil
	}
	return 0, fmt.Errorf("seek to %d from %d: only the beginning can be gone to", offset, whence)
}

// newBody makes a body that is verified as it passes, and rewindable when src is.
func newBody(src io.Reader, size int64, digest artifacts.Digest) (*body, io.Reader) {
	b := &body{src: src, size: size, digest: digest, sum: sha256.New()}
	if seeker, ok := src.(io.Seeker); ok {
		// A pipe behind an *os.File has the method and fails here: then it is sent once.
		if start, err := seeker.Seek(0, io.SeekCurrent); err == nil {
			return b, &rewindableBody{body: b, seeker: seeker, start: start}
		}
	}
	return b, b
}
