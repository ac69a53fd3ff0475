package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// witness says how much had been decided in an epoch. Each value is an object of its own, whose
// name is the value: the newest name counts, and no write replaces another one.
type witness struct {
	Installation uuid.UUID `json:"installation_id"`
	Epoch        int64     `json:"epoch"`
	EpochUUID    uuid.UUID `json:"epoch_uuid"`
	Counter      int64     `json:"counter"`
	WrittenAt    time.Time `json:"written_at"` // by the writer's clock; for people
}

func (w witness) epoch() pointer.EpochID { return pointer.EpochID{Number: w.Epoch, UUID: w.EpochUUID} }

// keptWitnesses is how many of the newest witnesses are left in the bucket.
const keptWitnesses = 4

// maxWitness bounds what is read of a witness, in bytes.
const maxWitness = 4096

func (b bucket) witnessPrefix() string { return b.prefix + "witness/" }

func (b bucket) witnessKey(epoch, counter int64) string {
	return fmt.Sprintf("%s%020d-%020d", b.witnessPrefix(), epoch, counter)
}

var witnessName = regexp.MustCompile(`^([0-9]{20})-([0-9]{20})$`)

// witnessKeys lists the witnesses, the newest last: names sort as their values do.
func (b bucket) witnessKeys(ctx context.Context) ([]string, error) {
	var keys []string
	for o, err := range b.store.List(ctx, b.witnessPrefix()) {
		if err != nil {
			return nil, fmt.Errorf("list the bucket's witnesses: %w", err)
		}
		if _, _, ok := b.parseWitness(o.Key); !ok {
			return nil, &unreadable{o.Key, "is no witness (witness/EPOCH-COUNTER): remove it when you know where it comes from"}
		}
		keys = append(keys, o.Key)
	}
	return keys, nil
}

func (b bucket) parseWitness(key string) (epoch, counter int64, ok bool) {
	m := witnessName.FindStringSubmatch(strings.TrimPrefix(key, b.witnessPrefix()))
	if m == nil {
		return 0, 0, false
	}
	epoch, err1 := strconv.ParseInt(m[1], 10, 64)
	counter, err2 := strconv.ParseInt(m[2], 10, 64)
	return epoch, counter, err1 == nil && err2 == nil
}

// newestWitness reads the newest witness of an epoch; nil when there is none.
func (b bucket) newestWitness(ctx context.Context, keys []string, epoch int64) (*witness, error) {
	for i := len(keys) - 1; i >= 0; i-- {
		if e, _, _ := b.parseWitness(keys[i]); e == epoch {
			w, err := b.readWitness(ctx, keys[i])
			if errors.Is(err, artifacts.ErrNotFound) {
				// Deleted since it was listed, because a newer one is there.
				return nil, fmt.Errorf("read the bucket's witness: %w", artifacts.ErrStoreUnavailable)
			}
			return w, err
		}
	}
	return nil, nil
}

func (b bucket) readWitness(ctx context.Context, key string) (*witness, error) {
	body, _, err := b.store.Get(ctx, key, artifacts.WholeObject)
	if err != nil {
		return nil, fmt.Errorf("read the bucket's witness: %w", err)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxWitness))
	if err != nil {
		return nil, fmt.Errorf("read the bucket's witness: %w", err)
	}
	var w witness
	if err := json.Unmarshal(text, &w); err != nil || b.witnessKey(w.Epoch, w.Counter) != key {
		return nil, &unreadable{key, "is damaged: it does not say what its name says"}
	}
	return &w, nil
}

// putWitness writes a witness and removes all but the newest few. What is removed was older than
// those when it was listed, so however late that comes, a newer one is there.
func (b bucket) putWitness(ctx context.Context, w witness, listed []string) error {
	w.WrittenAt = time.Now().UTC()
	if err := b.put(ctx, b.witnessKey(w.Epoch, w.Counter), w); err != nil {
		return fmt.Errorf("write the witness: %w", err)
	}
	if len(listed) <= keptWitnesses {
		return nil
	}
	old := listed[:len(listed)-keptWitnesses]
	deleted, err := b.store.Delete(ctx, old[:min(len(old), 1000)])
	for _, d := range deleted {
		if !errors.Is(d.Err, artifacts.ErrRetained) { // which goes in time
			err = errors.Join(err, d.Err)
		}
	}
	if err != nil {
		return fmt.Errorf("remove old witnesses: %w", err)
	}
	return nil
}
