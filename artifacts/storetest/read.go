package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

func testMissing(t *testing.T, f fixture) {
	key := upload([]byte("never stored")).Key
	f.absent(t, key)
	if _, _, err := f.Get(t.Context(), key, artifacts.WholeObject); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Get: %v", err)
	}
	if _, _, err := f.Get(t.Context(), key, artifacts.ByteRange{Offset: 0, Length: 0}); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Get of nothing: %v", err)
	}
	deleted, err := f.Delete(t.Context(), []string{key})
	if err != nil || len(deleted) != 1 || deleted[0] != (artifacts.Deleted{Key: key}) {
		t.Errorf("Delete: %v %v", deleted, err)
	}
	if keys := f.keys(t, Prefix); len(keys) != 0 {
		t.Errorf("an empty bucket lists %q", keys)
	}
	if deleted, err := f.Delete(t.Context(), nil); err != nil || len(deleted) != 0 {
		t.Errorf("Delete of nothing: %v %v", deleted, err)
	}
}

func testRanges(t *testing.T, f fixture) {
	content := []byte("0123456789")
	u := f.put(t, content)
	for _, c := range []struct {
		r    artifacts.ByteRange
		want string
	}{
		{artifacts.ByteRange{Offset: 0, Length: -1}, "0123456789"},
		{artifacts.ByteRange{Offset: 0, Length: 1}, "0"},
		{artifacts.ByteRange{Offset: 0, Length: 10}, "0123456789"},
		{artifacts.ByteRange{Offset: 3, Length: 4}, "3456"},
		{artifacts.ByteRange{Offset: 7, Length: -1}, "789"},
		{artifacts.ByteRange{Offset: 9, Length: 1}, "9"},
		{artifacts.ByteRange{Offset: 7, Length: 100}, "789"},
		{artifacts.ByteRange{Offset: 4, Length: 0}, ""},
		{artifacts.ByteRange{Offset: 10, Length: 0}, ""},
	} {
		r, o, err := f.Get(t.Context(), u.Key, c.r)
		if err != nil {
			t.Errorf("%+v: %v", c.r, err)
			continue
		}
		if got := string(readAll(t, r)); got != c.want {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
		if o.Size != u.Size {
			t.Errorf("%+v: the whole object has %d bytes", c.r, o.Size)
		}
	}
	for _, r := range []artifacts.ByteRange{
		{Offset: 10, Length: 1}, {Offset: 10, Length: -1}, {Offset: 11, Length: 0}, {Offset: 99, Length: 5}, {Offset: -1, Length: 1}, {Offset: -1, Length: 0},
	} {
		if _, _, err := f.Get(t.Context(), u.Key, r); !errors.Is(err, artifacts.ErrBadRange) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func testReadHalf(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	u := f.put(t, content)
	r, _, err := f.Get(t.Context(), u.Key, artifacts.WholeObject)
	if err != nil {
		t.Fatal(err)
	}
	half := make([]byte, len(content)/2)
	if _, err := io.ReadFull(r, half); err != nil || !bytes.Equal(half, content[:len(half)]) {
		t.Errorf("first half: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n, err := r.Read(half); n != 0 || err == nil || err == io.EOF {
		t.Errorf("read after Close: %d, %v", n, err)
	}
}

func testCancelled(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("x"), 8<<20)
	u := f.put(t, content)
	ctx := cancelled(t)
	check := func(call string, err error) {
		t.Helper()
		if !errors.Is(err, context.Canceled) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: %v", call, err)
		}
	}
	_, err := f.Head(ctx, u.Key)
	check("Head", err)
	_, _, err = f.Get(ctx, u.Key, artifacts.WholeObject)
	check("Get", err)
	check("Put", f.Put(ctx, upload(content), bytes.NewReader(content)))
	_, err = f.Delete(ctx, []string{u.Key})
	check("Delete", err)
	err = nil
	for _, err = range f.List(ctx, "") {
	}
	check("List", err)

	// In the middle of an object the reader fails too, also where the rest has arrived already.
	f.cancelledRead(t, u, check)
	little := f.put(t, content[:64<<10])
	f.cancelledRead(t, little, check)
	f.holds(t, u, content)
}

func (f fixture) cancelledRead(t *testing.T, u artifacts.Upload, check func(call string, err error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _, err := f.Get(ctx, u.Key, artifacts.WholeObject)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err = io.Copy(io.Discard, r)
	check("Read", err)
}

func testOddKeys(t *testing.T, f fixture) {
	var want []string
	for _, name := range []string{
		"plain", "with space", "plus+plus", "percent%41", "ünï-cödé-世界", "a&b=c", "quote\"'", "semi;colon",
		"question?mark", "hash#tag", "<angle>", "star*", "(round)", "comma,", "at@", "tilde~", "under/folder/deep",
	} {
		content := []byte("content of " + name)
		u := upload(content)
		u.Key = Prefix + "odd/" + name
		if err := f.Put(t.Context(), u, bytes.NewReader(content)); err != nil {
			t.Errorf("Put %q: %v", u.Key, err)
			continue
		}
		f.holds(t, u, content)
		want = append(want, u.Key)
	}
	slices.Sort(want)
	if got := f.keys(t, Prefix+"odd/"); !slices.Equal(got, want) {
		t.Errorf("listed\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	deleted, err := f.Delete(t.Context(), want)
	if err != nil {
		t.Fatalf("Delete: %v", err)
	}
	for _, d := range deleted {
		if d.Err != nil {
			t.Errorf("Delete %q: %v", d.Key, d.Err)
		}
	}
	if got := f.keys(t, ""); len(got) != 0 {
		t.Errorf("left over: %q", got)
	}
}

// putMany stores n small objects and returns their keys, sorted.
func (f fixture) putMany(t *testing.T, n int) []string {
	t.Helper()
	keys := make([]string, n)
	work := make(chan int)
	done := make(chan error)
	const writers = 16
	for range writers {
		go func() {
			var errs []error
			for i := range work {
				content := fmt.Appendf(nil, "object %d", i)
				u := upload(content)
				keys[i] = u.Key
				errs = append(errs, f.Put(t.Context(), u, bytes.NewReader(content)))
			}
			done <- errors.Join(errs...)
		}()
	}
	for i := range n {
		work <- i
	}
	close(work)
	for range writers {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(keys)
	return keys
}

func testListAndDelete1001(t *testing.T, f fixture) {
	const n = 1001
	keys := f.putMany(t, n)
	other := f.put(t, []byte("under another prefix"))
	other.Key = "foreign/" + other.Key
	if err := f.Put(t.Context(), other, strings.NewReader("under another prefix")); err != nil {
		t.Fatal(err)
	}
	listed := f.keys(t, layout.ArtifactsPrefix())
	if len(listed) != n+1 || !slices.IsSorted(listed) {
		t.Fatalf("listed %d keys (sorted: %v), want %d", len(listed), slices.IsSorted(listed), n+1)
	}
	if _, err := f.Delete(t.Context(), keys); err == nil {
		t.Error("a deletion of 1,001 keys at once was accepted")
	}
	for _, batch := range [][]string{keys[:1000], keys[1000:]} {
		deleted, err := f.Delete(t.Context(), batch)
		if err != nil || len(deleted) != len(batch) {
			t.Fatalf("Delete: %d fates, %v", len(deleted), err)
		}
		for i, d := range deleted {
			if d.Key != batch[i] || d.Err != nil {
				t.Errorf("fate %d: %+v, want %s", i, d, batch[i])
			}
		}
	}
	if left := f.keys(t, ""); len(left) != 2 || left[0] != other.Key {
		t.Errorf("left over: %q", left)
	}
}

func testListStopsWhenToldTo(t *testing.T, f fixture) {
	f.putMany(t, 3)
	seen := 0
	for _, err := range f.List(t.Context(), Prefix) {
		if err != nil {
			t.Fatal(err)
		}
		seen++
		break
	}
	if seen != 1 {
		t.Errorf("%d objects after one was enough", seen)
	}
	for o, err := range f.List(t.Context(), Prefix) {
		if err != nil || o.Size < 8 || o.LastModified.IsZero() {
			t.Errorf("listed %+v, %v", o, err)
		}
	}
}

func testDeleteLeavesTheRest(t *testing.T, f fixture) {
	keep, drop := f.put(t, []byte("keep")), f.put(t, []byte("drop"))
	keys := []string{drop.Key, upload(nil).Key, drop.Key}
	deleted, err := f.Delete(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range deleted {
		if d.Key != keys[i] || d.Err != nil {
			t.Errorf("fate %d: %+v", i, d)
		}
	}
	f.absent(t, drop.Key)
	f.holds(t, keep, []byte("keep"))
	if err := f.Put(t.Context(), drop, strings.NewReader("drop")); err != nil {
		t.Errorf("Put after Delete: %v", err)
	}
}

func testReadDigest(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 200_001)
	u, empty := f.put(t, content), f.put(t, nil)
	for _, u := range []artifacts.Upload{u, empty} {
		if d, err := artifacts.ReadDigest(t.Context(), f, u.Key, u.Size); err != nil || d != u.Digest {
			t.Errorf("ReadDigest of %d bytes: %v, %v", u.Size, d, err)
		}
		for _, size := range []int64{u.Size - 1, u.Size + 1} {
			if d, err := artifacts.ReadDigest(t.Context(), f, u.Key, size); !errors.Is(err, artifacts.ErrSizeMismatch) {
				t.Errorf("ReadDigest of %d bytes as %d: %v, %v", u.Size, size, d, err)
			}
		}
	}
	if _, err := artifacts.ReadDigest(t.Context(), f, upload(nil).Key, 0); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("ReadDigest of nothing: %v", err)
	}
}
