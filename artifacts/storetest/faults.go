package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
	"github.com/artifactd/artifactd/internal/testenv"
)

// RunFaults runs the cases in which a store works, and the way to it or its answers do not.
func RunFaults(t *testing.T, server testenv.Server, open Open) {
	for _, c := range []struct {
		name string
		test func(*testing.T, faulty)
	}{
		{"S2LostAnswers", testLostAnswers},
		{"S2ErrorAfterSuccess", testErrorAfterSuccess},
		{"S2LostAnswerThenAnotherObject", testLostThenOther},
		{"S6BusyForAWhile", testBusyForAWhile},
		{"S6Down", testDown},
		{"S6Slow", testSlow},
		{"TruncatedReads", testTruncatedReads},
		{"ReadThatNeverEnds", testReadNeverEnds},
		{"G5DeletedThenError", testDeletedThenError},
		{"G5KeyOfABatchRefused", testKeyRefused},
		{"G5ListingCutShort", testListingCutShort},
		{"MissingBucket", testMissingBucket},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := testenv.Bucket(t, server)
			p := newProxy(t, b.Endpoint)
			config := Config(b)
			config.Endpoint, config.ResponseTimeout, config.MaxAttempts = p.url, 20*time.Second, 3
			c.test(t, faulty{
				fixture: fixture{Store: open(t, config), bucket: b}, proxy: p, config: config, open: open,
				direct: fixture{Store: open(t, Config(b)), bucket: b},
			})
		})
	}
}

// faulty is a store behind a proxy, and the same without.
type faulty struct {
	fixture
	proxy  *proxy
	direct fixture
	config bucket.Config
	open   Open
}

// trips runs do with a fault in place, and makes sure that it struck.
func (f faulty) trips(t *testing.T, what string, with fault, do func() error) error {
	t.Helper()
	f.proxy.set(with)
	err := do()
	if f.proxy.applied() == 0 {
		t.Errorf("%s: the fault was never applied", what)
	}
	f.proxy.set(fault{})
	return err
}

// writes tries every call that changes the store with a fault that strikes after the store has
// acted, and wants each to be one success.
func (f faulty) writes(t *testing.T, with func(match func(*http.Request) bool) fault) {
	t.Helper()
	succeeds := func(what string, match func(*http.Request) bool, do func() error) {
		t.Helper()
		if err := f.trips(t, what, with(match), do); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	content := []byte("stored once, told late")
	for name, body := range bodies(content) {
		u := upload(content)
		succeeds("Put, "+name, isPut, func() error { return f.Put(t.Context(), u, body) })
		f.direct.holds(t, u, content)
	}
	c := newCut()
	m := f.begin(t, c.Upload)
	for i, p := range c.parts {
		body := io.Reader(bytes.NewReader(c.body(p)))
		if i == 0 {
			body = onlyReader{body}
		}
		succeeds("PutPart", isPutPart, func() error { return f.PutPart(t.Context(), m, p, body) })
	}
	if parts, err := f.direct.ListParts(t.Context(), m); err != nil || !slices.Equal(parts, c.parts) {
		t.Errorf("the parts that are there: %v, %v", parts, err)
	}
	succeeds("CompleteMultipart", isComplete, func() error { return f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts) })
	f.direct.holdsCut(t, c)
	m = f.begin(t, upload([]byte("x")))
	succeeds("AbortMultipart", isAbort, func() error { return f.AbortMultipart(t.Context(), m) })
	if _, err := f.direct.ListParts(t.Context(), m); !errors.Is(err, artifacts.ErrUploadGone) {
		t.Errorf("after AbortMultipart: %v", err)
	}
	succeeds("Delete", isDelete, func() error {
		deleted, err := f.Delete(t.Context(), []string{c.Key})
		return errors.Join(err, deleted[0].Err)
	})
	f.direct.absent(t, c.Key)
}

// S2: the store acts and its answer is lost, once.
func testLostAnswers(t *testing.T, f faulty) {
	f.writes(t, func(match func(*http.Request) bool) fault { return fault{match: match, times: 1, lose: true} })
}

// S2: the store acts and says 500, once.
func testErrorAfterSuccess(t *testing.T, f faulty) {
	f.writes(t, func(match func(*http.Request) bool) fault { return fault{match: match, times: 1, replace: 500} })
}

// S2: no answer to any attempt comes through. What is there is compared; what is not there is not
// made up.
func testLostThenOther(t *testing.T, f faulty) {
	content := []byte("stored, never told")
	u := upload(content)
	err := f.trips(t, "Put", fault{match: isPut, lose: true}, func() error { return f.Put(t.Context(), u, bytes.NewReader(content)) })
	if err != nil {
		t.Errorf("Put: %v", err)
	}
	f.direct.holds(t, u, content)
	c := newCut()
	m := f.putParts(t, c)
	err = f.trips(t, "CompleteMultipart", fault{match: isComplete, lose: true}, func() error {
		return f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts)
	})
	if err != nil {
		t.Errorf("CompleteMultipart: %v", err)
	}
	f.direct.holdsCut(t, c)

	// The store refuses every time, and another object is in the place.
	other := f.direct.put(t, []byte("not this upload's"))
	u.Key = other.Key
	err = f.trips(t, "Put", fault{match: isPut, refuse: 503}, func() error { return f.Put(t.Context(), u, bytes.NewReader(content)) })
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("Put over another object: %v", err)
	}
	c = newCut()
	c.Key = other.Key
	m = f.putParts(t, c)
	err = f.trips(t, "CompleteMultipart", fault{match: isComplete, times: 1, replace: 500}, func() error {
		return f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts)
	})
	if !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("CompleteMultipart over another object: %v", err)
	}
	f.direct.holds(t, other, []byte("not this upload's"))
}

