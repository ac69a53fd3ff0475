package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
)

const (
	// proveBatch is how many uploads are proved by one call at most.
	proveBatch = 250
	// provers is how many of those calls are under way.
	provers = 2
)

// Moved counts what an upload moved and what it did not need to.
type Moved struct {
	// UploadedBytes were sent, and taken, as the content of UploadedFiles files.
	UploadedBytes int64 `json:"uploaded_bytes"`
	UploadedFiles int64 `json:"uploaded_files"`
	// AdoptedBytes were there already: from the current version, from an attempt that was cut off,
	// or from another path of this one.
	AdoptedBytes int64 `json:"adopted_bytes"`
}

// UploadAll stages files and moves the bytes that the service does not have, many files, or several
// parts, at once: while one batch is moved the next is staged, and what has arrived is proved.
// Files of the same content are sent once. progress, when not nil, is told how many bytes more are
// there; a negative number takes some back for an attempt that failed. It may be called by several
// goroutines at once.
func (c *Client) UploadAll(ctx context.Context, l Lease, files []Source, progress func(int64)) (Moved, error) {
	if progress == nil {
		progress = func(int64) {}
	}
	first, same := distinct(files)
	t := &tree{c: c, lease: l, progress: progress, bulk: len(first) >= bulkLeast, started: map[uuid.UUID]bool{}}
	err := t.move(ctx, first)
	if err == nil {
		err = t.move(ctx, same) // adopted, now that the bytes are there
	}
	return Moved{UploadedBytes: t.uploaded.Load(), UploadedFiles: t.sent.Load(), AdoptedBytes: t.adopted.Load()}, err
}

// distinct takes the files whose content another one has already from those that come first.
func distinct(files []Source) (first, same []Source) {
	type content struct {
		digest string
		size   int64
	}
	seen := make(map[content]bool, len(files))
	for _, f := range files {
		if c := (content{f.Digest, f.Size}); seen[c] {
			same = append(same, f)
		} else {
			seen[c] = true
			first = append(first, f)
		}
	}
	return first, same
}

// tree is many files on their way under one lease.
type tree struct {
	c        *Client
	lease    Lease
	progress func(int64)
	bulk     bool               // small files are sent together
	started  map[uuid.UUID]bool // of the goroutine that sends; two paths may share one artifact

	uploaded, adopted, sent atomic.Int64
}

// stagedSource is a file and where its bytes go.
type stagedSource struct {
	types.StagedFile
	src Source
}

// move is a line of three: staging, sending, proving. The first error ends it.
func (t *tree) move(ctx context.Context, files []Source) error {
	group, ctx := errgroup.WithContext(ctx)
	staged := make(chan []stagedSource, 1)
	arrived := make(chan stagedSource, proveBatch)
	group.Go(func() error {
		defer close(staged)
		return t.stage(ctx, files, staged)
	})
	group.Go(func() error {
		defer close(arrived)
		return t.send(ctx, staged, arrived)
	})
	for range provers {
		group.Go(func() error { return t.prove(ctx, arrived) })
	}
	return group.Wait()
}

