package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactd/artifactd/api/types"
)

// MaxStageFiles is how many files the service takes in one staging call.
const MaxStageFiles = 1000

// continueAbove is the size in bytes from which the service is asked whether it wants a body at all.
const continueAbove = 1 << 20

// StageFiles declares up to [MaxStageFiles] files of the lease's manifest. A file that comes back
// without Upload needs no bytes.
func (c *Client) StageFiles(ctx context.Context, l Lease, files []Source) ([]types.StagedFile, error) {
	return c.stageFiles(ctx, l, files, false)
}

// stageFiles is StageFiles, which with bulk may say of small files that they go together. A service
// that knows no such thing says how to send each.
func (c *Client) stageFiles(ctx context.Context, l Lease, files []Source, bulk bool) ([]types.StagedFile, error) {
	params := &types.StageFilesParams{}
	if bulk {
		params.Bulk = &bulk
	}
	body := types.StageRequest{Token: l.Token, Files: make([]types.StageFile, len(files))}
	for i, f := range files {
		if err := checkPath(f.Path); err != nil {
			return nil, err
		}
		body.Files[i] = types.StageFile{Path: f.Path, Digest: f.Digest, Size: f.Size}
		if f.MediaType != "" {
			body.Files[i].MediaType = &files[i].MediaType
		}
	}
	staged, err := get[types.StageResponse](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.StageFiles(ctx, l.LeaseId, params, body)
	})
	if err == nil && len(staged.Files) != len(files) {
		err = fmt.Errorf("the service answered %d staged files for %d", len(staged.Files), len(files))
	}
	return staged.Files, err
}

// uploadStaged moves one file, and tells how many bytes of it. A URL that expired meanwhile is
// replaced by staging again.
func (c *Client) uploadStaged(ctx context.Context, l Lease, s types.StagedFile, src Source, progress func(int64)) (int64, error) {
	moved, err := c.upload(ctx, s, src, progress)
	if err == nil || !staleURL(err, s.Upload) {
		return moved, err
	}
	progress(-moved)
	return c.restage(ctx, l, src, progress)
}

// restage stages one file again, and moves it if it is not there by now.
func (c *Client) restage(ctx context.Context, l Lease, src Source, progress func(int64)) (int64, error) {
	again, err := c.StageFiles(ctx, l, []Source{src})
	if err != nil {
		return 0, err
	}
	if again[0].Upload == nil {
		progress(src.Size)
		return 0, nil
	}
	return c.upload(ctx, again[0], src, progress)
}

// staleURL reports whether a refused upload may have been refused for its URL's age.
func staleURL(err error, u *types.Upload) bool {
	var s *StoreError
	return u.Kind == "single" &&
		(errors.As(err, &s) && s.stale() || errors.Is(err, ErrNotUploaded) && time.Now().After(u.ExpiresAt))
}

// Upload sends the bytes of one staged file to where staging said, and has them proved. The bytes go
// to the store by presigned URLs with exactly the given headers and without our credentials, or
// through the service when the URLs are the service's own. Of a file in parts only those are sent that
// are not there yet.
func (c *Client) Upload(ctx context.Context, s types.StagedFile, src Source, progress func(int64)) error {
	if progress == nil {
		progress = func(int64) {}
	}
	_, err := c.upload(ctx, s, src, progress)
	return err
}

// upload is Upload, and tells how many bytes were sent.
func (c *Client) upload(ctx context.Context, s types.StagedFile, src Source, progress func(int64)) (moved int64, err error) {
	switch {
	case s.Upload == nil:
		return 0, nil
	case s.Upload.Kind == "multipart":
		return c.uploadParts(ctx, s, src, progress)
	case s.Upload.Kind != "single" || s.Upload.Url == nil:
		return 0, fmt.Errorf("the service asks for an upload of kind %q, which this client does not know; use a newer one", s.Upload.Kind)
	}
	if err := c.sendTo(ctx, *s.Upload, src, progress); err != nil {
		return 0, err
	}
	target, err := c.resolve(*s.Upload.Url)
	if err != nil || c.own(target) {
		return src.Size, err // the service proved them on their way
	}
	_, err = ask(ctx, c, proofTime, func(ctx context.Context) (types.Artifact, error) {
		return answer[types.Artifact](c.raw.CompleteArtifact(ctx, s.ArtifactId, types.CompleteRequest{}))
	})
	return src.Size, err
}

