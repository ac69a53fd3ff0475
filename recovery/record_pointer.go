package recovery

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// pointerRecord is the record of a revision of what a pointer is set to: one JSON document.
type pointerRecord struct {
	Format         string          `json:"format"`
	InstallationID uuid.UUID       `json:"installation_id"`
	Pointer        string          `json:"pointer"`
	Epoch          int64           `json:"epoch"`
	Revision       int64           `json:"revision"`
	RevisionID     uuid.UUID       `json:"revision_id"`
	Settings       json.RawMessage `json:"settings"` // as the database writes them: pointerSettings
}

// pointerSettings are a pointer's settings, as claim_outbox puts them together.
type pointerSettings struct {
	KeepVersions int               `json:"keep_versions"`
	KeepSeconds  int64             `json:"keep_seconds"`
	Public       bool              `json:"public"`
	Labels       map[string]string `json:"labels"`
	CreatedAt    time.Time         `json:"created_at"`
	RetiredAt    *time.Time        `json:"retired_at"`
	// The newest token when the pointer was last retired; the generation is 0 when there was none.
	RetiredEpoch      int64       `json:"retired_epoch"`
	RetiredGeneration int64       `json:"retired_generation"`
	Pinned            []uuid.UUID `json:"pinned"` // generations' ids
}

// abortedRecord is the record of an operation that was settled as aborted.
type abortedRecord struct {
	Format         string    `json:"format"`
	InstallationID uuid.UUID `json:"installation_id"`
	OperationID    uuid.UUID `json:"operation_id"`
	Pointer        string    `json:"pointer"`
}

// readPointer reads a pointer's record and checks that it is of this key and installation.
// [ErrDamagedRecord], [ErrForeignRecord].
func readPointer(text []byte, layout artifacts.Layout, key string, installation uuid.UUID) (pointer.PointerSnapshot, error) {
	var s pointer.PointerSnapshot
	k, err := parseRecordKey(layout, pointersFolder, key)
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	var r pointerRecord
	if err := json.Unmarshal(text, &r); err != nil {
		return s, fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	if r.Format != pointerFormat {
		return s, fmt.Errorf("%w: its format is %q, this program knows %q", ErrDamagedRecord, r.Format, pointerFormat)
	}
	if r.InstallationID != installation {
		return s, fmt.Errorf("%w: %s", ErrForeignRecord, r.InstallationID)
	}
	if (recordKey{r.Pointer, pointer.Token{Epoch: r.Epoch, Generation: r.Revision}, r.RevisionID}) != k {
		return s, fmt.Errorf("%w: it says other things than its key", ErrDamagedRecord)
	}
	var set pointerSettings
	if err := json.Unmarshal(r.Settings, &set); err != nil {
		return s, fmt.Errorf("%w: settings: %w", ErrDamagedRecord, err)
	}
	s = pointer.PointerSnapshot{Pointer: r.Pointer, Epoch: r.Epoch, Revision: r.Revision, Pinned: set.Pinned, Settings: pointer.Settings{
		KeepVersions: set.KeepVersions, KeepSeconds: set.KeepSeconds, Public: set.Public, Labels: set.Labels,
		CreatedAt: set.CreatedAt, RetiredAt: set.RetiredAt,
	}}
	if s.Settings.Labels == nil {
		s.Settings.Labels = map[string]string{}
	}
	s.RetiredUpTo = pointer.Token{Epoch: set.RetiredEpoch, Generation: set.RetiredGeneration}
	return s, nil
}
