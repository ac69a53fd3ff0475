package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
)

const (
	// partBatch is how many parts are asked for at once, and how many are hashed ahead. Their URLs
	// must not grow old before they are used.
	partBatch = 8
	// partTries bounds how often one part is asked for anew, beyond the retries of each request:
	// sending a large part once takes longer than all of those may.
	partTries = 3
	// uploadRounds bounds how often an upload is gone through because the store lost some of it.
	uploadRounds = 3
)

// partsUpload is one file on its way in parts.
type partsUpload struct {
	c        *Client
	artifact types.Uuid
	src      Source
	partSize int64
	count    int
	progress func(int64)

	told  atomic.Int64 // bytes that progress was told of and that still count
	moved atomic.Int64 // bytes that were sent and taken
}

// uploadParts sends the parts that are not there yet, several at once, and has the whole proved.
// Every part is hashed, also those that are there: that is what tells that they are the file's.
// moved is how many bytes were sent, whatever the error.
func (c *Client) uploadParts(ctx context.Context, s types.StagedFile, src Source, progress func(int64)) (moved int64, err error) {
	u := &partsUpload{c: c, artifact: s.ArtifactId, src: src}
	if s.Upload.PartSize != nil && s.Upload.Parts != nil && *s.Upload.PartSize > 0 {
		u.partSize, u.count = *s.Upload.PartSize, int(*s.Upload.Parts)
	}
	if u.partSize == 0 || int64(u.count) != (src.Size+u.partSize-1)/u.partSize {
		return 0, fmt.Errorf("the service's parts do not make up a file of %d bytes; use a client of its version", src.Size)
	}
	u.progress = func(n int64) {
		u.told.Add(n)
		progress(n)
	}
	for round := 1; ; round++ {
		var parts []types.Part
		if parts, err = u.send(ctx); err == nil {
			err = u.complete(ctx, parts)
		}
		if err == nil || !uploadLost(err) || round == uploadRounds || ctx.Err() != nil {
			return u.moved.Load(), err
		}
		progress(-u.told.Swap(0))
	}
}

// uploadLost reports whether the store has lost an upload, or parts of it: what is missing is
// asked for again, and sent again.
func uploadLost(err error) bool {
	var s *StoreError
	return errors.Is(err, ErrNotUploaded) || errors.As(err, &s) && s.Status == http.StatusNotFound
}

// send hashes the parts one after the other, those that are not known yet, and sends those that are not
// there while it goes on.
func (u *partsUpload) send(ctx context.Context) ([]types.Part, error) {
	file, err := u.src.sections()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.close() }() // it was only read
	parts := make([]types.Part, u.count)
	hashed := make(chan types.Part, partBatch)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(hashed)
		for i := range parts {
			part, err := u.hash(ctx, file, i+1)
			if err != nil {
				return err
			}
			parts[i] = part
			select {
			case hashed <- part:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	group.Go(func() error { return u.sendHashed(ctx, file, hashed) })
	return parts, group.Wait()
}

// place is where part n lies in the file; parts are counted from 1.
func (u *partsUpload) place(n int) (offset, length int64) {
	offset = int64(n-1) * u.partSize
	return offset, min(u.partSize, u.src.Size-offset)
}

func (u *partsUpload) hash(ctx context.Context, file sections, n int) (types.Part, error) {
	offset, length := u.place(n)
	if digest, ok := u.src.pieces.digest(n, u.partSize); ok {
		return types.Part{Number: int32(n), Size: length, Sha256: digest}, nil
	}
	section, err := file.open(offset, length)
	if err != nil {
		return types.Part{}, err
	}
	defer section.Close()
	h := sha256.New()
	read, err := io.Copy(h, &watched{r: section, ctx: ctx})
	if err == nil && read != length {
		err = ErrSourceChanged
	}
	return types.Part{Number: int32(n), Size: length, Sha256: "sha256:" + hex.EncodeToString(h.Sum(nil))}, err
}

// sendHashed asks where hashed parts go, a few at a time, and sends those that are pending.
func (u *partsUpload) sendHashed(ctx context.Context, file sections, hashed <-chan types.Part) error {
	puts, ctx := errgroup.WithContext(ctx)
	puts.SetLimit(u.c.largeParallel)
	err := func() error {
		for batch := takeParts(hashed); len(batch) > 0; batch = takeParts(hashed) {
			answers, err := u.c.requestParts(ctx, u.artifact, batch)
			if err != nil {
				return err
			}
			for i, to := range answers {
				if to.State != "pending" {
					u.progress(batch[i].Size)
					continue
				}
				puts.Go(func() error { return u.sendPart(ctx, file, batch[i], to) })
			}
		}
		return nil
	}()
	if failed := puts.Wait(); failed != nil {
		return failed
	}
	return err
}

// takeParts waits for a part and takes those that are ready besides, at most partBatch. None means
// that there are no more.
func takeParts(hashed <-chan types.Part) []types.Part {
	first, ok := <-hashed
	if !ok {
		return nil
	}
	batch := []types.Part{first}
	for len(batch) < partBatch {
		select {
		case part, ok := <-hashed:
			if !ok {
				return batch
			}
			batch = append(batch, part)
		default:
			return batch
		}
	}
	return batch
}

// requestParts asks where parts go; the answer is in their order.
func (c *Client) requestParts(ctx context.Context, artifact types.Uuid, parts []types.Part) ([]types.PartUpload, error) {
	answer, err := get[types.PartsResponse](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.RequestParts(ctx, artifact, types.PartsRequest{Parts: parts})
	})
	if err != nil {
		return nil, err
	}
	if len(answer.Parts) != len(parts) {
		return nil, fmt.Errorf("the service answered %d parts for %d", len(answer.Parts), len(parts))
	}
	for i, to := range answer.Parts {
		if to.Number != parts[i].Number || to.State == "pending" && to.Url == nil {
			return nil, fmt.Errorf("the service did not say where part %d goes", parts[i].Number)
		}
	}
	return answer.Parts, nil
}

