package pointer

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	putPointerSQL = `SELECT created FROM artifactd.put_pointer($1, $2, $3, $4, $5, $6)`
	settingsSQL   = `SELECT name, keep_versions, keep_seconds, public, site, labels, created_at, updated_at, retired_at
		FROM artifactd.pointer WHERE name = $1`
	// Patterns are matched here, so that a page is full however few of the pointers are visible.
	listSQL = `SELECT p.name, p.keep_versions, p.keep_seconds, p.public, p.site, p.labels, p.created_at, p.updated_at, p.retired_at,
			p.current_epoch, p.current_generation, g.holder, g.epoch, g.generation,
			extract(epoch FROM artifactd.effective_expiry(p.lease_expires_at, g.ttl_seconds, s.at) - s.at)::float8
		FROM (SELECT clock_timestamp() AS at, epoch FROM artifactd.installation) s
		CROSS JOIN artifactd.pointer p
		LEFT JOIN artifactd.generation g ON g.generation_id = p.head_id
			AND artifactd.lease_reason(p, g, g.epoch, g.generation, s.epoch, s.at) IS NULL
		WHERE p.name > $1 AND p.name >= $2 AND ($3 = '' OR p.name < $3)
			AND (p.public OR p.name = ANY ($4) OR p.name LIKE ANY ($5))
		ORDER BY p.name LIMIT $6`
	leaseStateSQL = `SELECT g.holder, g.epoch, g.generation,
			extract(epoch FROM artifactd.effective_expiry(p.lease_expires_at, g.ttl_seconds, s.at) - s.at)::float8
		FROM (SELECT clock_timestamp() AS at, epoch FROM artifactd.installation) s
		CROSS JOIN artifactd.pointer p
		LEFT JOIN artifactd.generation g ON g.generation_id = p.head_id
			AND artifactd.lease_reason(p, g, g.epoch, g.generation, s.epoch, s.at) IS NULL
		WHERE p.name = $1`
	retireSQL   = `SELECT status, current_epoch, current_generation FROM artifactd.retire($1, $2, $3)`
	pinSQL      = `SELECT status FROM artifactd.pin($1, $2, $3, $4)`
	versionsSQL = `SELECT g.epoch, g.generation,
			CASE WHEN g.state = 'leased' THEN coalesce((SELECT l.state FROM artifactd.lease_now(g.generation_id) l), g.state) ELSE g.state END,
			g.holder, g.acquired_at, g.ended_at, g.published_at, g.displaced_at, g.collected_at,
			p.current_id IS NOT DISTINCT FROM g.generation_id, g.state = 'published' AND g.collecting_at IS NULL,
			g.pinned, g.file_count, g.total_bytes, g.source_revision, r.epoch, r.generation, g.recovered_epoch, g.recovered_generation
		FROM artifactd.generation g JOIN artifactd.pointer p USING (pointer_id)
		LEFT JOIN artifactd.generation r ON r.generation_id = g.rollback_of
		WHERE p.name = $1 AND (g.epoch, g.generation) < ($2, $3)
		ORDER BY g.epoch DESC, g.generation DESC LIMIT $4`
	filesSQL = `SELECT m.path, a.digest, a.size, m.media_type, a.artifact_id
		FROM artifactd.generation g
		JOIN artifactd.manifest_file m USING (manifest_id) JOIN artifactd.artifact a USING (artifact_id)
		WHERE g.generation_id = $1 AND g.state = 'published' AND g.collecting_at IS NULL
			AND m.path > $2 AND m.path >= $3 AND starts_with(m.path, $3)
		ORDER BY m.path LIMIT $4`
	fileSQL = `SELECT m.path, a.digest, a.size, m.media_type, a.artifact_id, p.public, p.site
		FROM artifactd.pointer p
		CROSS JOIN LATERAL (SELECT s.* FROM artifactd.generation s
			WHERE s.pointer_id = p.pointer_id AND s.epoch = $2 AND s.generation = $3 LIMIT 1) g
		JOIN artifactd.manifest_file m USING (manifest_id) JOIN artifactd.artifact a USING (artifact_id)
		WHERE p.name = $1 AND g.state = 'published' AND g.collecting_at IS NULL AND m.path = $4`
)

// PutPointer makes a pointer or changes its settings; nil members stay as they are. Making a
// retired name again continues its numbers. created reports which it was.
func (c *Catalogue) PutPointer(ctx context.Context, name string, change SettingsChange) (s Settings, created bool, err error) {
	if err := cmpErr(CheckName(name), checkLabels(change.Labels)); err != nil {
		return Settings{}, false, err
	}
	if change.KeepVersions != nil && (*change.KeepVersions < 0 || *change.KeepVersions > 1_000_000) {
		return Settings{}, false, &InvalidError{Field: "keep_versions", Detail: "0 to 1,000,000 displaced versions"}
	}
	if change.KeepSeconds != nil && (*change.KeepSeconds < 0 || *change.KeepSeconds > 100*366*86400) {
		return Settings{}, false, &InvalidError{Field: "keep_seconds", Detail: "0 seconds to 100 years"}
	}
	var labels []byte
	if change.Labels != nil {
		if labels, err = json.Marshal(change.Labels); err != nil {
			return Settings{}, false, err
		}
	}
	err = c.decide(ctx, putPointerSQL, []any{name, change.KeepVersions, change.KeepSeconds, change.Public, labels, change.Site}, &created)
	if err != nil {
		return Settings{}, false, definite(err)
	}
	s, err = c.Settings(ctx, name)
	return s, created, err
}

