package doctor

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/artifactd/artifactd/artifacts"
)

// batchDelete deletes two objects and a key that never had one.
func (x *examination) batchDelete(ctx context.Context) (outcome, error) {
	var keys []string
	for range 2 {
		u, err := x.put(ctx, text)
		if err != nil {
			return outcome{}, err
		}
		keys = append(keys, u.Key)
	}
	keys = append(keys, x.object(nil).Key)
	batch, err := x.Bucket.DeletesInBatches(ctx, keys)
	if err != nil {
		return outcome{}, err
	}
	deleted, err := x.Store.Delete(ctx, keys)
	if err != nil {
		return outcome{}, err
	}
	for _, d := range deleted {
		if d.Err != nil && !x.kept(d.Err) {
			return outcome{}, d.Err
		}
	}
	if !batch {
		return outcome{Degraded, "refused, or not answered key by key", "objects are deleted one by one, which is slower"}, nil
	}
	return fine("taken, and answered key by key"), nil
}

func (x *examination) versioning(ctx context.Context) (outcome, error) {
	status, err := x.Bucket.Versioning(ctx)
	if err != nil {
		return outcome{}, err
	}
	if status == "" {
		return fine("off"), nil
	}
	return outcome{Degraded, status, "every version of an object is looked for and deleted, which takes a listing for each"}, nil
}

func (x *examination) objectLock(ctx context.Context) (outcome, error) {
	retention, err := x.Bucket.DefaultRetention(ctx)
	if err != nil {
		return outcome{}, err
	}
	if retention == "" {
		return fine("no retention by default"), nil
	}
	return outcome{Degraded, "by default " + retention, "what is collected stays until its retention ends, and is reported as retained"}, nil
}

// How far apart clocks may be. S3 refuses signatures that are 15 minutes off.
const (
	clockFine   = 5 * time.Second
	clockBroken = 10 * time.Minute
)

// storeClock compares the Date header of an answer with this machine's clock.
func (x *examination) storeClock(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	signed, err := x.Store.SignGet(ctx, u.Key, artifacts.ReadDisposition{}, urlTTL)
	if err != nil {
		return outcome{}, err
	}
	sent := time.Now()
	_, h, err := x.send(ctx, signed, nil)
	if err != nil {
		return outcome{}, err
	}
	middle := sent.Add(time.Since(sent) / 2)
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return outcome{Degraded, "not told", "nothing, unless it is wrong: then signed requests are refused"}, nil
	}
	// The header has whole seconds, rounded down: half a second later is its best guess.
	return skew(date.Add(time.Second/2).Sub(middle), "signed URLs live longer or shorter than they say", "the store refuses signed requests; set this machine's clock"), nil
}

// databaseClock compares the database's clock, which decides every lease, with this machine's.
func (x *examination) databaseClock(ctx context.Context) (outcome, error) {
	if x.DatabaseClock == nil {
		return outcome{}, errNotAsked
	}
	sent := time.Now()
	there, err := x.DatabaseClock(ctx)
	if err != nil {
		return outcome{}, fmt.Errorf("the database: %w", err)
	}
	middle := sent.Add(time.Since(sent) / 2)
	const harmless = "nothing is decided by this machine's clock; upload URLs are counted from the wrong time"
	return skew(there.Sub(middle), harmless, "upload URLs may outlive what the collector believes of them; set the clocks"), nil
}

func skew(d time.Duration, degraded, broken string) outcome {
	found := fmt.Sprintf("%+.1f s from this machine's", d.Seconds())
	switch {
	case d.Abs() <= clockFine:
		return fine("%s", found)
	case d.Abs() < clockBroken:
		return outcome{Degraded, found, degraded}
	}
	return outcome{Missing, found, broken}
}
