package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// readTries is how often a read is resumed without any byte of progress in between.
	readTries = 6
	// readBlock and readAhead bound the memory of ReadDigest: the next blocks arrive while one
	// is hashed, because SHA-256 is as slow as a fast network.
	readBlock = 256 << 10
	readAhead = 4
)

// ReadDigest proves an object by reading it back: it returns the SHA-256 of its bytes, size of
// them. A read that breaks off is resumed where it ended, so long as there is progress. Memory is
// bounded at a mebibyte, whatever the size. ErrSizeMismatch when the object has another size,
// ErrNotFound when it is not there, and otherwise the fault of the last attempt.
func ReadDigest(ctx context.Context, store BlobReader, key string, size int64) (Digest, error) {
	r := readback{store: store, key: key, size: size, sum: sha256.New(), free: make(chan []byte, readAhead)}
	for range readAhead {
		r.free <- make([]byte, readBlock)
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for fruitless := 0; ; {
		before := r.offset
		err := r.attempt(ctx)
		if err == nil {
			return DigestFromSum(r.sum.Sum(nil))
		}
		if r.offset > before {
			fruitless = 0
			pause.Reset()
		}
		if fruitless++; fruitless == readTries || !errors.Is(err, ErrStoreUnavailable) || ctx.Err() != nil {
			return Digest{}, fmt.Errorf("read back %s from byte %d of %d: %w", key, r.offset, size, err)
		}
		if err := wait(ctx, pause.NextBackOff()); err != nil {
			return Digest{}, fmt.Errorf("read back %s from byte %d of %d: %w", key, r.offset, size, err)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readback is one object being read, in one attempt or more.
type readback struct {
	store  BlobReader
	key    string
	size   int64
	offset int64 // every byte before it is hashed
	sum    hash.Hash
	free   chan []byte // blocks that nobody uses
}

// attempt reads from the offset to the end. Every byte that arrived counts, however it ends.
func (r *readback) attempt(ctx context.Context) error {
	if r.offset == r.size && r.size > 0 {
		return nil // the last attempt failed behind the last byte
	}
	body, o, err := r.store.Get(ctx, r.key, ByteRange{Offset: r.offset, Length: -1})
	if errors.Is(err, ErrBadRange) {
		return fmt.Errorf("%w: the object has no byte %d", ErrSizeMismatch, r.offset)
	}
	if err != nil {
		return err
	}
	if o.Size != r.size {
		_ = body.Close() // nothing of it is wanted
		return fmt.Errorf("%w: the object has %d bytes, %d were declared", ErrSizeMismatch, o.Size, r.size)
	}
	full, done := make(chan []byte, readAhead), make(chan error, 1)
	go func() { done <- r.fetch(body, full) }()
	for block := range full {
		r.sum.Write(block)
		r.offset += int64(len(block))
		r.free <- block[:readBlock]
	}
	err = <-done
	_ = body.Close() // the bytes that count have arrived; the others will be asked for again
	switch {
	case err != nil:
		return err
	case r.offset > r.size:
		return fmt.Errorf("%w: more than the declared %d bytes came", ErrSizeMismatch, r.size)
	case r.offset < r.size:
		return fmt.Errorf("%w: the read ended early", ErrStoreUnavailable)
	}
	return nil
}

// fetch reads the body into free blocks and passes them on, until it ends or fails.
func (r *readback) fetch(body io.Reader, full chan<- []byte) error {
	defer close(full)
	for {
		block := <-r.free
		n, err := io.ReadFull(body, block)
		if n > 0 {
			full <- block[:n]
		} else {
			r.free <- block
		}
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return nil // ReadFull's own word for a body that ended within a block
		case err != nil:
			return err
		}
	}
}
