package storetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/artifactd/artifactd/artifacts"
)

// partSize is the smallest that S3 takes for any part but the last.
const partSize = 5 << 20

// cut is an object in parts.
type cut struct {
	artifacts.Upload
	content []byte
	parts   []artifacts.Part
}

// newCut describes an object of one full part and a short one.
func newCut() cut {
	content := bytes.Repeat([]byte("0123456789abcdef"), (partSize+4096)/16)
	c := cut{Upload: upload(content), content: content}
	for n := 1; len(content) > 0; n++ {
		size := min(len(content), partSize)
		c.parts = append(c.parts, artifacts.Part{Number: n, Size: int64(size), SHA256: artifacts.DigestOf(content[:size])})
		content = content[size:]
	}
	return c
}

// body is the bytes of a part.
func (c cut) body(p artifacts.Part) []byte {
	offset := int64(p.Number-1) * partSize
	return c.content[offset : offset+p.Size]
}

// begin creates the multipart upload.
func (f fixture) begin(t *testing.T, u artifacts.Upload) artifacts.Multipart {
	t.Helper()
	id, err := f.CreateMultipart(t.Context(), u)
	if err != nil || id == "" {
		t.Fatalf("CreateMultipart: %q, %v", id, err)
	}
	return artifacts.Multipart{Key: u.Key, UploadID: id}
}

// putParts begins an upload and sends every part.
func (f fixture) putParts(t *testing.T, c cut) artifacts.Multipart {
	t.Helper()
	m := f.begin(t, c.Upload)
	for _, p := range c.parts {
		if err := f.PutPart(t.Context(), m, p, bytes.NewReader(c.body(p))); err != nil {
			t.Fatalf("PutPart %d: %v", p.Number, err)
		}
	}
	return m
}

// holdsCut checks that the object is whole. The store has no checksum of the whole to show.
func (f fixture) holdsCut(t *testing.T, c cut) {
	t.Helper()
	o, err := f.Head(t.Context(), c.Key)
	if err != nil {
		t.Fatalf("Head: %v", err)
	}
	checkObject(t, "Head", o, c.Upload)
	if !o.SHA256.IsZero() {
		t.Errorf("Head: a composite checksum is reported as the whole object's: %v", o.SHA256)
	}
	if d, err := artifacts.ReadDigest(t.Context(), f, c.Key, c.Size); err != nil || d != c.Digest {
		t.Errorf("ReadDigest: %v, %v; want %v", d, err, c.Digest)
	}
}

func testMultipart(t *testing.T, f fixture) {
	c := newCut()
	m := f.begin(t, c.Upload)
	f.absent(t, c.Key)
	if parts, err := f.ListParts(t.Context(), m); err != nil || len(parts) != 0 {
		t.Errorf("ListParts of a new upload: %v, %v", parts, err)
	}
	for i, p := range slices.Backward(c.parts) {
		var body io.Reader = bytes.NewReader(c.body(p))
		if i == 0 {
			body = onlyReader{body}
		}
		if err := f.PutPart(t.Context(), m, p, body); err != nil {
			t.Fatalf("PutPart %d: %v", p.Number, err)
		}
	}
	if parts, err := f.ListParts(t.Context(), m); err != nil || !slices.Equal(parts, c.parts) {
		t.Errorf("ListParts: %v, %v; want %v", parts, err, c.parts)
	}
	f.absent(t, c.Key)
	for range 2 { // completing twice is completing once
		if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); err != nil {
			t.Fatalf("CompleteMultipart: %v", err)
		}
	}
	f.holdsCut(t, c)
	if _, err := f.ListParts(t.Context(), m); !errors.Is(err, artifacts.ErrUploadGone) {
		t.Errorf("ListParts of a completed upload: %v", err)
	}
	if err := f.PutPart(t.Context(), m, c.parts[1], bytes.NewReader(c.body(c.parts[1]))); !errors.Is(err, artifacts.ErrUploadGone) {
		t.Errorf("PutPart to a completed upload: %v", err)
	}
	if err := f.AbortMultipart(t.Context(), m); err != nil {
		t.Errorf("AbortMultipart of a completed upload: %v", err)
	}
	f.holdsCut(t, c)
}

