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
	// readBlock bounds the memory of ReadDigest, in bytes. While a block is hashed the next bytes come
	// to lie in the connection's own buffer: reading in another goroutine only costs the change from
	// one to the other.
	readBlock = 512 << 10
)

// ReadDigest proves an object by reading it back: it returns the SHA-256 of its bytes, size of
// them. A read that breaks off is resumed where it ended, so long as there is progress. Memory is
// bounded at half a mebibyte, whatever the size. ErrSizeMismatch when the object has another size,
// ErrNotFound when it is not there, and otherwise the fault of the last attempt.
func ReadDigest(ctx context.Context, store BlobReader, key string, size int64) (Digest, error) {
	r := readback{store: store, key: key, size: size, sum: sha256.New()}
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
	block := make([]byte, min(readBlock, r.size+1)) // one more, to notice that there is more
	for err == nil {
		var n int
		n, err = body.Read(block)
		r.sum.Write(block[:n])
		r.offset += int64(n)
	}
	if err == io.EOF {
		err = nil
	}
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
