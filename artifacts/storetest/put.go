package storetest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

func testPutGetHead(t *testing.T, f fixture) {
	content := []byte("the quick brown fox")
	f.holds(t, f.put(t, content), content)
}

func testPutEmpty(t *testing.T, f fixture) {
	f.holds(t, f.put(t, nil), nil)
	u := upload(nil)
	if err := f.Put(t.Context(), u, onlyReader{bytes.NewReader(nil)}); err != nil {
		t.Fatalf("Put of an empty stream: %v", err)
	}
	f.holds(t, u, nil)
	u = upload(nil)
	if err := f.Put(t.Context(), u, strings.NewReader("x")); !errors.Is(err, artifacts.ErrSizeMismatch) {
		t.Errorf("Put of one byte as none: %v", err)
	}
	f.absent(t, u.Key)
}

func testPutUnseekable(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	u := upload(content)
	if err := f.Put(t.Context(), u, onlyReader{bytes.NewReader(content)}); err != nil {
		t.Fatalf("Put: %v", err)
	}
	f.holds(t, u, content)
}

// The answer to a PUT tells the digest of what the store took, or an error none.
func testPutProving(t *testing.T, f fixture) {
	for _, content := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("0123456789abcdef"), 20_000)} {
		u := upload(content)
		if d, err := f.PutProving(t.Context(), u, bytes.NewReader(content)); err != nil || d != u.Digest {
			t.Errorf("PutProving of %d bytes: %s, %v; want %s", len(content), d, err, u.Digest)
		}
		f.holds(t, u, content)
		if d, err := f.PutProving(t.Context(), ofAnother(u), bytes.NewReader(content)); !errors.Is(err, artifacts.ErrExists) || !d.IsZero() {
			t.Errorf("PutProving of what is there: %s, %v", d, err)
		}
	}
	u := upload([]byte("right"))
	if d, err := f.PutProving(t.Context(), u, strings.NewReader("wrong")); !errors.Is(err, artifacts.ErrDigestMismatch) || !d.IsZero() {
		t.Errorf("PutProving of other bytes: %s, %v", d, err)
	}
}

func testPutManyMegabytes(t *testing.T, f fixture) {
	const size = 96 << 20
	body, digest := zeros(size)
	u := artifacts.Upload{Key: layout.ArtifactKey(digest, uuid.New()), Digest: digest, Size: size}
	if err := f.Put(t.Context(), u, body); err != nil {
		t.Fatalf("Put: %v", err)
	}
	r, o, err := f.Get(t.Context(), u.Key, artifacts.WholeObject)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	n, err := io.Copy(io.Discard, r)
	if err != nil || n != size || o.Size != size {
		t.Errorf("read %d of %d bytes: %v", n, o.Size, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func testPutIsCreateOnly(t *testing.T, f fixture) {
	first, second := []byte("first"), []byte("second")
	u := f.put(t, first)
	again := upload(second)
	again.Key = u.Key
	for name, body := range map[string]io.Reader{
		"seekable": bytes.NewReader(second), "unseekable": onlyReader{bytes.NewReader(second)},
	} {
		if err := f.Put(t.Context(), again, body); !errors.Is(err, artifacts.ErrExists) {
			t.Errorf("second Put (%s): %v", name, err)
		}
	}
	if err := f.Put(t.Context(), ofAnother(u), bytes.NewReader(first)); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("the same bytes of another call: %v", err)
	}
	f.holds(t, u, first)
}

func testPutWrongDigest(t *testing.T, f fixture) {
	content := []byte("these are the bytes")
	for name, body := range bodies([]byte("those were no bytes")) {
		u := upload(content)
		err := f.Put(t.Context(), u, body)
		if !errors.Is(err, artifacts.ErrDigestMismatch) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		f.absent(t, u.Key)
	}
}

func testPutShortBody(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("x"), 100_000)
	for name, body := range bodies(content[:len(content)-1]) {
		u := upload(content)
		err := f.Put(t.Context(), u, body)
		if !errors.Is(err, artifacts.ErrSizeMismatch) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		f.absent(t, u.Key)
	}
}

func testPutLongBody(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("x"), 100_000)
	for name, body := range bodies(append(content, '!')) {
		u := upload(content)
		err := f.Put(t.Context(), u, body)
		if !errors.Is(err, artifacts.ErrSizeMismatch) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		f.absent(t, u.Key)
	}
	// No more is read than it takes to know.
	u := upload(content)
	endless := &countingReader{r: zeroReader{}}
	if err := f.Put(t.Context(), u, endless); !errors.Is(err, artifacts.ErrSizeMismatch) {
		t.Errorf("endless body: %v", err)
	}
	if n := endless.n.Load(); n > u.Size+1 {
		t.Errorf("%d bytes were read to store %d", n, u.Size)
	}
}

// bodies are the same bytes as a seekable and as an unseekable reader.
func bodies(b []byte) map[string]io.Reader {
	return map[string]io.Reader{"seekable": bytes.NewReader(b), "unseekable": onlyReader{bytes.NewReader(b)}}
}

type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// errBroken stands for a client that breaks off.
var errBroken = errors.New("the client broke off")

type brokenReader struct{ left int }

func (r *brokenReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, errBroken
	}
	n := min(r.left, len(p))
	clear(p[:n])
	r.left -= n
	return n, nil
}

func testPutBrokenBody(t *testing.T, f fixture) {
	content := make([]byte, 3<<20)
	for _, after := range []int{0, 1, 2 << 20, len(content)} {
		u := upload(content)
		err := f.Put(t.Context(), u, &brokenReader{left: after})
		if !errors.Is(err, errBroken) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("broken after %d bytes: %v", after, err)
		}
		f.absent(t, u.Key)
	}
}

func testPutIncompleteDescription(t *testing.T, f fixture) {
	for name, change := range map[string]func(*artifacts.Upload){
		"no key":      func(u *artifacts.Upload) { u.Key = "" },
		"no digest":   func(u *artifacts.Upload) { u.Digest = artifacts.Digest{} },
		"no size":     func(u *artifacts.Upload) { u.Size = -1 },
		"above 5 GiB": func(u *artifacts.Upload) { u.Size = artifacts.MaxSinglePut + 1 },
	} {
		u := upload([]byte("x"))
		change(&u)
		if err := f.Put(t.Context(), u, strings.NewReader("x")); err == nil {
			t.Errorf("Put with %s was accepted", name)
		}
		if _, err := f.SignPut(t.Context(), u, urlTTL); err == nil {
			t.Errorf("SignPut with %s was accepted", name)
		}
	}
}

func testPutOneKeyAtOnce(t *testing.T, f fixture) {
	const writers = 8
	u := upload([]byte("one of many"))
	uploads, results := make([]artifacts.Upload, writers), make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		uploads[i] = ofAnother(u)
		wg.Go(func() { results[i] = f.Put(t.Context(), uploads[i], strings.NewReader("one of many")) })
	}
	wg.Wait()
	stored := 0
	for i, err := range results {
		switch {
		case err == nil:
			stored++
			u = uploads[i]
		case !errors.Is(err, artifacts.ErrExists):
			t.Errorf("a writer that lost: %v", err)
		}
	}
	if stored != 1 {
		t.Errorf("%d of %d writers stored the object", stored, writers)
	}
	f.holds(t, u, []byte("one of many"))
}