// sendPart sends one part. A URL that expired is replaced.
func (u *partsUpload) sendPart(ctx context.Context, file sections, part types.Part, to types.PartUpload) error {
	offset, length := u.place(int(part.Number))
	src := Source{Size: length, Open: func() (io.ReadCloser, error) { return file.open(offset, length) }}
	for try := 1; ; try++ {
		err := u.c.sendTo(ctx, types.Upload{Method: to.Method, Url: to.Url, Headers: to.Headers}, src, u.progress)
		if err == nil {
			u.moved.Add(part.Size)
			return nil
		}
		var s *StoreError
		stale := errors.As(err, &s) && s.stale()
		if try == partTries || ctx.Err() != nil || !stale && !worthRetrying(err) {
			return fmt.Errorf("part %d of %d: %w", part.Number, u.count, err)
		}
		again, askErr := u.c.requestParts(ctx, u.artifact, []types.Part{part})
		if askErr != nil {
			return askErr
		}
		if to = again[0]; to.State != "pending" {
			u.moved.Add(part.Size) // it arrived, though its answer did not
			u.progress(part.Size)
			return nil
		}
	}
}

const (
	// proofPace is the slowest, in bytes a second, that the service is expected to read an object
	// back, and proofPatience what is allowed on top.
	proofPace     = 4 << 20
	proofPatience = 2 * time.Minute
	// longAnswer is how long an answer has been waited for, at least, when the call is worth repeating
	// beyond the usual retries: the service was at work.
	longAnswer = retryElapsed + dialTimeout
)

// complete has the parts made one object, and waits until the service has read it back. A connection
// that was silent for too long on the way is made again: the service goes on meanwhile.
func (u *partsUpload) complete(ctx context.Context, parts []types.Part) error {
	until := time.Now().Add(proofPatience + time.Duration(u.src.Size/proofPace)*time.Second)
	for {
		began := time.Now()
		_, err := ask(ctx, u.c, proofPatience, func(ctx context.Context) (types.Artifact, error) {
			return answer[types.Artifact](u.c.raw.CompleteArtifact(ctx, u.artifact, types.CompleteRequest{Parts: parts}))
		})
		if errors.Is(err, ErrDigestMismatch) {
			// What was hashed and what was sent are reads of one file.
			return fmt.Errorf("%w (%w)", ErrSourceChanged, err)
		}
		if err == nil || !worthRetrying(err) || ctx.Err() != nil || time.Since(began) < longAnswer || time.Now().After(until) {
			return err
		}
	}
}
