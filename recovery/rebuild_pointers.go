package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactd/artifactd/pointer"
)

// maxPointerRecord bounds a pointer's record, in bytes: 64 labels of 1,200 bytes, escaped, and pins.
const maxPointerRecord = 16 << 20

// LostSettings are settings of a pointer that the database does not have.
type LostSettings struct {
	Pointer  string `json:"pointer"`
	Retired  bool   `json:"retired"`
	Made     bool   `json:"made"` // the database did not know the pointer
	Restored bool   `json:"restored"`
	Problem  string `json:"problem,omitempty"` // why they cannot be brought back
}

// prefixes are where the records of the chosen pointers lie.
func (r *Rebuild) prefixes(folder string) []string {
	if len(r.opts.Pointers) == 0 {
		return []string{r.layout.Prefix + folder}
	}
	var list []string
	for _, name := range slices.Sorted(slices.Values(r.opts.Pointers)) {
		list = append(list, r.layout.Prefix+folder+name+"/")
	}
	return slices.Compact(list)
}

// restorePointers makes the pointers that are missing, and gives those whose settings are older than
// the recorded ones the latter. It comes before the versions, which need their pointers.
func (r *Rebuild) restorePointers(ctx context.Context) error {
	g, gctx := r.workers(ctx)
	var newest recordKey // of the pointer that is being listed; keys come in order
	flush := func() {
		if k := newest; k.Pointer != "" {
			g.Go(func() error { return r.restorePointer(gctx, k) })
		}
		newest = recordKey{}
	}
	err := r.records(gctx, pointersFolder, func(k recordKey) error {
		if k.Pointer != newest.Pointer {
			flush()
		}
		newest = k
		return nil
	})
	if err == nil {
		flush()
	}
	return errors.Join(g.Wait(), err)
}

// records lists the keys of records of the chosen pointers, pointer by pointer, in order.
func (r *Rebuild) records(ctx context.Context, folder string, found func(recordKey) error) error {
	for _, prefix := range r.prefixes(folder) {
		for o, err := range r.store.List(ctx, prefix) {
			if err != nil {
				return fmt.Errorf("list the records: %w", err)
			}
			k, err := parseRecordKey(r.layout, folder, o.Key)
			if err != nil {
				r.count(func(report *RebuildReport) { report.Foreign++ })
				continue
			}
			if err := found(k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Rebuild) count(f func(*RebuildReport)) {
	r.found.Lock()
	defer r.found.Unlock()
	f(&r.report)
}

func (r *Rebuild) restorePointer(ctx context.Context, k recordKey) error {
	standing, err := r.catalogue.PointerStanding(ctx, k.Pointer, k.Token.Epoch, k.Token.Generation)
	if err != nil || standing == pointer.PointerKnown {
		return err
	}
	lost := LostSettings{Pointer: k.Pointer, Made: standing == pointer.PointerUnknown}
	s, err := r.snapshot(ctx, k)
	switch {
	case errors.Is(err, ErrDamagedRecord), errors.Is(err, ErrForeignRecord):
		lost.Problem = err.Error()
	case err != nil:
		return err
	default:
		lost.Retired = s.Settings.RetiredAt != nil
		if k.Token.Epoch >= r.installation.Epoch && !r.opts.DryRun {
			return fmt.Errorf("%w: settings of %s were recorded in epoch %d, and the database is in epoch %d", pointer.ErrEpochNotRaised, k.Pointer, k.Token.Epoch, r.installation.Epoch)
		}
		if !r.opts.DryRun {
			if lost.Restored, err = r.catalogue.RestorePointer(ctx, s); err != nil {
				return fmt.Errorf("settings of %s: %w", k.Pointer, err)
			}
		}
	}
	r.count(func(report *RebuildReport) {
		report.Settings++
		if r.opts.Settings != nil {
			r.opts.Settings(lost)
		}
	})
	return nil
}

// snapshot reads the record of a pointer's settings.
func (r *Rebuild) snapshot(ctx context.Context, k recordKey) (pointer.PointerSnapshot, error) {
	key := k.in(r.layout, pointersFolder)
	text, err := readSmall(ctx, r.store, key, maxPointerRecord)
	if err != nil {
		return pointer.PointerSnapshot{}, fmt.Errorf("read record %s: %w", key, err)
	}
	return readPointer(text, r.layout, key, r.installation.ID)
}

// pins are the versions that were pinned when the lost history last wrote the pointer's settings.
func (r *Rebuild) pins(ctx context.Context, name string) (map[string]bool, error) {
	pins := map[string]bool{}
	var newest *recordKey
	for o, err := range r.store.List(ctx, r.layout.Prefix+pointersFolder+name+"/") {
		if err != nil {
			return nil, fmt.Errorf("list the records: %w", err)
		}
		// What this database wrote itself says nothing of what it does not have.
		if k, err := parseRecordKey(r.layout, pointersFolder, o.Key); err == nil && k.Token.Epoch < r.installation.Epoch {
			newest = &k
		}
	}
	if newest == nil {
		return pins, nil
	}
	s, err := r.snapshot(ctx, *newest)
	if errors.Is(err, ErrDamagedRecord) || errors.Is(err, ErrForeignRecord) {
		return pins, nil // it is reported with the settings
	}
	for _, id := range s.Pinned {
		pins[id.String()] = true
	}
	return pins, err
}
