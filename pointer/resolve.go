package pointer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// A row comes back even when no name is known, so that a standby cannot say "not found".
	// By an index, whatever was known of the tables when the plan was made: so are all that are called
	// all the time.
	headsSQL = `SELECT s.recovering, p.name, p.current_id, p.current_epoch, p.current_generation,
			coalesce(p.retired_at IS NOT NULL, false), coalesce(p.public, false)
		FROM (SELECT pg_is_in_recovery()) s (recovering) LEFT JOIN (
			unnest($1::text[]) n (name) CROSS JOIN LATERAL (SELECT q.* FROM artifactd.pointer q WHERE q.name = n.name LIMIT 1) p) ON true`
	// One statement, so that a version is either whole or gone: its collection begins with a
	// commit of its own, before the first file goes.
	versionSQL = `SELECT p.name, g.epoch, g.generation, g.published_at, g.holder, g.source_revision, g.metadata,
			g.file_count, g.total_bytes, g.manifest_digest, g.manifest_id, p.public,
			f.paths, f.digests, f.sizes, f.types, f.ids
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		CROSS JOIN LATERAL (
			SELECT array_agg(x.path) AS paths, array_agg(x.digest) AS digests, array_agg(x.size) AS sizes,
				array_agg(x.media_type) AS types, array_agg(x.artifact_id) AS ids
			FROM (SELECT m.path, a.digest, a.size, m.media_type, a.artifact_id
				FROM artifactd.manifest_file m JOIN artifactd.artifact a USING (artifact_id)
				WHERE m.manifest_id = g.manifest_id ORDER BY m.path LIMIT $2) x) f
		WHERE g.generation_id = $1 AND g.state = 'published' AND g.collecting_at IS NULL`
	versionIDSQL = `SELECT g.generation_id FROM artifactd.pointer p
		CROSS JOIN LATERAL (SELECT s.* FROM artifactd.generation s
			WHERE s.pointer_id = p.pointer_id AND s.epoch = $2 AND s.generation = $3 LIMIT 1) g
		WHERE p.name = $1 AND g.state = 'published' AND g.collecting_at IS NULL`
	pointerExistsSQL = `SELECT EXISTS (SELECT 1 FROM artifactd.pointer WHERE name = $1)`
)

// cachedFiles is the largest version, in files, that is kept in memory.
const cachedFiles = 32

// Resolve gives the version that a pointer shows. It is linearizable: a call that begins after a
// publish was acknowledged sees that version or a newer one, through whichever replica.
// [ErrPointerNotFound], [ErrNothingPublished], [ErrPointerRetired].
func (c *Catalogue) Resolve(ctx context.Context, name string) (*Version, error) {
	for {
		h, err := c.head(ctx, name)
		if err != nil {
			return nil, err
		}
		v, err := c.versionOf(ctx, h, MaxInlineFiles)
		// Displaced and already being collected: then something newer is shown by now.
		if !errors.Is(err, ErrVersionNotFound) {
			return v, err
		}
	}
}

// Head gives the token that a pointer shows, as linearizable as Resolve. The token is zero, with
// no error, when nothing is published yet.
func (c *Catalogue) Head(ctx context.Context, name string) (Token, error) {
	h, err := c.heads.get(ctx, name)
	if err != nil {
		return Token{}, err
	}
	if h.retired {
		return Token{}, ErrPointerRetired
	}
	return h.token, nil
}

func (c *Catalogue) head(ctx context.Context, name string) (head, error) {
	h, err := c.heads.get(ctx, name)
	switch {
	case err != nil:
		return head{}, err
	case h.retired:
		return head{}, ErrPointerRetired
	case h.id == uuid.Nil:
		return head{}, ErrNothingPublished
	}
	return h, nil
}

// Public reports whether a pointer may be read without an access token; false when there is none.
func (c *Catalogue) Public(ctx context.Context, name string) (bool, error) {
	h, err := c.heads.get(ctx, name)
	if errors.Is(err, ErrPointerNotFound) {
		return false, nil
	}
	return h.public, err
}

// versionOf is the version that a head shows, with so many of its files at most unless more are at hand.
func (c *Catalogue) versionOf(ctx context.Context, h head, files int) (*Version, error) {
	if v, ok := c.versions.Get(h.id); ok && v.Public == h.public {
		return v, nil
	}
	v, err := c.loadVersion(ctx, h.id, files)
	if err != nil {
		return nil, err
	}
	v.Public = h.public
	if v.FileCount <= cachedFiles && !v.FilesTruncated {
		c.versions.Add(h.id, v)
	}
	return v, nil
}

// resolvePoll is how often waiting readers look for what was published through other replicas;
// their look-ups go out in one statement.
const resolvePoll = 200 * time.Millisecond

