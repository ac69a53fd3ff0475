package client

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/artifactd/artifactd/api/types"
)

const (
	// kindBulk is the kind of upload of a file that is sent together with others.
	kindBulk = "bulk"
	// bulkLeast is how many files a tree has at least for any to be sent together: one more request
	// costs less than one more copy through the service.
	bulkLeast = 8
	// bulkFiles and bulkBytes are how many files, and bytes of them, go into one archive at most. The
	// service takes up to 1,000 and 32 MiB; less is sent again when a connection breaks.
	bulkFiles = 250
	bulkBytes = 8 << 20
	// bulkParallel is how many archives are under way at once. The service has a number of files of
	// each on their way into its store.
	bulkParallel = 2
)

// bulkBatches cuts files into what goes into one archive each.
func bulkBatches(files []stagedSource) [][]stagedSource {
	var batches [][]stagedSource
	var size int64
	first := 0
	for i, f := range files {
		if i > first && (i-first == bulkFiles || size+f.src.Size > bulkBytes) {
			batches = append(batches, files[first:i])
			first, size = i, 0
		}
		size += f.src.Size
	}
	if first < len(files) {
		batches = append(batches, files[first:])
	}
	return batches
}

// sendBulk moves files in one archive. After an attempt that failed only those are sent again that
// the service does not have, for as long as every attempt gets further.
func (t *tree) sendBulk(ctx context.Context, files []stagedSource) error {
	a := &archive{t: t, left: files}
	for {
		before := len(a.left)
		_, err := retry(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, a.attempt(ctx) })
		if err == nil || !worthRetrying(err) || len(a.left) == before {
			return err
		}
	}
}

// archive is files that are sent together until all have arrived.
type archive struct {
	t     *tree
	left  []stagedSource
	tried bool
}

// attempt sends what is left once.
func (a *archive) attempt(ctx context.Context) error {
	if a.tried {
		if err := a.restage(ctx); err != nil || len(a.left) == 0 {
			return err
		}
	}
	a.tried = true
	target, err := a.t.c.resolve(*a.left[0].Upload.Url)
	if err != nil {
		return err
	}
	c := a.t.c
	weight := int64(max(1, c.parallel/bulkParallel))
	if err := c.slots.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	defer c.slots.Release(weight)
	items, err := c.putArchive(ctx, target, a.left, a.t.tell)
	if err != nil {
		return err
	}
	return a.take(items)
}

// restage drops the files that have arrived by now, and brings up to date where the others go.
func (a *archive) restage(ctx context.Context) error {
	sources := make([]Source, len(a.left))
	for i, f := range a.left {
		sources[i] = f.src
	}
	staged, err := a.t.c.stageFiles(ctx, a.t.lease, sources, true)
	if err != nil {
		return err
	}
	var left []stagedSource
	for i, f := range a.left {
		f.StagedFile = staged[i]
		switch {
		case f.Upload == nil: // an earlier attempt brought it, though its answer did not come
			a.t.tell(f)(f.src.Size)
			if err := a.t.count(f)(f.src.Size, nil); err != nil {
				return err
			}
		case f.Upload.Kind != kindBulk:
			if err := a.t.count(f)(a.t.c.upload(ctx, f.StagedFile, f.src, a.t.tell(f))); err != nil {
				return f.failed(err)
			}
		default:
			left = append(left, f)
		}
	}
	a.left = left
	return nil
}

// take counts what arrived, of which progress has been told. What failed for now stays.
func (a *archive) take(items []types.CompletedArtifact) error {
	var left []stagedSource
	var fault error
	for i, f := range a.left {
		if items[i].Problem == nil {
			if err := a.t.count(f)(f.src.Size, nil); err != nil {
				return err
			}
			continue
		}
		left = append(left, f)
		a.t.tell(f)(-f.src.Size)
		p, err := problemOf(*items[i].Problem)
		if err != nil {
			return err
		}
		err = p
		if errors.Is(err, ErrDigestMismatch) {
			err = fmt.Errorf("%w (%w)", ErrSourceChanged, err)
		}
		if fault == nil || !worthRetrying(err) {
			fault = f.failed(err)
		}
	}
	a.left = left
	return fault
}

