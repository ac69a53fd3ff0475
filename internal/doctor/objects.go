package doctor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/artifactd/artifactd/artifacts"
)

// text is what most probes store.
var text = []byte("artifactd probe: 0123456789")

// read is a part of an object.
func (x *examination) read(ctx context.Context, key string, r artifacts.ByteRange) ([]byte, error) {
	body, _, err := x.Store.Get(ctx, key, r)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(body)
	return b, errors.Join(err, body.Close())
}

// visibility follows one object through its life.
func (x *examination) visibility(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	if _, err := x.Store.Head(ctx, u.Key); errors.Is(err, artifacts.ErrNotFound) {
		return outcome{Missing, "HEAD does not find an object that was just stored", "an upload cannot be completed"}, nil
	} else if err != nil {
		return outcome{}, err
	}
	got, err := x.read(ctx, u.Key, artifacts.WholeObject)
	if err != nil {
		return outcome{}, err
	}
	if !bytes.Equal(got, text) {
		return outcome{Missing, "GET answers other bytes than were stored", "nothing can be published"}, nil
	}
	listed, err := x.listed(ctx, u.Key)
	if err != nil {
		return outcome{}, err
	}
	deleted, err := x.Store.Delete(ctx, []string{u.Key})
	if err != nil {
		return outcome{}, err
	}
	if err := deleted[0].Err; err != nil && !x.kept(err) {
		return outcome{}, err
	}
	_, err = x.Store.Head(ctx, u.Key)
	switch {
	case err == nil && deleted[0].Err == nil:
		return outcome{Missing, "HEAD still finds an object that was deleted", "collection cannot tell what it has freed"}, nil
	case err != nil && !errors.Is(err, artifacts.ErrNotFound):
		return outcome{}, err
	case !listed:
		return outcome{Degraded, "an object that was just stored is not in the listing", "objects that nobody knows are found later"}, nil
	}
	return fine("each sees at once what the one before did"), nil
}

func (x *examination) listed(ctx context.Context, key string) (bool, error) {
	for o, err := range x.Store.List(ctx, x.folder) {
		if err != nil {
			return false, err
		}
		if o.Key == key {
			return true, nil
		}
	}
	return false, nil
}

func (x *examination) empty(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, nil)
	if err != nil {
		return outcome{}, err
	}
	o, err := x.Store.Head(ctx, u.Key)
	if err != nil {
		return outcome{}, err
	}
	if o.Size != 0 {
		return outcome{Missing, "an object of no bytes has some", "empty files cannot be published"}, nil
	}
	return fine("stored"), nil
}

func (x *examination) checksum(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	o, err := x.Store.Head(ctx, u.Key)
	switch {
	case err != nil:
		return outcome{}, err
	case o.SHA256.IsZero():
		return outcome{Degraded, "none is told", "the service reads every upload back to prove it"}, nil
	case o.SHA256 != u.Digest:
		return outcome{Missing, "a wrong one is told", "no upload can be proved"}, nil
	}
	return fine("told for the full object"), nil
}

func (x *examination) ranges(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	broken := func(what string) outcome {
		return outcome{Missing, what, "reads of a part of a file, and interrupted ones that go on, fail"}
	}
	for _, r := range []artifacts.ByteRange{{Offset: 3, Length: 5}, {Offset: 10, Length: -1}} {
		want := text[r.Offset:]
		if r.Length >= 0 {
			want = want[:r.Length]
		}
		got, err := x.read(ctx, u.Key, r)
		if err != nil {
			return broken("refused: " + err.Error()), nil
		}
		if !bytes.Equal(got, want) {
			return broken("other bytes come than were asked for"), nil
		}
	}
	if _, err := x.read(ctx, u.Key, artifacts.ByteRange{Offset: u.Size + 10, Length: 1}); !errors.Is(err, artifacts.ErrBadRange) {
		return broken("one beyond the end is not refused as such"), nil
	}
	return fine("exact; one beyond the end is refused"), nil
}

// keysOnce is why conditions on writes are no more than a second line of defence.
const keysOnce = "nothing: no key is ever used twice, so nothing rests on it"

func (x *examination) createOnlyPut(ctx context.Context) (outcome, error) {
	u, err := x.put(ctx, text)
	if err != nil {
		return outcome{}, err
	}
	other := []byte("artifactd probe: second")
	err = x.Store.Put(ctx, x.objectAt(u.Key, other), bytes.NewReader(other))
	switch {
	case errors.Is(err, artifacts.ErrExists):
		return fine("a second one is refused"), nil
	case err != nil:
		return outcome{}, err
	}
	return outcome{Degraded, "If-None-Match is ignored", keysOnce}, nil
}

// rivals is how many requests race for one key.
const rivals = 6

// rivalBody is one rival's bytes; all differ.
func rivalBody(i int) []byte { return append([]byte("artifactd probe: rival "), byte('a'+i)) }

// concurrentPuts has rivals create one key at the same time.
func (x *examination) concurrentPuts(ctx context.Context) (outcome, error) {
	key := x.object(nil).Key
	requests := make([]artifacts.SignedRequest, rivals)
	for i := range requests {
		var err error
		if requests[i], err = x.Store.SignPut(ctx, x.objectAt(key, rivalBody(i)), urlTTL); err != nil {
			return outcome{}, err
		}
	}
	errs, codes := make([]error, rivals), make([]int, rivals)
	race(func(i int) { codes[i], _, errs[i] = x.send(ctx, requests[i], rivalBody(i)) })
	won, faults := 0, 0
	for i, code := range codes {
		if errs[i] != nil {
			return outcome{}, errs[i]
		}
		switch {
		case code/100 == 2:
			won++
		case code >= 500:
			faults++
		}
	}
	return raced(won, faults), nil
}

// race starts all rivals at once and waits for them.
func race(run func(i int)) {
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range rivals {
		all.Go(func() {
			<-start
			run(i)
		})
	}
	close(start)
	all.Wait()
}

func raced(won, faults int) outcome {
	switch {
	case won == 1:
		return fine("of %d at once, one is taken", rivals)
	case won == 0 && faults > 0:
		return outcome{Degraded, "of several at once all fail", keysOnce}
	case won == 0:
		return outcome{Degraded, "of several at once all are refused", keysOnce}
	}
	return outcome{Degraded, "of several at once more than one is taken", keysOnce}
}