// ResolveNewer waits up to wait for a pointer to show something other than the version than (the
// zero token: for anything), and resolves it. When nothing newer comes in time it resolves what
// is there, as Resolve does.
func (c *Catalogue) ResolveNewer(ctx context.Context, name string, than Token, wait time.Duration) (*Version, error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(resolvePoll)
	defer tick.Stop()
	for {
		over, err := c.waitForChange(ctx, name, than, deadline.C, tick.C)
		if err != nil {
			return nil, err
		}
		if over {
			return c.Resolve(ctx, name)
		}
	}
}

// waitForChange looks once and, when the pointer still shows than, waits for a reason to look
// again; over says that there is something to resolve, or no more time.
func (c *Catalogue) waitForChange(ctx context.Context, name string, than Token, deadline, tick <-chan time.Time) (over bool, err error) {
	changed, stop := c.changes.watch(name)
	defer stop()
	h, err := c.heads.get(ctx, name)
	if err != nil || h.retired || h.token != than {
		return true, err
	}
	select {
	case <-changed:
		return false, nil
	case <-tick:
		return false, nil
	case <-deadline:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// ErrUnreadable: the caller may not read the pointer, if there is one.
var ErrUnreadable = errors.New("the pointer is not this caller's to read")

// ResolveMany resolves up to [MaxResolveNames] names from one snapshot. Result i is names[i]'s
// version or error. Of a name that is not readable no version is loaded. readable is asked also for names
// that nobody has, which get the same answer. Together the versions have no more than [MaxResolveFiles]
// files: those of the first names come first.
func (c *Catalogue) ResolveMany(ctx context.Context, names []string, readable func(name string, public bool) bool) ([]*Version, []error, error) {
	if len(names) == 0 || len(names) > MaxResolveNames {
		return nil, nil, &InvalidError{Field: "names", Detail: fmt.Sprintf("1 to %d names", MaxResolveNames)}
	}
again:
	heads, err := queryHeads(ctx, c.pool, names)
	if err != nil {
		return nil, nil, err
	}
	versions, errs, left := make([]*Version, len(names)), make([]error, len(names)), MaxResolveFiles
	for i, name := range names {
		h, ok := heads[name]
		switch {
		case !readable(name, h.public):
			errs[i] = ErrUnreadable
		case !ok:
			errs[i] = ErrPointerNotFound
		case h.retired:
			errs[i] = ErrPointerRetired
		case h.id == uuid.Nil:
			errs[i] = ErrNothingPublished
		default:
			v, err := c.versionOf(ctx, h, min(left, MaxInlineFiles))
			if errors.Is(err, ErrVersionNotFound) {
				goto again // displaced and collected meanwhile: the snapshot is too old to serve
			}
			if err != nil {
				return nil, nil, err
			}
			versions[i] = v.shortened(left)
			left -= len(versions[i].Files)
		}
	}
	return versions, errs, nil
}

// shortened is the version with so many of its files at most.
func (v *Version) shortened(files int) *Version {
	if len(v.Files) <= files {
		return v
	}
	short := *v
	short.Files, short.FilesTruncated = v.Files[:files], true
	return &short
}

// Version gives one published version by its token. [ErrPointerNotFound], [ErrVersionNotFound]
// (also when it is being collected).
func (c *Catalogue) Version(ctx context.Context, name string, token Token) (*Version, error) {
	id, err := c.versionID(ctx, name, token)
	if err != nil {
		return nil, err
	}
	return c.loadVersion(ctx, id, MaxInlineFiles)
}

func (c *Catalogue) versionID(ctx context.Context, name string, token Token) (uuid.UUID, error) {
	var id uuid.UUID
	err := c.pool.QueryRow(ctx, versionIDSQL, name, token.Epoch, token.Generation).Scan(&id)
	if err == nil || !noRows(err) {
		return id, readFault(err)
	}
	var exists bool
	if err := c.pool.QueryRow(ctx, pointerExistsSQL, name).Scan(&exists); err != nil {
		return uuid.Nil, readFault(err)
	}
	if !exists {
		return uuid.Nil, ErrPointerNotFound
	}
	return uuid.Nil, ErrVersionNotFound
}

func (c *Catalogue) loadVersion(ctx context.Context, id uuid.UUID, files int) (*Version, error) {
	v := Version{ID: id}
	var manifest uuid.UUID
	var paths, types []string
	var digests [][]byte
	var sizes []int64
	var ids []uuid.UUID
	err := c.pool.QueryRow(ctx, versionSQL, id, files).Scan(&v.Pointer, &v.Token.Epoch, &v.Token.Generation, &v.PublishedAt,
		&v.Holder, &v.SourceRevision, &v.Metadata, &v.FileCount, &v.TotalBytes, &v.ManifestDigest, &manifest, &v.Public,
		&paths, &digests, &sizes, &types, &ids)
	switch {
	case noRows(err):
		return nil, ErrVersionNotFound
	case err != nil:
		return nil, readFault(err)
	}
	v.Files = make([]File, len(paths))
	for i := range paths {
		v.Files[i] = File{Path: paths[i], Size: sizes[i], MediaType: types[i], ArtifactID: ids[i]}
		copy(v.Files[i].Digest[:], digests[i])
	}
	v.FilesTruncated = v.FileCount > len(v.Files)
	return &v, nil
}

func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// head is what a pointer showed at the time of a look-up.
type head struct {
	id      uuid.UUID // of the shown generation; zero when nothing is shown
	token   Token
	retired bool
	public  bool
}

// headBatcher answers look-ups of pointers, many in one statement. A look-up is only ever
// answered by a statement that was sent after it arrived: joining one under way could give an
// answer older than a publish that was acknowledged in between.
//
// One statement is under way at a time: what arrives meanwhile goes with the next, which costs hardly
// more for it. Only when that has to wait for long is it sent beside the one that hangs.
type headBatcher struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	waiting []*headRequest
	relief  *time.Timer // of what is waiting, if a statement is under way
	running int         // statements under way
}

type headRequest struct {
	name string
	done chan struct{}
	head head
	err  error
}

const (
	// headsTimeout bounds one statement of the batcher, which serves callers with contexts of their own.
	headsTimeout = 10 * time.Second
	// headsPatience is how long look-ups wait for the statement before theirs, and headsParallel how many
	// are under way at most: all but one of them hang.
	headsPatience = 5 * time.Millisecond
	headsParallel = 3
)

func (b *headBatcher) get(ctx context.Context, name string) (head, error) {
	if strings.IndexByte(name, 0) >= 0 || !utf8.ValidString(name) {
		return head{}, ErrPointerNotFound // no text the database can hold; it would spoil the whole batch
	}
	r := &headRequest{name: name, done: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, r)
	switch {
	case b.running == 0:
		b.running++
		go b.run()
	case len(b.waiting) == 1 && b.running < headsParallel:
		b.relief = time.AfterFunc(headsPatience, func() { b.relieve(r) })
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.head, r.err
	case <-ctx.Done():
		return head{}, readFault(ctx.Err())
	}
}

// relieve sends what waits since first came, if that is still the first that waits.
func (b *headBatcher) relieve(first *headRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 && b.waiting[0] == first {
		b.running++
		go b.run()
	}
}

// run sends what waits, until nothing does, or what waits has a statement to wait for.
func (b *headBatcher) run() {
	for more := true; more; more = b.goOn() {
		if batch := b.take(); len(batch) > 0 {
			b.serve(batch)
		}
	}
}

// take is everything that waits.
func (b *headBatcher) take() []*headRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := b.waiting
	b.waiting = nil
	if b.relief != nil {
		b.relief.Stop()
		b.relief = nil
	}
	return batch
}

