package recovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// HistoryStore is what the epochs and the witness need of the object store.
type HistoryStore interface {
	artifacts.BlobReader
	artifacts.BlobWriter
	artifacts.BlobLister
	artifacts.BlobDeleter
}

// bucket is the history's side of one installation's bucket.
type bucket struct {
	store  HistoryStore
	prefix string // of the installation
}

func (b bucket) epochsPrefix() string { return b.prefix + "epochs/" }

func (b bucket) epochKey(e pointer.EpochID) string {
	return fmt.Sprintf("%s%d/%s", b.epochsPrefix(), e.Number, e.UUID)
}

// unreadable is something in the bucket that stands where the history does and is not part of it.
// Nobody can tell what it hides.
type unreadable struct{ key, what string }

func (e *unreadable) Error() string {
	return fmt.Sprintf("the bucket's object %q %s", e.key, e.what)
}

// epochs lists the epochs that were issued, the newest last.
func (b bucket) epochs(ctx context.Context) ([]pointer.EpochID, error) {
	var all []pointer.EpochID
	for o, err := range b.store.List(ctx, b.epochsPrefix()) {
		if err != nil {
			return nil, fmt.Errorf("list the bucket's epochs: %w", err)
		}
		e, ok := parseEpoch(strings.TrimPrefix(o.Key, b.epochsPrefix()))
		if !ok {
			return nil, &unreadable{o.Key, "is no epoch (epochs/NUMBER/UUID): remove it when you know where it comes from"}
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(x, y pointer.EpochID) int {
		return cmp.Or(cmp.Compare(x.Number, y.Number), bytes.Compare(x.UUID[:], y.UUID[:]))
	})
	return all, nil
}

func parseEpoch(s string) (pointer.EpochID, bool) {
	number, id, _ := strings.Cut(s, "/")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || number != strconv.FormatInt(n, 10) {
		return pointer.EpochID{}, false
	}
	u, err := uuid.Parse(id)
	return pointer.EpochID{Number: n, UUID: u}, err == nil && u.String() == id
}

// newest is the highest epoch of a sorted list and whether nobody else issued that number.
func newest(epochs []pointer.EpochID) (e pointer.EpochID, alone bool) {
	if len(epochs) == 0 {
		return e, true
	}
	e = epochs[len(epochs)-1]
	return e, len(epochs) == 1 || epochs[len(epochs)-2].Number != e.Number
}

// errOtherHistory: somebody else has issued a newer epoch in this bucket.
var errOtherHistory = errors.New("another database has issued a newer epoch in this bucket")

// issueTries bounds how often a number that somebody else issued too is left for a higher one.
const issueTries = 20

// issue issues an epoch under id, above floor and everything else in the bucket. One that was issued
// under this id before is found again. Unless others are passed by, a newer epoch of somebody else,
// above the one that this history is known to be in, is [errOtherHistory].
func (b bucket) issue(ctx context.Context, installation, id uuid.UUID, floor, known int64, passOthers bool) (pointer.EpochID, error) {
	for range issueTries {
		all, err := b.epochs(ctx)
		if err != nil {
			return pointer.EpochID{}, err
		}
		top, alone := newest(all)
		if top.Number > known && !passOthers && (top.UUID != id || !alone) {
			return pointer.EpochID{}, errOtherHistory
		}
		if alone && top.UUID == id && top.Number >= floor {
			return top, nil
		}
		e := pointer.EpochID{Number: max(floor, top.Number+1), UUID: id}
		if err := b.putEpoch(ctx, installation, e); err != nil {
			return pointer.EpochID{}, err
		}
	}
	return pointer.EpochID{}, errors.New("somebody else issues epochs in this bucket all the time: stop the other one, and try again")
}

func (b bucket) putEpoch(ctx context.Context, installation uuid.UUID, e pointer.EpochID) error {
	err := b.put(ctx, b.epochKey(e), map[string]any{
		"installation_id": installation, "epoch": e.Number, "uuid": e.UUID, "issued_at": time.Now().UTC(),
	})
	if err != nil {
		return fmt.Errorf("issue epoch %s: %w", e, err)
	}
	return nil
}

// put stores JSON under a key whose name says all that counts; whoever was faster said the same.
func (b bucket) put(ctx context.Context, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	u := artifacts.Upload{Key: key, Digest: artifacts.DigestOf(text), Size: int64(len(text)), ContentType: "application/json"}
	if err := b.store.Put(ctx, u, bytes.NewReader(text)); err != nil && !errors.Is(err, artifacts.ErrExists) {
		return err
	}
	return nil
}