// Settings of a pointer, retired ones included. [ErrPointerNotFound].
func (c *Catalogue) Settings(ctx context.Context, name string) (Settings, error) {
	var s Settings
	err := c.pool.QueryRow(ctx, settingsSQL, name).Scan(&s.Name, &s.KeepVersions, &s.KeepSeconds, &s.Public, &s.Site, &s.Labels,
		&s.CreatedAt, &s.UpdatedAt, &s.RetiredAt)
	if noRows(err) {
		return Settings{}, ErrPointerNotFound
	}
	return s, readFault(err)
}

// ListPointers lists the pointers that begin with prefix and match one of the patterns ("*",
// "team.*" or an exact name; public pointers always match), by name.
func (c *Catalogue) ListPointers(ctx context.Context, prefix string, patterns []string, page Page) ([]Summary, string, error) {
	after, err := decodeCursor(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	limit := page.limit()
	exact, like := splitPatterns(patterns)
	rows, err := c.pool.Query(ctx, listSQL, after, prefix, prefixEnd(prefix), exact, like, limit+1)
	if err != nil {
		return nil, "", readFault(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Summary, error) {
		var s Summary
		var epoch, generation *int64
		var l leaseRow
		set := &s.Settings
		err := row.Scan(&set.Name, &set.KeepVersions, &set.KeepSeconds, &set.Public, &set.Site, &set.Labels, &set.CreatedAt, &set.UpdatedAt, &set.RetiredAt,
			&epoch, &generation, &l.holder, &l.epoch, &l.generation, &l.expiresIn)
		if epoch != nil {
			s.Current = &Token{*epoch, *generation}
		}
		s.Lease = l.liveState()
		return s, err
	})
	if err != nil {
		return nil, "", readFault(err)
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], encodeCursor(list[limit-1].Settings.Name), nil
}

// splitPatterns sorts name patterns into exact names and LIKE patterns.
func splitPatterns(patterns []string) (exact, like []string) {
	exact, like = []string{}, []string{}
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	for _, p := range patterns {
		if prefix, ok := strings.CutSuffix(p, "*"); ok {
			like = append(like, escape.Replace(prefix)+"%")
		} else {
			exact = append(exact, p)
		}
	}
	return exact, like
}

// prefixEnd is the first text after every text that begins with prefix, in byte order; empty for
// "no end". Names are ASCII, so the last byte can always be raised by one.
func prefixEnd(prefix string) string {
	if prefix == "" || prefix[len(prefix)-1] >= 0x7f {
		return ""
	}
	return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
}

func (r *leaseRow) liveState() LeaseState {
	if r.holder == nil || orZero(r.expiresIn) <= 0 {
		return LeaseState{}
	}
	return LeaseState{Live: true, Holder: *r.holder, Token: Token{*r.epoch, *r.generation}, ExpiresIn: seconds(*r.expiresIn)}
}

// LeaseState tells of a pointer's live lease. [ErrPointerNotFound].
func (c *Catalogue) LeaseState(ctx context.Context, name string) (LeaseState, error) {
	var l leaseRow
	err := c.pool.QueryRow(ctx, leaseStateSQL, name).Scan(&l.holder, &l.epoch, &l.generation, &l.expiresIn)
	if noRows(err) {
		return LeaseState{}, ErrPointerNotFound
	}
	if err != nil {
		return LeaseState{}, readFault(err)
	}
	return l.liveState(), nil
}

// Retire ends a pointer's lease and clears what it shows, which displaces that version. current
// names what is shown; it may be zero while nothing is. Retiring a retired pointer does nothing.
// [*RefusedError] with reason superseded when something else is shown, [*InvalidError] when the
// token is missing, [ErrPointerNotFound].
func (c *Catalogue) Retire(ctx context.Context, name string, current Token) error {
	var epoch, generation *int64
	if !current.IsZero() {
		epoch, generation = &current.Epoch, &current.Generation
	}
	var status string
	var shownEpoch, shownGeneration *int64
	if err := c.decide(ctx, retireSQL, []any{name, epoch, generation}, &status, &shownEpoch, &shownGeneration); err != nil {
		return unknownOutcome(uuid.Nil, err)
	}
	switch status {
	case "retired":
		c.changes.announce(name)
		return nil
	case "pointer-not-found":
		return ErrPointerNotFound
	case "token-required":
		return &InvalidError{Field: "current_token", Detail: "this pointer shows a version: say which one you mean to retire"}
	case "superseded":
		return &RefusedError{Refusals: []Refusal{{Pointer: name, Reason: ReasonSuperseded, Token: current,
			CurrentToken: Token{orZero(shownEpoch), orZero(shownGeneration)}}}}
	}
	return fmt.Errorf("retire: unexpected status %q", status)
}

// Pin holds a version against retention; with pinned false it lets it go. [ErrPointerNotFound],
// [ErrVersionNotFound] (also when its collection has begun).
func (c *Catalogue) Pin(ctx context.Context, name string, token Token, pinned bool) error {
	var status string
	if err := c.decide(ctx, pinSQL, []any{name, token.Epoch, token.Generation, pinned}, &status); err != nil {
		return definite(err)
	}
	switch status {
	case "ok":
		return nil
	case "pointer-not-found":
		return ErrPointerNotFound
	case "version-not-found":
		return ErrVersionNotFound
	}
	return fmt.Errorf("pin: unexpected status %q", status)
}

// Versions is a pointer's history: every generation and its fate, newest first. [ErrPointerNotFound].
func (c *Catalogue) Versions(ctx context.Context, name string, page Page) ([]HistoryEntry, string, error) {
	before := Token{1 << 62, 1 << 62}
	if page.Cursor != "" {
		text, err := decodeCursor(page.Cursor)
		if err != nil {
			return nil, "", err
		}
		if before, err = ParseToken(text); err != nil {
			return nil, "", &InvalidError{Field: "cursor", Detail: "use next_cursor of the previous page as it is"}
		}
	}
	if _, err := c.Settings(ctx, name); err != nil {
		return nil, "", err
	}
	limit := page.limit()
	rows, err := c.pool.Query(ctx, versionsSQL, name, before.Epoch, before.Generation, limit+1)
	if err != nil {
		return nil, "", readFault(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (HistoryEntry, error) {
		var h HistoryEntry
		var old, lost struct{ epoch, generation *int64 }
		err := row.Scan(&h.Token.Epoch, &h.Token.Generation, &h.State, &h.Holder, &h.AcquiredAt, &h.EndedAt, &h.PublishedAt,
			&h.DisplacedAt, &h.CollectedAt, &h.Current, &h.Readable, &h.Pinned, &h.FileCount, &h.TotalBytes, &h.SourceRevision,
			&old.epoch, &old.generation, &lost.epoch, &lost.generation)
		h.RollbackOf, h.RecoveredFrom = optionalToken(old.epoch, old.generation), optionalToken(lost.epoch, lost.generation)
		return h, err
	})
	if err != nil {
		return nil, "", readFault(err)
	}
	if len(list) <= limit {
		return list, "", nil
	}
	return list[:limit], encodeCursor(list[limit-1].Token.String()), nil
}

// optionalToken is nil for what the database has no token of.
func optionalToken(epoch, generation *int64) *Token {
	if epoch == nil || generation == nil {
		return nil
	}
	return &Token{*epoch, *generation}
}

// Files lists the files of a version whose paths begin with prefix, by path. [ErrPointerNotFound],
// [ErrVersionNotFound].
func (c *Catalogue) Files(ctx context.Context, name string, token Token, prefix string, page Page) ([]File, string, error) {
	after, err := decodeCursor(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	id, err := c.versionID(ctx, name, token)
	if err != nil {
		return nil, "", err
	}
	limit := page.limit()
	rows, err := c.pool.Query(ctx, filesSQL, id, after, prefix, limit+1)
	if err != nil {
		return nil, "", readFault(err)
	}
	files, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (File, error) {
		var f File
		err := row.Scan(&f.Path, &f.Digest, &f.Size, &f.MediaType, &f.ArtifactID)
		return f, err
	})
	if err != nil {
		return nil, "", readFault(err)
	}
	if len(files) <= limit {
		return files, "", nil
	}
	return files[:limit], encodeCursor(files[limit-1].Path), nil
}

// OpenedFile is one file of a readable version, with what is needed to read its bytes.
type OpenedFile struct {
	File
	Public bool // the pointer may be read without an access token
	Site   bool // the pointer's files are shown by browsers
}

// Key is where the file's bytes are.
func (f File) Key(layout artifacts.Layout) string { return layout.ArtifactKey(f.Digest, f.ArtifactID) }

// File finds one file of a version. [ErrPointerNotFound], [ErrVersionNotFound] (also when it is
// being collected), [ErrFileNotFound].
func (c *Catalogue) File(ctx context.Context, name string, token Token, path string) (OpenedFile, error) {
	var f OpenedFile
	err := c.pool.QueryRow(ctx, fileSQL, name, token.Epoch, token.Generation, path).Scan(
		&f.Path, &f.Digest, &f.Size, &f.MediaType, &f.ArtifactID, &f.Public, &f.Site)
	switch {
	case noRows(err):
		if _, err := c.versionID(ctx, name, token); err != nil {
			return OpenedFile{}, err
		}
		return OpenedFile{}, ErrFileNotFound
	case err != nil:
		return OpenedFile{}, readFault(err)
	}
	return f, nil
}

// Now is the database's clock.
func (c *Catalogue) Now(ctx context.Context) (time.Time, error) {
	var t time.Time
	err := c.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&t)
	return t, readFault(err)
}