// sendTo sends the bytes to a URL, repeatedly if need be.
func (c *Client) sendTo(ctx context.Context, u types.Upload, src Source, progress func(int64)) error {
	target, err := c.resolve(*u.Url)
	if err != nil {
		return err
	}
	weight := int64(1)
	if src.Size > smallBody {
		weight = int64(c.parallel / c.largeParallel)
	}
	_, err = retry(ctx, func(ctx context.Context) (struct{}, error) {
		if err := c.slots.Acquire(ctx, weight); err != nil {
			return struct{}{}, context.Cause(ctx)
		}
		defer c.slots.Release(weight)
		return struct{}{}, c.put(ctx, target, c.own(target), &u, src, progress)
	})
	return err
}

// put sends the bytes once. Keys are never reused, so a store that already has the object got it
// from an earlier attempt whose answer was lost; completing proves it.
func (c *Client) put(ctx context.Context, target *url.URL, own bool, u *types.Upload, src Source, progress func(int64)) error {
	body, err := src.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	ctx, idle := stopWhenIdle(ctx, c.stall, target.Host)
	defer idle.end()
	counted := newCountedBody(body, src.Size, progress, idle)
	req, err := putRequest(ctx, target, u, src.Size, counted)
	if err != nil {
		return err
	}
	var resp *http.Response
	if own {
		if src.Size > continueAbove {
			req.Header.Set("Expect", "100-continue")
		}
		resp, err = c.Do(req)
	} else {
		resp, err = c.transfer(req)
	}
	if err != nil {
		counted.takeBack()
		if changed := counted.fault.Load(); changed != nil {
			return *changed
		}
		return err
	}
	defer drain(resp)
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode <= 299, resp.StatusCode == http.StatusPreconditionFailed && !own:
		counted.finish()
		return nil
	case own:
		err = problemFrom(resp)
	default:
		err = storeError(resp)
	}
	if errors.Is(err, ErrDigestMismatch) {
		// What was hashed and what was sent are reads of one file.
		err = fmt.Errorf("%w (%w)", ErrSourceChanged, err)
	}
	counted.takeBack()
	return err
}

func putRequest(ctx context.Context, target *url.URL, u *types.Upload, size int64, body io.Reader) (*http.Request, error) {
	method := http.MethodPut
	if u.Method != nil {
		method = *u.Method
	}
	if size == 0 {
		body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, err
	}
	for name, value := range u.Headers {
		if http.CanonicalHeaderKey(name) == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	req.ContentLength = size
	return req, nil
}

// countedBody tells progress, and refuses a source that is shorter or longer than it was. The
// transport may still read it when the answer is here already: that is not told any more.
type countedBody struct {
	r     io.Reader
	size  int64
	left  atomic.Int64
	fault atomic.Pointer[error]
	idle  *idleness

	mu   sync.Mutex
	tell func(int64)
	told int64
	over bool
}

func newCountedBody(r io.Reader, size int64, tell func(int64), idle *idleness) *countedBody {
	b := &countedBody{r: r, size: size, tell: tell, idle: idle}
	b.left.Store(size)
	return b
}

// Read is called when the connection can take more. A file that is slow to read is no idle connection.
func (b *countedBody) Read(p []byte) (int, error) {
	b.idle.pause()
	defer b.idle.watch()
	n, err := b.r.Read(p)
	left := b.left.Add(-int64(n))
	b.count(int64(n))
	if left < 0 || err == io.EOF && left > 0 {
		err = ErrSourceChanged
	}
	if err != nil && err != io.EOF {
		b.fault.Store(&err)
	}
	return n, err
}

func (b *countedBody) count(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.told += n
		b.tell(n)
	}
}

// end leaves progress at n bytes of this body.
func (b *countedBody) end(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.tell(n - b.told)
	b.told = n
}

func (b *countedBody) takeBack() { b.end(0) }

// finish counts also what the store did not ask for, because it had the object.
func (b *countedBody) finish() { b.end(b.size) }
