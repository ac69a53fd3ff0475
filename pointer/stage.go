package pointer

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	stageSQL = `SELECT status, reason, pointer, epoch, generation, path, artifact_id, digest, size, media_type,
			stored, verified, writable_until, owner_id, upload_id
		FROM artifactd.stage($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	artifactSQL = `SELECT a.artifact_id, p.name, g.epoch, g.generation, a.generation_id, a.digest, a.size, a.media_type,
			a.stored_at IS NOT NULL, coalesce(a.verified, ''), a.writable_until, coalesce(a.upload_id, ''),
			coalesce(artifactd.upload_reason(a), '')
		FROM artifactd.artifact a
		JOIN artifactd.generation g USING (generation_id)
		JOIN artifactd.pointer p ON p.pointer_id = a.pointer_id
		WHERE a.artifact_id = $1`
	markStoredSQL = `SELECT status, reason FROM artifactd.mark_stored($1, $2)`
	stagedSQL     = `SELECT m.path, m.media_type, a.artifact_id, p.name, h.epoch, h.generation, a.generation_id, a.digest, a.size,
			a.stored_at IS NOT NULL, coalesce(a.verified, ''), a.writable_until, coalesce(a.upload_id, '')
		FROM artifactd.manifest_file m
		JOIN artifactd.artifact a USING (artifact_id)
		JOIN artifactd.generation h ON h.generation_id = a.generation_id
		JOIN artifactd.pointer p ON p.pointer_id = a.pointer_id
		WHERE m.manifest_id = $1 AND m.path > $2 ORDER BY m.path LIMIT $3`
	openUploadSQL  = `SELECT status, reason, upload_id, writable_until FROM artifactd.open_upload($1, $2, $3)`
	closeUploadSQL = `SELECT artifactd.close_upload($1, $2)`
	rejectSQL      = `SELECT artifactd.reject_upload($1)`
	sealSQL        = `SELECT status FROM artifactd.seal($1)`
)

// How the bytes of a stored artifact were proved to be the declared ones.
const (
	VerifiedByStore    = "store-checksum" // the store's own full-object SHA-256
	VerifiedByRead     = "read-back"      // the service read every byte back and hashed it
	VerifiedOnTransfer = "transfer"       // the bytes went through the service, which hashed them
)

// Stage declares files of a live lease's manifest, at most [MaxFilesPerStage] at a time, and
// gives each an artifact: an adopted one that is stored already, or one to be uploaded before its
// WritableTil. That time is committed before Stage returns, so a URL may be signed for it. The
// answer is in the order of files. [*LeaseLostError], [ErrLeaseNotFound], [*InvalidError].
func (c *Catalogue) Stage(ctx context.Context, id uuid.UUID, token Token, files []StageFile) ([]StagedFile, error) {
	args, err := stageArgs(files)
	if err != nil {
		return nil, err
	}
	all := append([]any{id, token.Epoch, token.Generation}, args...)
	all = append(all, c.opts.UploadTTL.Seconds(), c.opts.ResumeGrace.Seconds(), MaxFiles)

	var staged []StagedFile
	var refusal error
	err = c.decideRows(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		staged, refusal = nil, nil
		rows, err := conn.Query(ctx, stageSQL, all...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			file, status, reason, err := scanStaged(rows)
			if err != nil {
				return err
			}
			if status != "ok" {
				refusal = stageRefusal(status, reason, file.Path, files)
				continue
			}
			staged = append(staged, file)
		}
		rows.Close()
		return rows.Err()
	})
	if err != nil {
		return nil, definite(err)
	}
	if refusal != nil {
		return nil, refusal
	}
	for _, f := range staged {
		c.artifacts.Add(f.Artifact.ID, f.Artifact.Pointer)
	}
	return staged, nil
}

// stageArgs turns files into the column arrays of the database's function.
func stageArgs(files []StageFile) ([]any, error) {
	if len(files) == 0 || len(files) > MaxFilesPerStage {
		return nil, &InvalidError{Field: "files", Detail: fmt.Sprintf("1 to %d files a call", MaxFilesPerStage)}
	}
	n := len(files)
	paths, digests, sizes := make([]string, n), make([][]byte, n), make([]int64, n)
	types, ids := make([]string, n), make([]uuid.UUID, n)
	seen := make(map[string]bool, n)
	for i, f := range files {
		if err := CheckPath(fmt.Sprintf("files[%d].path", i), f.Path); err != nil {
			return nil, err
		}
		if seen[f.Path] {
			return nil, &InvalidError{Field: fmt.Sprintf("files[%d].path", i), Detail: "the same path stands twice in this call"}
		}
		seen[f.Path] = true
		if f.Size < 0 || f.Size > artifacts.MaxObject {
			return nil, &InvalidError{Field: fmt.Sprintf("files[%d].size", i), Detail: fmt.Sprintf("a file has 0 to %d bytes", int64(artifacts.MaxObject))}
		}
		if f.MediaType == "" {
			f.MediaType = "application/octet-stream"
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, err
		}
		paths[i], digests[i], sizes[i], types[i], ids[i] = f.Path, f.Digest[:], f.Size, f.MediaType, id
	}
	return []any{paths, digests, sizes, types, ids}, nil
}

func scanStaged(rows pgx.Rows) (StagedFile, string, string, error) {
	var status string
	var reason, name, path, mediaType, verified, upload *string
	var epoch, generation, size *int64
	var id, owner *uuid.UUID
	var digest []byte
	var stored *bool
	var until *time.Time
	err := rows.Scan(&status, &reason, &name, &epoch, &generation, &path, &id, &digest, &size, &mediaType,
		&stored, &verified, &until, &owner, &upload)
	if err != nil || status != "ok" {
		return StagedFile{Path: orZero(path)}, status, orZero(reason), err
	}
	sum, err := artifacts.DigestFromSum(digest)
	if err != nil {
		return StagedFile{}, status, "", err
	}
	return StagedFile{Path: *path, MediaType: *mediaType, Artifact: Artifact{
		ID: *id, Pointer: *name, Token: Token{*epoch, *generation}, LeaseID: *owner, Digest: sum, Size: *size,
		MediaType: *mediaType, Stored: *stored, Verified: orZero(verified), WritableTil: *until, UploadID: orZero(upload),
	}}, status, "", nil
}

func stageRefusal(status, reason, path string, files []StageFile) error {
	switch status {
	case "path-conflict":
		return conflictingPaths(path, reason, files)
	case "lease-not-found":
		return ErrLeaseNotFound
	case "lease-lost":
		return &LeaseLostError{Reason: Reason(reason)}
	case "too-many-files":
		return &InvalidError{Field: "files", Detail: fmt.Sprintf("a generation has at most %d files", MaxFiles)}
	}
	return fmt.Errorf("stage: unexpected status %q", status)
}

// conflictingPaths says which of the files stands where another one needs a folder, or the reverse.
func conflictingPaths(path, other string, files []StageFile) error {
	at := slices.IndexFunc(files, func(f StageFile) bool { return f.Path == path })
	folder, file := path, other
	if len(folder) > len(file) {
		folder, file = other, path
	}
	return &InvalidError{Field: fmt.Sprintf("files[%d].path", at), Detail: fmt.Sprintf(
		"%q would be a file and, for %q, a folder; rename one of them (a staged file stays until its lease ends)", folder, file)}
}

func orZero[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// Artifact tells of one artifact. The error is [*LeaseLostError] beside a valid Artifact once
// no live lease names it any more, and [ErrArtifactNotFound] when there is none.
func (c *Catalogue) Artifact(ctx context.Context, id uuid.UUID) (Artifact, error) {
	var a Artifact
	var reason string
	err := c.pool.QueryRow(ctx, artifactSQL, id).Scan(&a.ID, &a.Pointer, &a.Token.Epoch, &a.Token.Generation, &a.LeaseID,
		&a.Digest, &a.Size, &a.MediaType, &a.Stored, &a.Verified, &a.WritableTil, &a.UploadID, &reason)
	switch {
	case noRows(err):
		return Artifact{}, ErrArtifactNotFound
	case err != nil:
		return Artifact{}, readFault(err)
	case reason != "":
		return a, &LeaseLostError{Reason: Reason(reason)}
	}
	return a, nil
}

// ArtifactPointer names the pointer that an artifact belongs to, or [ErrArtifactNotFound].
func (c *Catalogue) ArtifactPointer(ctx context.Context, id uuid.UUID) (string, error) {
	if name, ok := c.artifacts.Get(id); ok {
		return name, nil
	}
	a, err := c.Artifact(ctx, id)
	if a.Pointer == "" {
		return "", err
	}
	c.artifacts.Add(id, a.Pointer)
	return a.Pointer, nil
}

// MarkStored records that an artifact's bytes were proved to be in the store; how says by what.
// The caller has checked digest and size. Doing it twice is doing it once. [*LeaseLostError] once
// the generation has ended, [ErrArtifactNotFound].
func (c *Catalogue) MarkStored(ctx context.Context, id uuid.UUID, how string) error {
	var status string
	var reason *string
	if err := c.decide(ctx, markStoredSQL, []any{id, how}, &status, &reason); err != nil {
		return definite(err)
	}
	return markFault(status, reason)
}

// OpenUpload records the store's multipart upload of an artifact, unless it has one already, and
// gives the one in force: when that is another one, the caller aborts its own. With an empty
// uploadID it records nothing. Either way URLs of parts may be signed up to the returned
// artifact's WritableTil, which is committed. [*LeaseLostError] once no live lease names the
// artifact, [ErrArtifactNotFound]; an artifact that is stored is returned as it is.
func (c *Catalogue) OpenUpload(ctx context.Context, a Artifact, uploadID string) (Artifact, error) {
	var id *string
	if uploadID != "" {
		id = &uploadID
	}
	var status string
	var reason, upload *string
	var until *time.Time
	if err := c.decide(ctx, openUploadSQL, []any{a.ID, id, c.opts.UploadTTL.Seconds()}, &status, &reason, &upload, &until); err != nil {
		return Artifact{}, definite(err)
	}
	switch status {
	case "ok":
		a.UploadID, a.WritableTil = orZero(upload), *until
		return a, nil
	case "stored":
		a.Stored = true
		return a, nil
	case "artifact-not-found":
		return Artifact{}, ErrArtifactNotFound
	case "lease-lost":
		return Artifact{}, &LeaseLostError{Reason: Reason(orZero(reason))}
	}
	return Artifact{}, fmt.Errorf("open upload: unexpected status %q", status)
}

// CloseUpload forgets a multipart upload that the store no longer has, so that another one can be
// opened.
func (c *Catalogue) CloseUpload(ctx context.Context, id uuid.UUID, uploadID string) error {
	return c.run(ctx, closeUploadSQL, id, uploadID)
}

// RejectUpload records that what was uploaded for an artifact is not what was declared. Its key
// is never used again: staging the path anew gives a new artifact.
func (c *Catalogue) RejectUpload(ctx context.Context, id uuid.UUID) error {
	return c.run(ctx, rejectSQL, id)
}

// run calls a function that answers nothing and may simply be repeated.
func (c *Catalogue) run(ctx context.Context, sql string, args ...any) error {
	return definite(c.decideRows(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	}))
}

// Staged lists what a lease has staged, by path. The returned cursor is empty on the last page.
func (c *Catalogue) Staged(ctx context.Context, id uuid.UUID, page Page) ([]StagedFile, string, error) {
	after, err := decodeCursor(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	if _, err := c.LeasePointer(ctx, id); err != nil {
		return nil, "", err
	}
	limit := page.limit()
	rows, err := c.pool.Query(ctx, stagedSQL, id, after, limit+1)
	if err != nil {
		return nil, "", readFault(err)
	}
	files, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (StagedFile, error) {
		var f StagedFile
		a := &f.Artifact
		err := row.Scan(&f.Path, &f.MediaType, &a.ID, &a.Pointer, &a.Token.Epoch, &a.Token.Generation, &a.LeaseID, &a.Digest,
			&a.Size, &a.Stored, &a.Verified, &a.WritableTil, &a.UploadID)
		a.MediaType = f.MediaType
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

// seal verifies a manifest outside of the pointer's lock and fixes its count and digest.
func (c *Catalogue) seal(ctx context.Context, id uuid.UUID) error {
	var status string
	return definite(c.decide(ctx, sealSQL, []any{id}, &status))
}

const (
	defaultPage = 100
	maxPage     = 1_000
)

func (p Page) limit() int {
	switch {
	case p.Limit <= 0:
		return defaultPage
	case p.Limit > maxPage:
		return maxPage
	}
	return p.Limit
}

func encodeCursor(last string) string { return base64.RawURLEncoding.EncodeToString([]byte(last)) }

func decodeCursor(cursor string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		return "", &InvalidError{Field: "cursor", Detail: "use next_cursor of the previous page as it is"}
	}
	return string(b), nil
}