// S6: a store that says 503 is asked again, within bounds.
func testBusyForAWhile(t *testing.T, f faulty) {
	content := []byte("worth waiting for")
	var u artifacts.Upload
	for what, do := range map[string]func() error{
		"Put":  func() error { u = upload(content); return f.Put(t.Context(), u, bytes.NewReader(content)) },
		"Head": func() error { _, err := f.Head(t.Context(), f.direct.put(t, content).Key); return err },
		"List": func() error { return last(f.List(t.Context(), "")) },
	} {
		if err := f.trips(t, what, fault{match: isAny, times: 2, refuse: 503}, do); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := f.trips(t, what, fault{match: isAny, refuse: 503}, do); !errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s of a store that stays busy: %v", what, err)
		}
	}
	f.absent(t, u.Key)
}

// S6: the network is cut, or one direction of it.
func testDown(t *testing.T, f faulty) {
	network := testenv.NewProxy(t, f.bucket.Endpoint)
	config := f.config
	config.Endpoint, config.MaxAttempts, config.ResponseTimeout = "http://"+network.Addr(), 2, 3*time.Second
	store := fixture{Store: f.open(t, config), bucket: f.bucket}
	content := bytes.Repeat([]byte("x"), 1<<20)
	for name, cut := range map[string]testenv.Fault{
		"reset": {Reset: true}, "deaf": {HoldToServer: true}, "mute": {HoldToClient: true},
	} {
		network.Set(cut)
		if _, err := store.Head(t.Context(), "key"); !errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: Head: %v", name, err)
		}
		if err := store.Put(t.Context(), upload(content), onlyReader{bytes.NewReader(content)}); !errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: Put: %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := store.Head(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) && name != "reset" {
			t.Errorf("%s: Head with a deadline: %v", name, err)
		}
		cancel()
		network.Set(testenv.Fault{})
		// All is well at once, or as soon as a busy machine answers within this store's little patience.
		var err error
		for range 20 {
			if err = store.Put(t.Context(), upload(content), bytes.NewReader(content)); !errors.Is(err, artifacts.ErrStoreUnavailable) {
				break
			}
		}
		if err != nil {
			t.Errorf("%s, then mended: Put: %v", name, err)
		}
	}
}

// S6: an answer that comes late, but within bounds, is an answer; one that does not is a fault.
func testSlow(t *testing.T, f faulty) {
	content := []byte("slow but sure")
	u := upload(content)
	err := f.trips(t, "Put", fault{match: isPut, delay: time.Second}, func() error { return f.Put(t.Context(), u, bytes.NewReader(content)) })
	if err != nil {
		t.Errorf("Put: %v", err)
	}
	config := f.config
	config.ResponseTimeout = time.Second
	impatient := f.open(t, config)
	err = f.trips(t, "Head", fault{match: isAny, delay: 2500 * time.Millisecond}, func() error { _, err := impatient.Head(t.Context(), u.Key); return err })
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("Head of a store that answers too late: %v", err)
	}
}

func testTruncatedReads(t *testing.T, f faulty) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	u := f.put(t, content)
	err := f.trips(t, "Get", fault{match: isGet, truncate: 500_000}, func() error {
		r, _, err := f.Get(t.Context(), u.Key, artifacts.WholeObject)
		if err != nil {
			return err
		}
		defer r.Close()
		n, err := io.Copy(io.Discard, r)
		if n == u.Size {
			t.Error("a truncated read was whole")
		}
		return err
	})
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("a truncated read ended with %v", err)
	}
	// Read back, it is resumed, here three times.
	var d artifacts.Digest
	f.proxy.set(fault{match: isGet, truncate: 500_000})
	if d, err = artifacts.ReadDigest(t.Context(), f, u.Key, u.Size); err != nil || d != u.Digest {
		t.Errorf("ReadDigest: %v, %v", d, err)
	}
	if n := f.proxy.applied(); n != 4 {
		t.Errorf("ReadDigest needed %d requests, want 4", n)
	}
}

