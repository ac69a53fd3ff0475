package recovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// LostStatus is what can be done, or was done, about a lost version.
type LostStatus string

// The statuses.
const (
	LostRestorable LostStatus = "restorable" // everything of it is there
	LostRestored   LostStatus = "restored"
	LostKnown      LostStatus = "known"      // somebody else brought it back meanwhile
	LostDamaged    LostStatus = "damaged"    // its record is
	LostForeign    LostStatus = "foreign"    // its record is another installation's
	LostIncomplete LostStatus = "incomplete" // objects are missing or wrong
	LostSettled    LostStatus = "settled"    // its operation was answered otherwise since
	LostLeaseHeld  LostStatus = "lease-held" // somebody works on the pointer: end the lease, or run again later
	LostDeleting   LostStatus = "deleting"   // an object of it is being deleted
	LostConflict   LostStatus = "conflict"   // the database has other things under its ids
)

// LostVersion is a version that was published, as its record says, and that the database does not have.
type LostVersion struct {
	Pointer      string        `json:"pointer"`
	Token        pointer.Token `json:"version"`
	GenerationID uuid.UUID     `json:"generation_id"`
	OperationID  uuid.UUID     `json:"operation_id"`
	PublishedAt  time.Time     `json:"published_at"`
	Files        int           `json:"files"`
	Bytes        int64         `json:"bytes"`
	Record       string        `json:"record"` // its key
	Status       LostStatus    `json:"status"`
	Detail       string        `json:"detail,omitempty"`
	Restored     pointer.Token `json:"restored,omitzero"` // the token that it has now
	Shown        bool          `json:"shown"`             // the pointer showed it from then on, until a later one came back
}

// restoreVersions finds the lost versions, pointer by pointer, and brings each pointer's back in order.
func (r *Rebuild) restoreVersions(ctx context.Context) error {
	g, gctx := r.workers(ctx)
	var batch, lost []recordKey
	flush := func() { // the pointer's list is complete
		if keys := lost; len(keys) > 0 {
			g.Go(func() error { return r.restorePointerVersions(gctx, keys) })
		}
		lost = nil
	}
	sift := func() error { // what of the batch the database knows is none of ours
		ids := make([]uuid.UUID, len(batch))
		for i, k := range batch {
			ids[i] = k.ID
		}
		known, err := r.catalogue.KnownVersions(gctx, ids)
		if err != nil {
			return err
		}
		for _, k := range batch {
			if known[k.ID] {
				continue
			}
			if len(lost) > 0 && lost[0].Pointer != k.Pointer {
				flush()
			}
			lost = append(lost, k)
		}
		r.count(func(report *RebuildReport) { report.Records += int64(len(batch)) })
		batch = batch[:0]
		return nil
	}
	err := r.records(gctx, versionsFolder, func(k recordKey) error {
		if batch = append(batch, k); len(batch) < rebuildBatch {
			return nil
		}
		return sift()
	})
	if err == nil {
		err = sift()
	}
	if err == nil {
		flush()
	}
	return errors.Join(g.Wait(), err)
}

// prepared is a version on its way: its record was read, its objects were looked at, and outside of a
// dry run they have their rows.
type prepared struct {
	done   chan struct{}
	lost   LostVersion
	record pointer.VersionRecord
	err    error
}

// restorePointerVersions brings back versions of one pointer. Several are prepared at once; they are
// published one after the other, in the order of their tokens.
func (r *Rebuild) restorePointerVersions(ctx context.Context, keys []recordKey) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := keys[0].Pointer
	pins, err := r.pins(ctx, name)
	if err != nil {
		return err
	}
	if !r.opts.DryRun {
		for _, k := range keys {
			if k.Token.Epoch >= r.installation.Epoch {
				return fmt.Errorf("%w: version %s of %s was lost, and the database is in epoch %d", pointer.ErrEpochNotRaised, k.Token, name, r.installation.Epoch)
			}
		}
		// Where no settings are recorded it gets the defaults.
		if _, err := r.catalogue.RestorePointer(ctx, pointer.PointerSnapshot{Pointer: name}); err != nil {
			return fmt.Errorf("pointer %s: %w", name, err)
		}
	}
	queue := make(chan *prepared, rebuildAhead)
	go func() {
		defer close(queue)
		for _, k := range keys {
			p := &prepared{done: make(chan struct{})}
			select {
			case queue <- p:
			case <-ctx.Done():
				return
			}
			go func() {
				defer close(p.done)
				p.err = r.prepare(ctx, k, p)
			}()
		}
	}()
	for p := range queue {
		<-p.done
		if p.err == nil && p.lost.Status == LostRestorable && !r.opts.DryRun {
			p.err = r.publish(ctx, p, pins[p.record.GenerationID.String()])
		}
		if p.err != nil {
			return fmt.Errorf("version %s of %s: %w", p.lost.Token, name, p.err)
		}
		r.tell(p.lost)
	}
	return ctx.Err()
}