// goOn reports whether the caller is to send what waits; it counts as under way no more if not.
func (b *headBatcher) goOn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 && (b.running == 1 || b.relief == nil) {
		return true
	}
	b.running--
	return false
}

func (b *headBatcher) serve(batch []*headRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), headsTimeout)
	defer cancel()
	names := make([]string, len(batch))
	for i, r := range batch {
		names[i] = r.name
	}
	heads, err := queryHeads(ctx, b.pool, names)
	for _, r := range batch {
		h, ok := heads[r.name]
		switch {
		case err != nil:
			r.err = err
		case !ok:
			r.err = ErrPointerNotFound
		default:
			r.head = h
		}
		close(r.done)
	}
}

func queryHeads(ctx context.Context, pool *pgxpool.Pool, names []string) (map[string]head, error) {
	rows, err := pool.Query(ctx, headsSQL, names)
	if err != nil {
		return nil, readFault(err)
	}
	defer rows.Close()
	heads := make(map[string]head, len(names))
	for rows.Next() {
		var recovering bool
		var name *string
		var id *uuid.UUID
		var epoch, generation *int64
		var h head
		if err := rows.Scan(&recovering, &name, &id, &epoch, &generation, &h.retired, &h.public); err != nil {
			return nil, err
		}
		if recovering {
			return nil, ErrStandby
		}
		if id != nil {
			h.id, h.token = *id, Token{*epoch, *generation}
		}
		if name != nil {
			heads[*name] = h
		}
	}
	return heads, readFault(rows.Err())
}