func testMultipartSigned(t *testing.T, f fixture) {
	c := newCut()
	m := f.begin(t, c.Upload)
	for _, p := range c.parts {
		r, err := f.SignPart(t.Context(), m, p, urlTTL)
		if err != nil || r.Method != "PUT" || r.ExpiresAt.IsZero() {
			t.Fatalf("SignPart: %+v, %v", r, err)
		}
		if got := r.Header.Get("X-Amz-Checksum-Sha256"); got != p.SHA256.Base64() {
			t.Errorf("part %d is signed for the SHA-256 %q", p.Number, got)
		}
		wrong := bytes.Clone(c.body(p))
		wrong[len(wrong)-1]++
		refuses(t, "wrong bytes", r, wrong)
		refuses(t, "fewer bytes", withLength(r, len(wrong)-1), wrong[:len(wrong)-1])
		refuses(t, "more bytes", withLength(r, len(wrong)+1), append(bytes.Clone(c.body(p)), '!'))
		tampered := r
		tampered.Header = r.Header.Clone()
		tampered.Header.Set("X-Amz-Checksum-Sha256", artifacts.DigestOf(wrong).Base64())
		refuses(t, "another digest", tampered, wrong)
		tampered.Header.Del("X-Amz-Checksum-Sha256")
		refuses(t, "no digest", tampered, wrong)
		moved := r
		moved.URL = strings.Replace(r.URL, "partNumber=", "partNumber=7", 1)
		refuses(t, "another part", moved, c.body(p))
		if parts, err := f.ListParts(t.Context(), m); err != nil || len(parts) != p.Number-1 {
			t.Errorf("after refused PUTs the store holds %v, %v", parts, err)
		}
		stores(t, r, c.body(p))
	}
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); err != nil {
		t.Fatalf("CompleteMultipart: %v", err)
	}
	f.holdsCut(t, c)
	r, err := f.SignPart(t.Context(), m, c.parts[0], urlTTL)
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, "a part of a completed upload", r, c.body(c.parts[0]))
}