func (t *tree) stage(ctx context.Context, files []Source, staged chan<- []stagedSource) error {
	for len(files) > 0 {
		batch := files[:min(len(files), MaxStageFiles)]
		files = files[len(batch):]
		answers, err := t.c.stageFiles(ctx, t.lease, batch, t.bulk)
		if err != nil {
			return err
		}
		out := make([]stagedSource, len(batch))
		for i, a := range answers {
			out[i] = stagedSource{StagedFile: a, src: batch[i]}
		}
		select {
		case staged <- out:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (t *tree) send(ctx context.Context, staged <-chan []stagedSource, arrived chan<- stagedSource) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.c.parallel)
	for batch := range staged {
		var together []stagedSource
		for _, f := range batch {
			if ctx.Err() != nil {
				return errors.Join(group.Wait(), context.Cause(ctx))
			}
			if f.Upload == nil || t.started[f.ArtifactId] {
				t.adopted.Add(f.src.Size)
				t.tell(f)(f.src.Size)
				continue
			}
			t.started[f.ArtifactId] = true
			if f.Upload.Kind == kindBulk && f.Upload.Url != nil {
				together = append(together, f)
				continue
			}
			group.Go(func() error { return f.failed(t.sendOne(ctx, f, arrived)) })
		}
		for _, files := range bulkBatches(together) {
			group.Go(func() error { return t.sendBulk(ctx, files) })
		}
	}
	return group.Wait()
}

// tell passes on how far one file is.
func (t *tree) tell(f stagedSource) func(int64) {
	if f.src.Progress == nil {
		return t.progress
	}
	return func(n int64) {
		t.progress(n)
		f.src.Progress(n)
	}
}

// failed says which file an error is about.
func (f stagedSource) failed(err error) error {
	if err != nil {
		return fmt.Errorf("upload %s: %w", f.Path, err)
	}
	return nil
}

// sendOne moves one file. One that went to the store in a single PUT has arrived, and is proved
// together with others.
func (t *tree) sendOne(ctx context.Context, f stagedSource, arrived chan<- stagedSource) error {
	if f.Upload.Kind != "single" || f.Upload.Url == nil || t.c.sameService(*f.Upload.Url) {
		return t.count(f)(t.c.uploadStaged(ctx, t.lease, f.StagedFile, f.src, t.tell(f)))
	}
	if err := t.c.sendTo(ctx, *f.Upload, f.src, t.tell(f)); err != nil {
		if !staleURL(err, f.Upload) {
			return err
		}
		return t.count(f)(t.c.restage(ctx, t.lease, f.src, t.tell(f)))
	}
	select {
	case arrived <- f:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// count takes what an upload of f answers.
func (t *tree) count(f stagedSource) func(moved int64, err error) error {
	return func(moved int64, err error) error {
		t.uploaded.Add(moved)
		if err != nil {
			return err
		}
		t.adopted.Add(max(0, f.src.Size-moved))
		if moved > 0 || f.src.Size == 0 {
			t.sent.Add(1)
		}
		if f.src.Size == 0 {
			t.tell(f)(0)
		}
		return nil
	}
}

// prove has files proved as they arrive, as many at a time as have gathered.
func (t *tree) prove(ctx context.Context, arrived <-chan stagedSource) error {
	for batch := take(arrived); len(batch) > 0; batch = take(arrived) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		items, err := t.c.completeMany(ctx, t.lease, batch)
		if err != nil {
			return err
		}
		for i, f := range batch {
			if err := f.failed(t.proved(ctx, f, items[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// take waits for a file and takes those that are there besides. None means that there are no more.
func take(arrived <-chan stagedSource) []stagedSource {
	f, ok := <-arrived
	if !ok {
		return nil
	}
	batch := []stagedSource{f}
	for len(batch) < proveBatch {
		select {
		case f, ok := <-arrived:
			if !ok {
				return batch
			}
			batch = append(batch, f)
		default:
			return batch
		}
	}
	return batch
}

// proved takes what the service says of one file. One that it could not look at now, or that did not
// arrive before its URL expired, is staged and sent again.
func (t *tree) proved(ctx context.Context, f stagedSource, item types.CompletedArtifact) error {
	if item.Problem == nil {
		return t.count(f)(f.src.Size, nil)
	}
	p, err := problemOf(*item.Problem)
	if err != nil {
		return err
	}
	if !p.temporary() && !staleURL(p, f.Upload) {
		return p
	}
	t.tell(f)(-f.src.Size)
	return t.count(f)(t.c.restage(ctx, t.lease, f.src, t.tell(f)))
}

// problemOf is a problem that is part of an answer.
func problemOf(in types.Problem) (*Problem, error) {
	p := &Problem{}
	b, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(b, p)
	}
	return p, err
}

// completeMany has uploads proved; the answer is in their order.
func (c *Client) completeMany(ctx context.Context, l Lease, batch []stagedSource) ([]types.CompletedArtifact, error) {
	body := types.CompleteManyRequest{ArtifactIds: make([]uuid.UUID, len(batch))}
	for i, f := range batch {
		body.ArtifactIds[i] = f.ArtifactId
	}
	done, err := ask(ctx, c, proofTime, func(ctx context.Context) (types.CompleteManyResponse, error) {
		return answer[types.CompleteManyResponse](c.raw.CompleteLease(ctx, l.LeaseId, body))
	})
	if err == nil && len(done.Items) != len(batch) {
		err = fmt.Errorf("the service answered for %d artifacts of %d", len(done.Items), len(batch))
	}
	return done.Items, err
}

// sameService reports whether a URL from an answer is the service's own.
func (c *Client) sameService(ref string) bool {
	u, err := c.resolve(ref)
	return err == nil && c.own(u)
}