// A read that makes no progress ends; so does one that is not allowed.
func testReadNeverEnds(t *testing.T, f faulty) {
	u := f.put(t, bytes.Repeat([]byte("x"), 100_000))
	err := f.trips(t, "ReadDigest", fault{match: isGet, refuse: 403}, func() error {
		_, err := artifacts.ReadDigest(t.Context(), f, u.Key, u.Size)
		return err
	})
	if !errors.Is(err, bucket.ErrDenied) {
		t.Errorf("ReadDigest: %v", err)
	}
	// By itself it would go on for a second and more. On a busy machine the time may be over before the
	// first request.
	asked := 0
	for try := 0; asked == 0 && try < 20; try++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		f.proxy.set(fault{match: isGet, refuse: 503})
		_, err = artifacts.ReadDigest(ctx, f, u.Key, u.Size)
		asked = f.proxy.applied()
		f.proxy.set(fault{})
		cancel()
	}
	if !errors.Is(err, context.DeadlineExceeded) || asked == 0 {
		t.Errorf("ReadDigest with a deadline: %v after %d requests", err, asked)
	}
}

// G5: the store deletes, then answers 500 to every attempt: the fate is not known, and deleting
// once more settles it.
func testDeletedThenError(t *testing.T, f faulty) {
	u := f.put(t, []byte("deleted, never told"))
	err := f.trips(t, "Delete", fault{match: isDelete, replace: 500}, func() error {
		_, err := f.Delete(t.Context(), []string{u.Key})
		return err
	})
	if !errors.Is(err, artifacts.ErrStoreUnavailable) {
		t.Errorf("Delete: %v", err)
	}
	if deleted, err := f.Delete(t.Context(), []string{u.Key}); err != nil || deleted[0].Err != nil {
		t.Errorf("Delete again: %v, %v", deleted, err)
	}
}

// G5: a batch is answered 200, with an error for one of its keys.
func testKeyRefused(t *testing.T, f faulty) {
	var keys []string
	for range 3 {
		keys = append(keys, f.put(t, []byte("one of three")).Key)
	}
	refuse := func(b []byte) []byte {
		done, refused := "<Deleted><Key>"+keys[1]+"</Key></Deleted>", "<Error><Key>"+keys[1]+"</Key><Code>InternalError</Code><Message>as told</Message></Error>"
		if !strings.Contains(string(b), done) {
			t.Errorf("the store answered %s", b)
		}
		return []byte(strings.Replace(string(b), done, refused, 1))
	}
	err := f.trips(t, "Delete", fault{match: isDelete, rewrite: refuse}, func() error {
		deleted, err := f.Delete(t.Context(), keys)
		for i, d := range deleted {
			if (d.Err != nil) != (i == 1) || (i == 1 && !errors.Is(d.Err, artifacts.ErrStoreUnavailable)) {
				t.Errorf("fate %d: %+v", i, d)
			}
		}
		return err
	})
	if err != nil {
		t.Errorf("Delete: %v", err)
	}
}

// G5: a listing that ends in the middle of a page is never a short one.
func testListingCutShort(t *testing.T, f faulty) {
	f.putMany(t, 20)
	m := f.begin(t, upload([]byte("xy")))
	for n := range 2 {
		p := artifacts.Part{Number: n + 1, Size: 1, SHA256: artifacts.DigestOf([]byte("x"))}
		if err := f.PutPart(t.Context(), m, p, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	for what, c := range map[string]struct {
		match func(*http.Request) bool
		do    func() error
	}{
		"List":           {isList, func() error { return last(f.List(t.Context(), "")) }},
		"ListParts":      {isListParts, func() error { _, err := f.ListParts(t.Context(), m); return err }},
		"ListMultiparts": {isListUploads, func() error { return last(f.ListMultiparts(t.Context(), "")) }},
	} {
		for name, with := range map[string]fault{"ended": {match: c.match, rewrite: half}, "broken off": {match: c.match, truncate: 100}} {
			if err := f.trips(t, what, with, c.do); !errors.Is(err, artifacts.ErrStoreUnavailable) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
		if err := c.do(); err != nil {
			t.Errorf("%s after it: %v", what, err)
		}
	}
}

func testMissingBucket(t *testing.T, f faulty) {
	config := f.config
	config.Bucket = strings.Replace(f.bucket.Name, "test-", "none-", 1)
	store := f.open(t, config)
	_, err := store.Head(t.Context(), "key")
	if !errors.Is(err, bucket.ErrNoBucket) || errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Head: %v", err)
	}
	if err := last(store.List(t.Context(), "")); !errors.Is(err, bucket.ErrNoBucket) {
		t.Errorf("List: %v", err)
	}
	if _, err := store.Delete(t.Context(), []string{"key"}); err == nil {
		t.Error("Delete in no bucket succeeded")
	}
	if _, err := store.CreateMultipart(t.Context(), upload([]byte("x"))); !errors.Is(err, bucket.ErrNoBucket) {
		t.Errorf("CreateMultipart: %v", err)
	}
	for range 2 { // the second time it is there
		if err := store.(interface {
			EnsureBucket(context.Context) error
		}).EnsureBucket(t.Context()); err != nil {
			t.Fatalf("EnsureBucket: %v", err)
		}
	}
	if _, err := store.Head(t.Context(), "key"); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Head in the new bucket: %v", err)
	}
}