func testMultipartPartsAreProved(t *testing.T, f fixture) {
	content := bytes.Repeat([]byte("x"), 300_000)
	m := f.begin(t, upload(content))
	p := artifacts.Part{Number: 1, Size: int64(len(content)), SHA256: artifacts.DigestOf(content)}
	wrong := bytes.Clone(content)
	wrong[0] = 'y'
	for name, c := range map[string]struct {
		body []byte
		want error
	}{
		"digest": {wrong, artifacts.ErrDigestMismatch}, "short": {content[1:], artifacts.ErrSizeMismatch},
		"long": {append(bytes.Clone(content), 'x'), artifacts.ErrSizeMismatch},
	} {
		for kind, body := range bodies(c.body) {
			if err := f.PutPart(t.Context(), m, p, body); !errors.Is(err, c.want) || errors.Is(err, artifacts.ErrStoreUnavailable) {
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
	if err := f.PutPart(t.Context(), m, p, &brokenReader{left: 1000}); !errors.Is(err, errBroken) {
		t.Errorf("broken body: %v", err)
	}
	if parts, err := f.ListParts(t.Context(), m); err != nil || len(parts) != 0 {
		t.Errorf("the store holds %v, %v", parts, err)
	}
}

func testMultipartPartReplaced(t *testing.T, f fixture) {
	first, second := []byte("the first bytes"), []byte("the second")
	u := upload(second)
	m := f.begin(t, u)
	for _, body := range [][]byte{first, second, second} {
		p := artifacts.Part{Number: 1, Size: int64(len(body)), SHA256: artifacts.DigestOf(body)}
		if err := f.PutPart(t.Context(), m, p, bytes.NewReader(body)); err != nil {
			t.Fatal(err)
		}
		if parts, err := f.ListParts(t.Context(), m); err != nil || !slices.Equal(parts, []artifacts.Part{p}) {
			t.Errorf("ListParts: %v, %v; want %v", parts, err, p)
		}
	}
	parts := []artifacts.Part{{Number: 1, Size: u.Size, SHA256: u.Digest}}
	if err := f.CompleteMultipart(t.Context(), u, m.UploadID, parts); err != nil {
		t.Fatal(err)
	}
	if d, err := artifacts.ReadDigest(t.Context(), f, u.Key, u.Size); err != nil || d != u.Digest {
		t.Errorf("ReadDigest: %v, %v", d, err)
	}
}

func testMultipartMismatch(t *testing.T, f fixture) {
	c := newCut()
	m := f.putParts(t, c)
	other := slices.Clone(c.parts)
	other[1].SHA256 = artifacts.DigestOf([]byte("other bytes"))
	shorter := slices.Clone(c.parts)
	shorter[0].Size--
	shorter[1].Size++
	more := append(slices.Clone(c.parts), artifacts.Part{Number: 3, Size: 1, SHA256: artifacts.DigestOf([]byte("x"))})
	longer := c.Upload
	longer.Size++
	for name, try := range map[string]struct {
		u     artifacts.Upload
		parts []artifacts.Part
		want  error
	}{
		"another digest":   {c.Upload, other, artifacts.ErrPartMismatch},
		"another size":     {c.Upload, shorter, artifacts.ErrPartMismatch},
		"a part missing":   {longer, more, artifacts.ErrPartMismatch},
		"not the whole":    {c.Upload, c.parts[:1], artifacts.ErrSizeMismatch},
		"more than it has": {longer, c.parts, artifacts.ErrSizeMismatch},
	} {
		if err := f.CompleteMultipart(t.Context(), try.u, m.UploadID, try.parts); !errors.Is(err, try.want) {
			t.Errorf("%s: %v, want %v", name, err, try.want)
		}
		f.absent(t, c.Key)
	}
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, []artifacts.Part{c.parts[1], c.parts[0]}); err == nil {
		t.Error("parts out of order were accepted")
	}
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); err != nil {
		t.Fatalf("CompleteMultipart: %v", err)
	}
	f.holdsCut(t, c)
}

func testMultipartIsCreateOnly(t *testing.T, f fixture) {
	c := newCut()
	m := f.putParts(t, c)
	first := upload([]byte("was there first"))
	first.Key = c.Key
	if err := f.Put(t.Context(), first, strings.NewReader("was there first")); err != nil {
		t.Fatal(err)
	}
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("CompleteMultipart over an object: %v", err)
	}
	f.holds(t, first, []byte("was there first"))
	if err := f.AbortMultipart(t.Context(), m); err != nil {
		t.Errorf("AbortMultipart: %v", err)
	}
	if _, err := f.ListParts(t.Context(), m); !errors.Is(err, artifacts.ErrUploadGone) {
		t.Errorf("ListParts: %v", err)
	}
	// The upload gone and another object in its place are no success.
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); !errors.Is(err, artifacts.ErrUploadGone) {
		t.Errorf("CompleteMultipart of an aborted upload: %v", err)
	}
}

func testMultipartAborted(t *testing.T, f fixture) {
	c := newCut()
	m := f.putParts(t, c)
	unknown := artifacts.Multipart{Key: c.Key, UploadID: m.UploadID[:len(m.UploadID)-1] + "x"}
	for range 2 {
		if err := f.AbortMultipart(t.Context(), m); err != nil {
			t.Errorf("AbortMultipart: %v", err)
		}
	}
	for name, gone := range map[string]artifacts.Multipart{"aborted": m, "unknown": unknown} {
		if err := f.PutPart(t.Context(), gone, c.parts[1], bytes.NewReader(c.body(c.parts[1]))); !errors.Is(err, artifacts.ErrUploadGone) {
			t.Errorf("%s: PutPart: %v", name, err)
		}
		if _, err := f.ListParts(t.Context(), gone); !errors.Is(err, artifacts.ErrUploadGone) {
			t.Errorf("%s: ListParts: %v", name, err)
		}
		if err := f.CompleteMultipart(t.Context(), c.Upload, gone.UploadID, c.parts); !errors.Is(err, artifacts.ErrUploadGone) {
			t.Errorf("%s: CompleteMultipart: %v", name, err)
		}
		if err := f.AbortMultipart(t.Context(), gone); err != nil {
			t.Errorf("%s: AbortMultipart: %v", name, err)
		}
	}
	f.absent(t, c.Key)
}

// testMultipartCompletedAtOnce completes one upload from several sides, as replicas do.
func testMultipartCompletedAtOnce(t *testing.T, f fixture) {
	c := newCut()
	m := f.putParts(t, c)
	results := make([]error, 4)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i] = f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts) })
	}
	wg.Wait()
	done := 0
	for _, err := range results {
		if err == nil {
			done++
		}
	}
	if done == 0 {
		t.Errorf("nobody completed it: %v", errors.Join(results...))
	}
	// Whoever failed tries again, and finds it done.
	for i := range results {
		if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); err != nil {
			t.Errorf("again %d: %v", i, err)
		}
	}
	f.holdsCut(t, c)
}