func (r *Rebuild) tell(l LostVersion) {
	if l.Status == LostKnown {
		return
	}
	r.count(func(report *RebuildReport) {
		report.Lost++
		report.LostBytes += l.Bytes
		switch l.Status {
		case LostRestorable:
			report.Restorable++
		case LostRestored:
			report.Restored++
		default:
			report.Skipped++
		}
		if r.opts.Version != nil {
			r.opts.Version(l)
		}
	})
}

// prepare reads a record and looks for everything that it names.
func (r *Rebuild) prepare(ctx context.Context, k recordKey, p *prepared) (err error) {
	key := k.in(r.layout, versionsFolder)
	p.lost = LostVersion{Pointer: k.Pointer, Token: k.Token, GenerationID: k.ID, Record: key, Status: LostRestorable}
	s := newSpool()
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := r.fetch(ctx, key, s); err != nil {
		return err
	}
	v, err := r.check(s, key)
	switch {
	case errors.Is(err, ErrDamagedRecord):
		p.lost.Status, p.lost.Detail = LostDamaged, err.Error()
		return nil
	case errors.Is(err, ErrForeignRecord):
		p.lost.Status, p.lost.Detail = LostForeign, err.Error()
		return nil
	case err != nil:
		return err
	}
	p.record = v.VersionRecord
	p.lost.OperationID, p.lost.PublishedAt, p.lost.Files, p.lost.Bytes = v.OperationID, v.PublishedAt, v.FileCount, v.TotalBytes
	if v.Recovered != nil {
		known, err := r.catalogue.KnownVersions(ctx, []uuid.UUID{v.Recovered.GenerationID})
		if err != nil {
			return err
		}
		if known[v.Recovered.GenerationID] {
			p.lost.Status = LostKnown
			return nil
		}
	}
	outcomes, err := r.catalogue.Outcomes(ctx, []uuid.UUID{v.OperationID})
	if err != nil {
		return err
	}
	if outcome := outcomes[v.OperationID]; outcome != "" || r.aborted[v.OperationID] {
		p.settled(outcome)
		return nil
	}
	if k.Token.Epoch >= r.installation.Epoch { // of a dry run
		p.lost.Detail = fmt.Sprintf("once the epoch is raised: the database is in epoch %d", r.installation.Epoch)
	}
	return r.objects(ctx, s, key, p)
}

func (p *prepared) settled(outcome string) {
	if outcome == "" {
		outcome = "aborted"
	}
	p.lost.Status, p.lost.Detail = LostSettled, "its operation was answered as "+outcome+" since"
}

// fetch reads a record into the spool.
func (r *Rebuild) fetch(ctx context.Context, key string, s *spool) error {
	body, _, err := r.store.Get(ctx, key, artifacts.WholeObject)
	if err != nil {
		return fmt.Errorf("read record %s: %w", key, err)
	}
	defer body.Close() // everything that is wanted was read
	if _, err := io.Copy(s, body); err != nil {
		return fmt.Errorf("read record %s: %w", key, err)
	}
	return nil
}

// check reads the whole record once: what is damaged is damaged before anything was done with it.
func (r *Rebuild) check(s *spool, key string) (*versionReader, error) {
	body, err := s.reader()
	if err != nil {
		return nil, err
	}
	v, err := readVersion(body, r.layout, key, r.installation.ID)
	if err != nil {
		return nil, err
	}
	for _, err := range v.files() {
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// publish makes a prepared version one of the pointer's again.
func (r *Rebuild) publish(ctx context.Context, p *prepared, pinned bool) error {
	status, detail, token, shown, err := r.catalogue.FinishRestore(ctx, p.record, pinned)
	if err != nil {
		return err
	}
	p.lost.Detail = detail
	switch status {
	case pointer.RestoreRestored:
		p.lost.Status, p.lost.Restored, p.lost.Shown = LostRestored, token, shown
	case pointer.RestoreKnown:
		p.lost.Status = LostKnown
	case pointer.RestoreSettled:
		p.settled(detail)
		return r.catalogue.DropRestore(ctx, p.record)
	case pointer.RestoreLeaseHeld:
		p.lost.Status, p.lost.Detail = LostLeaseHeld, fmt.Sprintf("%q holds the lease: end it with `artifactd lease break`, or run again later", detail)
	case pointer.RestoreIncomplete:
		p.lost.Status, p.lost.Detail = LostIncomplete, "the files that were brought back are not those of the record; run it again"
	default:
		return fmt.Errorf("bring back: unexpected status %q", status)
	}
	return nil
}
