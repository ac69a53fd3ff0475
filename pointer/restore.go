package pointer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/artifactd/artifactd/artifacts"
)

const (
	knownVersionsSQL   = `SELECT artifactd.known_versions($1)`
	pointerStandingSQL = `SELECT artifactd.pointer_standing($1, $2, $3)`
	adoptSQL           = `SELECT artifactd.adopt_installation($1, $2, $3)`
	restoreAbortedSQL  = `SELECT restored FROM artifactd.restore_aborted($1, $2)`
	restorePointerSQL  = `SELECT status FROM artifactd.restore_pointer($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	restoreFilesSQL    = `SELECT status, coalesce(detail, '') FROM artifactd.restore_files($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	restoreProvedSQL   = `SELECT artifactd.restore_proved($1, $2)`
	dropRestoreSQL     = `SELECT artifactd.drop_restore($1)`
	outcomesSQL        = `SELECT operation_id, outcome FROM artifactd.operation WHERE operation_id = ANY ($1)
		UNION ALL SELECT publish_operation_id, 'published' FROM artifactd.generation WHERE publish_operation_id = ANY ($1) AND recovered_from IS NULL`
	finishRestoreSQL = `SELECT status, coalesce(detail, ''), coalesce(epoch, 0), coalesce(generation, 0), coalesce(shown, false)
		FROM artifactd.finish_restore($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`
	installationSQL = `SELECT installation_id, epoch, coalesce(key_prefix, ''), NOT EXISTS (SELECT 1 FROM artifactd.pointer)
		FROM artifactd.installation`
)

// ErrEpochNotRaised: the bucket knows versions or settings of the database's own epoch that the
// database does not. Tokens given out now could be ones that the lost history has issued.
var ErrEpochNotRaised = errors.New("the database's epoch is not above that of what it has lost")

// Installation is what a database says of itself.
type Installation struct {
	ID        uuid.UUID
	Epoch     int64
	KeyPrefix string // empty before the first service started
	Empty     bool   // it has no pointers yet
}

// Installation tells which installation this is.
func (c *Catalogue) Installation(ctx context.Context) (Installation, error) {
	var i Installation
	return i, readFault(c.pool.QueryRow(ctx, installationSQL).Scan(&i.ID, &i.Epoch, &i.KeyPrefix, &i.Empty))
}

// The methods below bring back what a database has lost. They need the owner's connection: the
// service's role may call none of them.

// AdoptInstallation makes a database without pointers the one of the installation with this id, in
// an epoch above the given one.
func (c *Catalogue) AdoptInstallation(ctx context.Context, id uuid.UUID, prefix string, above int64) error {
	_, err := c.pool.Exec(ctx, adoptSQL, id, prefix, above)
	return ownerFault(err)
}

// KnownVersions tells which of the generations, by their ids in the records, the database has
// published or brought back.
func (c *Catalogue) KnownVersions(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]bool, error) {
	rows, err := c.pool.Query(ctx, knownVersionsSQL, ids)
	if err != nil {
		return nil, ownerFault(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	known := make(map[uuid.UUID]bool, len(list))
	for _, id := range list {
		known[id] = true
	}
	return known, ownerFault(err)
}

// PointerStanding is how a recorded revision of a pointer's settings stands to the database's.
type PointerStanding string

// The standings.
const (
	PointerUnknown PointerStanding = "unknown" // the database has no such pointer
	PointerNewer   PointerStanding = "newer"   // the record is newer
	PointerKnown   PointerStanding = "known"
)

// PointerStanding compares a recorded revision with the database's.
func (c *Catalogue) PointerStanding(ctx context.Context, name string, epoch, revision int64) (PointerStanding, error) {
	var s PointerStanding
	return s, ownerFault(c.pool.QueryRow(ctx, pointerStandingSQL, name, epoch, revision).Scan(&s))
}

// RestoreAborted brings back tombstones of operations, and tells how many were not there.
func (c *Catalogue) RestoreAborted(ctx context.Context, operations []uuid.UUID, pointers []string) (int, error) {
	var n int
	err := c.decide(ctx, restoreAbortedSQL, []any{operations, pointers}, &n)
	return n, definite(ownerFault(err))
}

// PointerSnapshot is a recorded revision of what a pointer is set to.
type PointerSnapshot struct {
	Pointer     string
	Epoch       int64 // zero when there is no record: then the defaults
	Revision    int64
	Settings    Settings
	RetiredUpTo Token // every token up to it had been issued when the pointer was last retired
	Pinned      []uuid.UUID
}

// RestorePointer makes a pointer that is missing, and gives it the recorded settings unless the
// database's are newer. It reports whether something changed.
func (c *Catalogue) RestorePointer(ctx context.Context, s PointerSnapshot) (bool, error) {
	var epoch, revision, retiredEpoch, retiredGeneration *int64
	var labels *string
	if s.Epoch > 0 {
		epoch, revision = &s.Epoch, &s.Revision
		text, err := json.Marshal(s.Settings.Labels)
		if err != nil {
			return false, err
		}
		labels = new(string)
		*labels = string(text)
	}
	if !s.RetiredUpTo.IsZero() {
		retiredEpoch, retiredGeneration = &s.RetiredUpTo.Epoch, &s.RetiredUpTo.Generation
	}
	var created *time.Time
	if !s.Settings.CreatedAt.IsZero() {
		created = &s.Settings.CreatedAt
	}
	var status string
	err := c.decide(ctx, restorePointerSQL, []any{s.Pointer, epoch, revision, s.Settings.KeepVersions, s.Settings.KeepSeconds, s.Settings.Public,
		labels, created, s.Settings.RetiredAt, retiredEpoch, retiredGeneration}, &status)
	return status == "restored", definite(ownerFault(err))
}

// RestoreStatus is what became of a step of bringing a version back.
type RestoreStatus string

// The statuses.
const (
	RestoreOK         RestoreStatus = "ok"
	RestoreRestored   RestoreStatus = "restored"   // it is a version again
	RestoreKnown      RestoreStatus = "known"      // somebody else brought it back
	RestoreSettled    RestoreStatus = "settled"    // its operation has been answered otherwise since
	RestoreLeaseHeld  RestoreStatus = "lease-held" // somebody works under the pointer's lease
	RestoreDeleting   RestoreStatus = "deleting"   // an object of it is being deleted
	RestoreConflict   RestoreStatus = "conflict"   // the database has another artifact by this id
	RestoreIncomplete RestoreStatus = "incomplete" // not every file of the manifest was proved
)

// VersionRecord is a version as its record in the bucket tells of it, without the files.
type VersionRecord struct {
	Key            string // the record's
	GenerationID   uuid.UUID
	Pointer        string
	Token          Token
	OperationID    uuid.UUID
	PublishedAt    time.Time
	Holder         string
	SourceRevision *int64
	Metadata       json.RawMessage
	RollbackOf     *uuid.UUID
	Recovered      *Recovered // when the record is of a version that was brought back itself
	ManifestDigest artifacts.Digest
	FileCount      int
}

// Root is the version itself, through however many recoveries: the generation that first published
// it and the token it had.
func (v *VersionRecord) Root() Recovered {
	if v.Recovered != nil {
		return *v.Recovered
	}
	return Recovered{GenerationID: v.GenerationID, Token: v.Token}
}

// maxUploadURL is how long a URL lives that anybody may still hold for a lost history's upload.
const maxUploadURL = 7 * 24 * time.Hour

// RestoreFiles gives files of a lost version their rows, at most 1,000 a call. Their objects are to
// be proved after that, not before: only from then on nobody takes them for garbage.
func (c *Catalogue) RestoreFiles(ctx context.Context, v VersionRecord, files []File) (RestoreStatus, string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", "", err
	}
	n := len(files)
	paths, ids, digests, sizes, types := make([]string, n), make([]uuid.UUID, n), make([][]byte, n), make([]int64, n), make([]string, n)
	for i := range files {
		f := &files[i]
		paths[i], ids[i], digests[i], sizes[i], types[i] = f.Path, f.ArtifactID, f.Digest[:], f.Size, f.MediaType
	}
	var status RestoreStatus
	var detail string
	err = c.decide(ctx, restoreFilesSQL, []any{v.Root().GenerationID, v.Pointer, id, v.PublishedAt.Add(maxUploadURL), paths, ids, digests, sizes, types},
		&status, &detail)
	return status, detail, definite(ownerFault(err))
}

// RestoreProved records how the objects of restored files were proved.
func (c *Catalogue) RestoreProved(ctx context.Context, ids []uuid.UUID, verified []string) error {
	return ownerFault(c.run(ctx, restoreProvedSQL, ids, verified))
}

// DropRestore gives up bringing a version back, because something of it is not there.
func (c *Catalogue) DropRestore(ctx context.Context, v VersionRecord) error {
	return ownerFault(c.run(ctx, dropRestoreSQL, v.Root().GenerationID))
}

// Outcomes tells what is recorded of operations that published versions which the database lost:
// those have been answered again since. It is for showing; [Catalogue.FinishRestore] decides.
func (c *Catalogue) Outcomes(ctx context.Context, operations []uuid.UUID) (map[uuid.UUID]string, error) {
	rows, err := c.pool.Query(ctx, outcomesSQL, operations)
	if err != nil {
		return nil, readFault(err)
	}
	outcomes := make(map[uuid.UUID]string)
	var id uuid.UUID
	var outcome string
	_, err = pgx.ForEachRow(rows, []any{&id, &outcome}, func() error {
		outcomes[id] = outcome
		return nil
	})
	return outcomes, readFault(err)
}

// FinishRestore publishes a version all of whose files were restored and proved, as the pointer's
// next generation. It tells the token, and whether the pointer shows it now.
func (c *Catalogue) FinishRestore(ctx context.Context, v VersionRecord, pinned bool) (status RestoreStatus, detail string, token Token, shown bool, err error) {
	root := v.Root()
	var metadata *string
	if len(v.Metadata) > 0 {
		text := string(v.Metadata)
		metadata = &text
	}
	err = c.decide(ctx, finishRestoreSQL, []any{root.GenerationID, v.Pointer, v.Token.Epoch, root.Token.Epoch, root.Token.Generation,
		v.OperationID, v.RollbackOf != nil, v.RollbackOf, v.PublishedAt, v.Holder, v.SourceRevision,
		metadata, v.ManifestDigest, v.FileCount, pinned, v.Key}, &status, &detail, &token.Epoch, &token.Generation, &shown)
	if err == nil && status == "epoch" {
		err = fmt.Errorf("%w: %s of %s", ErrEpochNotRaised, v.Token, v.Pointer)
	}
	return status, detail, token, shown, definite(ownerFault(err))
}

// ownerFault sorts the errors of calls that only the owner may make.
func ownerFault(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		switch pgErr.Code {
		case "42501":
			return fmt.Errorf("only the owner of the tables may bring versions back; connect as for `artifactd migrate`: %w", err)
		case "55000":
			return fmt.Errorf("%w: %s", ErrEpochNotRaised, pgErr.Message)
		}
		return err
	}
	return readFault(err)
}