func testMultipartIncompleteDescription(t *testing.T, f fixture) {
	u := upload([]byte("x"))
	m := f.begin(t, u)
	for name, change := range map[string]func(*artifacts.Upload){
		"no key":      func(u *artifacts.Upload) { u.Key = "" },
		"no digest":   func(u *artifacts.Upload) { u.Digest = artifacts.Digest{} },
		"no bytes":    func(u *artifacts.Upload) { u.Size = 0 },
		"above 5 TiB": func(u *artifacts.Upload) { u.Size = artifacts.MaxObject + 1 },
	} {
		bad := u
		change(&bad)
		if id, err := f.CreateMultipart(t.Context(), bad); err == nil {
			t.Errorf("CreateMultipart with %s: %s", name, id)
		}
		if err := f.CompleteMultipart(t.Context(), bad, m.UploadID, nil); err == nil {
			t.Errorf("CompleteMultipart with %s was accepted", name)
		}
	}
	good := artifacts.Part{Number: 1, Size: 1, SHA256: u.Digest}
	for name, change := range map[string]func(*artifacts.Multipart, *artifacts.Part){
		"no key":       func(m *artifacts.Multipart, _ *artifacts.Part) { m.Key = "" },
		"no upload id": func(m *artifacts.Multipart, _ *artifacts.Part) { m.UploadID = "" },
		"part 0":       func(_ *artifacts.Multipart, p *artifacts.Part) { p.Number = 0 },
		"part 10001":   func(_ *artifacts.Multipart, p *artifacts.Part) { p.Number = artifacts.MaxParts + 1 },
		"no bytes":     func(_ *artifacts.Multipart, p *artifacts.Part) { p.Size = 0 },
		"above 5 GiB":  func(_ *artifacts.Multipart, p *artifacts.Part) { p.Size = artifacts.MaxSinglePut + 1 },
		"no digest":    func(_ *artifacts.Multipart, p *artifacts.Part) { p.SHA256 = artifacts.Digest{} },
	} {
		m, p := m, good
		change(&m, &p)
		if err := f.PutPart(t.Context(), m, p, strings.NewReader("x")); err == nil {
			t.Errorf("PutPart with %s was accepted", name)
		}
		if _, err := f.SignPart(t.Context(), m, p, urlTTL); err == nil {
			t.Errorf("SignPart with %s was accepted", name)
		}
	}
	// Without an upload id, to abort would be to delete.
	f.put(t, []byte("x"))
	if err := f.AbortMultipart(t.Context(), artifacts.Multipart{Key: u.Key}); err == nil {
		t.Error("AbortMultipart without an upload id was accepted")
	}
	if _, err := f.ListParts(t.Context(), artifacts.Multipart{Key: u.Key}); err == nil {
		t.Error("ListParts without an upload id was accepted")
	}
}

func testMultipartCancelled(t *testing.T, f fixture) {
	c := newCut()
	m := f.putParts(t, c)
	ctx := cancelled(t)
	_, create := f.CreateMultipart(ctx, c.Upload)
	_, list := f.ListParts(ctx, m)
	var uploads error
	for _, uploads = range f.ListMultiparts(ctx, "") {
	}
	for call, err := range map[string]error{
		"CreateMultipart": create, "ListParts": list, "ListMultiparts": uploads,
		"PutPart":           f.PutPart(ctx, m, c.parts[1], bytes.NewReader(c.body(c.parts[1]))),
		"CompleteMultipart": f.CompleteMultipart(ctx, c.Upload, m.UploadID, c.parts),
		"AbortMultipart":    f.AbortMultipart(ctx, m),
	} {
		if !errors.Is(err, context.Canceled) || errors.Is(err, artifacts.ErrStoreUnavailable) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if _, err := artifacts.ReadDigest(ctx, f, c.Key, c.Size); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadDigest: %v", err)
	}
	if err := f.CompleteMultipart(t.Context(), c.Upload, m.UploadID, c.parts); err != nil {
		t.Errorf("after it: %v", err)
	}
	f.holdsCut(t, c)
}