// putArchive sends files once. Without an error the answer is in their order, and all of their bytes
// have been told.
func (c *Client) putArchive(ctx context.Context, target *url.URL, files []stagedSource, tell func(stagedSource) func(int64)) ([]types.CompletedArtifact, error) {
	ctx, idle := stopWhenIdle(ctx, c.stall, target.Host)
	defer idle.end()
	body := newArchiveBody(files, tell, idle)
	defer body.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, target.String(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	if req.ContentLength = archiveSize(files); req.ContentLength > continueAbove {
		req.Header.Set("Expect", "100-continue")
	}
	answered, err := answer[types.CompleteManyResponse](c.Do(req))
	if fault := body.close(); fault != nil {
		err = fault
	}
	if err == nil && len(answered.Items) != len(files) {
		err = fmt.Errorf("the service answered for %d artifacts of %d", len(answered.Items), len(files))
	}
	if err != nil {
		body.takeBack()
	}
	return answered.Items, err
}

// tarBlock is the unit of length in a tar archive, which ends with two of them.
const tarBlock = 512

// archiveSize is the length in bytes of what writeArchive writes.
func archiveSize(files []stagedSource) int64 {
	n := int64(2 * tarBlock)
	for _, f := range files {
		n += tarBlock + (f.src.Size+tarBlock-1)/tarBlock*tarBlock
	}
	return n
}

// archiveBody is an archive that is made as it is read.
type archiveBody struct {
	*io.PipeReader
	files []stagedSource
	tell  func(stagedSource) func(int64)
	idle  *idleness
	done  chan struct{}
	// told is how many files were told to progress, and fault what was wrong with one; the transport
	// sees the pipe's error alone. Both are for after done.
	told  int
	fault error
}

func newArchiveBody(files []stagedSource, tell func(stagedSource) func(int64), idle *idleness) *archiveBody {
	r, w := io.Pipe()
	b := &archiveBody{PipeReader: r, files: files, tell: tell, idle: idle, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		buffered := bufio.NewWriterSize(w, 64<<10)
		err := b.write(buffered)
		if err == nil {
			err = buffered.Flush()
		}
		_ = w.CloseWithError(err) // it never fails
	}()
	return b
}

// Read is called when the connection can take more. Files that are slow to read are no idle connection.
func (b *archiveBody) Read(p []byte) (int, error) {
	b.idle.pause()
	defer b.idle.watch()
	return b.PipeReader.Read(p)
}

// close waits until no file is read any more, and tells what was wrong with one.
func (b *archiveBody) close() error {
	_ = b.Close() // it never fails
	<-b.done
	return b.fault
}

// takeBack takes back what was told; close was called before.
func (b *archiveBody) takeBack() {
	for _, f := range b.files[:b.told] {
		b.tell(f)(-f.src.Size)
	}
}

func (b *archiveBody) write(w io.Writer) error {
	archive := tar.NewWriter(w)
	for _, f := range b.files {
		err := archive.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.ArtifactId.String(), Size: f.src.Size, Mode: 0o600, Format: tar.FormatUSTAR,
		})
		if err != nil {
			return err
		}
		readErr, err := copySource(archive, f.src)
		if readErr != nil {
			b.fault = f.failed(readErr)
			return readErr
		}
		if err != nil {
			return err
		}
		b.told++
		b.tell(f)(f.src.Size)
	}
	return archive.Close()
}

// copySource writes all of a file, and tells a fault of the file from one of writing.
func copySource(w io.Writer, src Source) (readErr, writeErr error) {
	r, err := src.Open()
	if err != nil {
		return err, nil
	}
	defer r.Close()
	from := &faultyReader{r: r}
	n, err := io.Copy(w, io.LimitReader(from, src.Size))
	switch {
	case from.err != nil:
		return from.err, nil
	case err != nil:
		return nil, err
	case n < src.Size:
		return ErrSourceChanged, nil
	}
	if more, err := io.ReadFull(r, make([]byte, 1)); more > 0 {
		return ErrSourceChanged, nil
	} else if err != io.EOF {
		return err, nil
	}
	return nil, nil
}

// faultyReader keeps the error that a read ended with, if it was not the end.
type faultyReader struct {
	r   io.Reader
	err error
}

func (f *faultyReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}
