package api

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// member is a file of an archive.
type member struct {
	name    string
	content []byte
	kind    byte // 0 for a regular file
}

func archiveOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	writeMembers(t, tar.NewWriter(&b), true, members...)
	return b.Bytes()
}

func writeMembers(t testing.TB, w *tar.Writer, last bool, members ...member) {
	t.Helper()
	for _, m := range members {
		h := &tar.Header{Name: m.name, Size: int64(len(m.content)), Mode: 0o644, Typeflag: tar.TypeReg}
		if m.kind != 0 {
			h.Typeflag, h.Linkname = m.kind, "elsewhere"
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.content); err != nil {
			t.Fatal(err)
		}
	}
	end := w.Flush
	if last {
		end = w.Close
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
}

// numbered stages n files and gives the archive's members for them.
func (c client) numbered(l types.Lease, n int) []member {
	c.h.t.Helper()
	files, members := make([]types.StageFile, n), make([]member, n)
	for i := range files {
		members[i].content = fmt.Appendf(nil, "content %d of %s", i, l.LeaseId)
		files[i] = stageFile(fmt.Sprintf("f%04d", i), members[i].content)
	}
	for i, f := range c.stage(l, files...) {
		members[i].name = f.ArtifactId.String()
	}
	return members
}

// bulk sends an archive and answers the code of each item; empty for stored.
func (c client) bulk(l types.Lease, members ...member) []string {
	c.h.t.Helper()
	return c.codes(c.do("PUT", leasePath(l)+"/content", archiveOf(c.h.t, members...)))
}

func (c client) codes(a answer) []string {
	c.h.t.Helper()
	items := decoded[types.CompleteManyResponse](a.want(200)).Items
	codes := make([]string, len(items))
	for i, item := range items {
		switch {
		case item.Problem != nil:
			codes[i] = item.Problem.Code
		case item.State == nil || *item.State != "stored":
			c.h.t.Fatalf("item %d has neither a problem nor a state", i)
		}
	}
	return codes
}

// stored counts the artifacts that are stored, by how they were proved.
func (h *harness) stored() map[string]int {
	h.t.Helper()
	rows, err := h.db.Connect(h.t).Query(h.t.Context(), `SELECT verified, count(*) FROM artifactd.artifact WHERE stored_at IS NOT NULL GROUP BY 1`)
	if err != nil {
		h.t.Fatal(err)
	}
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var how string
		var n int
		if err := rows.Scan(&how, &n); err != nil {
			h.t.Fatal(err)
		}
		out[how] = n
	}
	return out
}

func (h *harness) wantStored(want map[string]int) {
	h.t.Helper()
	if got := h.stored(); !maps.Equal(got, want) {
		h.t.Errorf("stored are %v, want %v", got, want)
	}
}

// Each file of an archive is judged by itself, and what is right is stored and can be published.
func TestManyArtifactsInOneArchive(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, s3 testenv.Server) {
		t.Parallel()
		h := newHarness(t, setup{s3: s3})
		h.admin.create("p")
		h.admin.create("other")
		dead := h.admin.acquire("p")
		old := h.admin.numbered(dead, 1)[0]
		h.admin.do("DELETE", leasePath(dead), nil).want(204)
		foreign := h.admin.numbered(h.admin.acquire("other"), 1)[0]
		l := h.admin.acquire("p")
		members := h.admin.numbered(l, 150) // three chunks
		big := make([]byte, maxBulkFile)
		rest := h.admin.stage(l, stageFile("empty", nil), stageFile("largest", big), stageFile("too large", append(big, 1)),
			stageFile("stored", []byte("stored")), stageFile("stored too", []byte("stored too")), stageFile("replaced", []byte("before")))
		h.admin.stage(l, stageFile("replaced", []byte("after")))
		h.admin.upload(rest[3], []byte("stored"))
		h.admin.upload(rest[4], []byte("stored too"))
		name := func(i int) string { return rest[i].ArtifactId.String() }

		wrong := slices.Clone(members)
		wrong[7].content = []byte(strings.ToUpper(string(wrong[7].content)))
		wrong[9].content = append(slices.Clone(wrong[9].content), '!')
		wrong[11].name = "./" + wrong[11].name
		want := make([]string, len(wrong), len(wrong)+12)
		want[7], want[9] = "digest-mismatch", "size-mismatch"
		for _, extra := range []struct {
			member
			code string
		}{
			{member{name(0), nil, 0}, ""},
			{member{name(1), big, 0}, ""},
			{member{name(2), append(big, 1), 0}, "too-large"},
			{member{name(3), []byte("stored"), 0}, ""},
			{member{name(4), []byte("STORED TOO"), 0}, "digest-mismatch"},
			{member{name(5), []byte("before"), 0}, "artifact-not-found"},
			{member{old.name, old.content, 0}, "artifact-not-found"},
			{member{foreign.name, foreign.content, 0}, "artifact-not-found"},
			{member{uuid.NewString(), []byte("x"), 0}, "artifact-not-found"},
			{members[0], "invalid-request"},
		} {
			wrong, want = append(wrong, extra.member), append(want, extra.code)
		}
		wrong = append(wrong, member{"folder/", nil, tar.TypeDir})
		if got := h.admin.bulk(l, wrong...); !slices.Equal(got, want) {
			t.Errorf("answered %q,\nwant     %q", got, want)
		}
		h.wantStored(map[string]int{pointer.VerifiedByStore: 150, pointer.VerifiedOnTransfer: 2})
		if n := len(h.objects()); n != 152 {
			t.Errorf("%d objects are in the bucket, want 152", n)
		}
		// What failed is sent again; the others may be.
		if got := h.admin.bulk(l, members...); !slices.Equal(got, make([]string, 150)) {
			t.Errorf("the second time: %q", got)
		}
		h.admin.upload(rest[2], append(big, 1))
		after := h.admin.stage(l, stageFile("replaced", []byte("after")))[0]
		if got := h.admin.bulk(l, member{after.ArtifactId.String(), []byte("after"), 0}); got[0] != "" {
			t.Fatalf("the last file: %q", got)
		}
		v := h.admin.publish(l)
		for i, m := range members {
			if a := h.admin.do("GET", fmt.Sprintf("/v1/pointers/p/versions/%s/files/f%04d?via=proxy", v, i), nil).want(200); !bytes.Equal(a.body, m.content) {
				t.Fatalf("file %d reads %q", i, a.body)
			}
		}
		h.admin.do("PUT", leasePath(l)+"/content", archiveOf(t, members...)).problem(409, "lease-lost")
		h.as([]pointer.Scope{pointer.ScopePublish}, "other").do("PUT", leasePath(l)+"/content", archiveOf(t, members...)).problem(404, "lease-not-found")
		h.as([]pointer.Scope{pointer.ScopeRead}, "*").do("PUT", leasePath(l)+"/content", archiveOf(t, members...)).problem(403, "forbidden")
	})
}

// Who asks for it is told which files go together; nobody else meets that kind of upload.
func TestStagingSaysWhatGoesTogether(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: withSmallParts})
	h.admin.create("p")
	l := h.admin.acquire("p")
	in := types.StageRequest{Token: l.Token, Files: []types.StageFile{
		stageFile("small", []byte("small")), stageFile("limit", make([]byte, maxBulkFile)), stageFile("above", make([]byte, maxBulkFile+1)), stageFile("parts", large(1))}}
	for query, want := range map[string][]string{
		"":            {"single", "single", "single", "multipart"},
		"?bulk=false": {"single", "single", "single", "multipart"},
		"?bulk=true":  {"bulk", "bulk", "single", "multipart"},
	} {
		var kinds []string
		for _, f := range decoded[types.StageResponse](h.admin.do("POST", leasePath(l)+"/files"+query, in).want(201)).Files {
			kinds = append(kinds, f.Upload.Kind)
			if f.Upload.Kind == "bulk" && (*f.Upload.Url != leasePath(l)+"/content" || *f.Upload.Method != "PUT") {
				t.Errorf("%s goes to %s %s", f.Path, *f.Upload.Method, *f.Upload.Url)
			}
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("with %q the kinds are %q, want %q", query, kinds, want)
		}
	}
	h.admin.do("POST", leasePath(l)+"/files?bulk=maybe", in).invalid("bulk")
}

// tellingStore answers a PUT with a digest of the test's choice.
type tellingStore struct {
	artifacts.Store
	tells func(artifacts.Digest) artifacts.Digest
	heads atomic.Int64
	hides bool // Head tells no digest either
}

func (s *tellingStore) PutProving(ctx context.Context, u artifacts.Upload, body io.Reader) (artifacts.Digest, error) {
	d, err := s.Store.PutProving(ctx, u, body)
	return s.tells(d), err
}

func (s *tellingStore) Head(ctx context.Context, key string) (artifacts.Object, error) {
	s.heads.Add(1)
	o, err := s.Store.Head(ctx, key)
	if s.hides {
		o.SHA256 = artifacts.Digest{}
	}
	return o, err
}

// The store's answer to the PUT is a proof only where it tells the digest; everywhere else the object
// is looked at.
func TestArchivedArtifactsAreProved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tells func(artifacts.Digest) artifacts.Digest
		hides bool
		heads int64
		how   string
	}{
		"the answer tells it":   {func(d artifacts.Digest) artifacts.Digest { return d }, false, 0, pointer.VerifiedByStore},
		"the answer tells none": {func(artifacts.Digest) artifacts.Digest { return artifacts.Digest{} }, false, 20, pointer.VerifiedByStore},
		"the store knows none":  {func(artifacts.Digest) artifacts.Digest { return artifacts.Digest{} }, true, 20, pointer.VerifiedByRead},
		"the answer is another": {func(artifacts.Digest) artifacts.Digest { return artifacts.DigestOf([]byte("?")) }, true, 20, pointer.VerifiedByRead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &tellingStore{tells: tc.tells, hides: tc.hides}
			h := newHarness(t, setup{tune: func(o *Options) { store.Store, o.Store = o.Store, store }})
			h.admin.create("p")
			l := h.admin.acquire("p")
			if got := h.admin.bulk(l, h.admin.numbered(l, 20)...); !slices.Equal(got, make([]string, 20)) {
				t.Fatalf("answered %q", got)
			}
			h.wantStored(map[string]int{tc.how: 20})
			if n := store.heads.Load(); n != tc.heads {
				t.Errorf("%d objects were looked at, want %d", n, tc.heads)
			}
		})
	}
}

// What lies under an artifact's key already is proved, not taken on trust.
func TestArchivedArtifactWhoseObjectIsThere(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	members := h.admin.numbered(l, 2)
	for i, content := range [][]byte{members[0].content, []byte("something else")} {
		key := h.layout.ArtifactKey(artifacts.DigestOf(members[i].content), uuid.MustParse(members[i].name))
		if err := h.store.Put(t.Context(), artifacts.Upload{Key: key, Digest: artifacts.DigestOf(content), Size: int64(len(content))}, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.admin.bulk(l, members...); !slices.Equal(got, []string{"", "size-mismatch"}) {
		t.Errorf("answered %q", got)
	}
	h.wantStored(map[string]int{pointer.VerifiedByStore: 1})
}

// hookedStore does something once, before the nth PUT.
type hookedStore struct {
	artifacts.Store
	nth  int64
	puts atomic.Int64
	do   func()
}

func (s *hookedStore) PutProving(ctx context.Context, u artifacts.Upload, body io.Reader) (artifacts.Digest, error) {
	if s.puts.Add(1) == s.nth {
		s.do()
	}
	return s.Store.PutProving(ctx, u, body)
}

// A lease that ends while an archive is on its way ends it, and nothing of it is stored.
func TestLeaseEndsUnderAnArchive(t *testing.T) {
	t.Parallel()
	for name, nth := range map[string]int64{"in its middle": 10, "with its last file": 150} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &hookedStore{nth: nth}
			h := newHarness(t, setup{tune: func(o *Options) { store.Store, o.Store = o.Store, store }})
			h.admin.create("p")
			l := h.admin.acquire("p")
			store.do = func() {
				if err := h.catalogue.Release(context.Background(), l.LeaseId); err != nil {
					t.Error(err)
				}
			}
			p := h.admin.do("PUT", leasePath(l)+"/content", archiveOf(t, h.admin.numbered(l, 150)...)).problem(409, "lease-lost")
			if p.Reason == nil || *p.Reason != string(pointer.ReasonReleased) {
				t.Errorf("the reason is not told: %+v", p)
			}
			h.wantStored(map[string]int{})
			if n := store.puts.Load(); nth == 10 && n > 2*bulkChunkFiles {
				t.Errorf("%d files were put into the store although the lease had ended with the 10th", n)
			}
		})
	}
}

// An object whose row was collected while it was put is named by nothing; it is deleted.
func TestArchivedArtifactThatIsCollected(t *testing.T) {
	t.Parallel()
	store := &hookedStore{nth: 1}
	h := newHarness(t, setup{tune: func(o *Options) { store.Store, o.Store = o.Store, store }})
	owner := h.db.Connect(t)
	store.do = func() {
		if _, err := owner.Exec(t.Context(), `WITH f AS (DELETE FROM artifactd.manifest_file) DELETE FROM artifactd.artifact`); err != nil {
			t.Error(err)
		}
	}
	h.admin.create("p")
	l := h.admin.acquire("p")
	if got := h.admin.bulk(l, h.admin.numbered(l, 1)...); got[0] != "artifact-not-found" {
		t.Errorf("answered %q", got)
	}
	if n := len(h.objects()); n != 0 {
		t.Errorf("%d objects are left that nothing names", n)
	}
}

// A body that is no archive of artifacts is refused as a whole; what came before is stored.
func TestArchivesThatAreNone(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	members := h.admin.numbered(l, 3)
	whole := archiveOf(t, members...)
	for name, body := range map[string][]byte{
		"empty":           {},
		"no files":        archiveOf(t),
		"only a folder":   archiveOf(t, member{"folder/", nil, tar.TypeDir}),
		"text":            []byte(strings.Repeat("this is no archive\n", 100)),
		"cut in a header": whole[:1200],
		"cut in a file":   whole[:2*1024+512+3],
		"a name":          archiveOf(t, member{"report.txt", []byte("x"), 0}),
		"a path":          archiveOf(t, member{"a/" + members[0].name, members[0].content, 0}),
		"an id in braces": archiveOf(t, member{"{" + members[0].name + "}", members[0].content, 0}),
		"a link":          archiveOf(t, member{members[0].name, nil, tar.TypeSymlink}),
		"a device":        archiveOf(t, member{members[0].name, nil, tar.TypeChar}),
	} {
		if p := h.admin.do("PUT", leasePath(l)+"/content", body).invalid("body"); !strings.HasPrefix(p.Detail, "body: ") {
			t.Errorf("%s: %s", name, p.Detail)
		}
	}
	h.wantStored(map[string]int{pointer.VerifiedByStore: 2})
	if got := h.admin.bulk(l, members...); !slices.Equal(got, make([]string, 3)) {
		t.Errorf("the whole archive: %q", got)
	}
}

// An archive that is too large is refused, announced or not.
func TestArchivesThatAreTooLarge(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	many := h.admin.numbered(l, 3)
	for len(many) <= maxBulkFiles {
		many = append(many, member{uuid.NewString(), nil, 0})
	}
	h.admin.do("PUT", leasePath(l)+"/content", archiveOf(t, many...)).problem(413, "too-large")
	h.wantStored(map[string]int{pointer.VerifiedByStore: 3})
	h.admin.do("PUT", leasePath(l)+"/content", archiveOf(t, many[:maxBulkFiles]...)).want(200)

	huge := make([]member, 0, 200)
	for range cap(huge) {
		huge = append(huge, member{uuid.NewString(), make([]byte, maxBulkFile), 0})
	}
	body := archiveOf(t, huge...)
	h.admin.do("PUT", leasePath(l)+"/content", body).problem(413, "too-large")
	h.admin.do("PUT", leasePath(l)+"/content", io.MultiReader(bytes.NewReader(body))).problem(413, "too-large")
}

// cutArchive begins to send an archive, and closes the connection after n bytes of it.
func (c client) cutArchive(l types.Lease, body []byte, n int) {
	c.h.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.h.url, "http://"))
	if err != nil {
		c.h.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "PUT %s/content HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", leasePath(l), c.secret, len(body), body[:n]); err != nil {
		c.h.t.Fatal(err)
	}
}

// What had come whole when a connection broke is stored, and staging tells what is missing.
func TestArchiveWhoseConnectionBreaks(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	members := h.admin.numbered(l, 100)
	h.admin.cutArchive(l, archiveOf(t, members...), 80*1024+520) // 80 files, a header, and some bytes
	conn := h.db.Connect(t)
	eventually(t, "80 artifacts are stored", func() bool {
		var n int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM artifactd.artifact WHERE stored_at IS NOT NULL`).Scan(&n)
		return err == nil && n == 80
	})
	if n := len(h.objects()); n != 80 {
		t.Errorf("%d objects are in the bucket, want 80", n)
	}
}

// Files go into the store while the rest of the archive has not been sent yet.
func TestArchiveIsTakenAsItComes(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	members := h.admin.numbered(l, 2*bulkChunkFiles)
	r, w := io.Pipe()
	go func() {
		archive := tar.NewWriter(w)
		writeMembers(t, archive, false, members[:bulkChunkFiles]...)
		eventually(t, "the first files are in the bucket", func() bool { return len(h.objects()) == bulkChunkFiles })
		writeMembers(t, archive, true, members[bulkChunkFiles:]...)
		_ = w.Close()
	}()
	if got := h.admin.codes(h.admin.do("PUT", leasePath(l)+"/content", r)); !slices.Equal(got, make([]string, len(members))) {
		t.Errorf("answered %q", got)
	}
}

// So many archives are taken at once, and fewer of one caller; the next is told to come later, and
// one that ended leaves its place.
func TestArchivesAtOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	content := make([]byte, 64<<10) // more than a client gathers before it sends
	body := archiveOf(t, member{h.admin.stage(l, stageFile("f", content))[0].ArtifactId.String(), content, 0})
	var wg sync.WaitGroup
	var writers []*io.PipeWriter
	for range bulkOfCaller {
		r, w := io.Pipe()
		writers = append(writers, w)
		wg.Go(func() { h.admin.do("PUT", leasePath(l)+"/content", r).want(200) })
		if _, err := w.Write(body[:len(body)/2]); err != nil {
			t.Fatal(err)
		}
	}
	// Whoever asked instead of looking would take the place of one that is still on its way.
	held := h.bucketOf(h.admin)
	eventually(t, "the caller has as many as it may", func() bool { return held.bodies.Load() == bulkOfCaller*(maxBodies/bulkOfCaller) })
	h.admin.do("PUT", leasePath(l)+"/content", body).tooMany()
	second := h.as([]pointer.Scope{pointer.ScopePublish}, "*")
	second.do("PUT", leasePath(l)+"/content", body).want(200)
	eventually(t, "the archives under way are counted", func() bool {
		if h.server.bulks.TryAcquire(bulkRequests - bulkOfCaller + 1) {
			h.server.bulks.Release(bulkRequests - bulkOfCaller + 1)
			return false
		}
		return true
	})
	if err := h.server.bulks.Acquire(t.Context(), bulkRequests-bulkOfCaller); err != nil {
		t.Fatal(err)
	}
	second.do("PUT", leasePath(l)+"/content", body).problem(429, "too-many-requests")
	for _, w := range writers {
		if _, err := w.Write(body[len(body)/2:]); err != nil {
			t.Error(err)
		}
		_ = w.Close()
	}
	wg.Wait()
	eventually(t, "all have left their places", func() bool { return held.bodies.Load() == 0 })
	second.do("PUT", leasePath(l)+"/content", body).want(200)
	h.admin.do("PUT", leasePath(l)+"/content", body).want(200)
}

// Whatever comes as an archive, what is taken of it is within the bounds, and it comes to an end.
func FuzzArchive(f *testing.F) {
	id := "018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e8f"
	whole := archiveOf(f, member{id, []byte("content"), 0}, member{"./018f3c2e-5b7a-7c1d-9e2f-3a4b5c6d7e90", nil, 0})
	f.Add(whole)
	f.Add(whole[:1000])
	f.Add(archiveOf(f, member{id, []byte("x"), 0}, member{id, []byte("x"), 0}))
	f.Add(archiveOf(f, member{"folder/", nil, tar.TypeDir}, member{id, make([]byte, 2000), 0}))
	f.Add(archiveOf(f, member{id, nil, tar.TypeSymlink}))
	f.Fuzz(func(t *testing.T, body []byte) {
		a := newBulkArchive(&arrival{body: bytes.NewReader(body), control: http.NewResponseController(httptest.NewRecorder())})
		taken := map[uuid.UUID]bool{}
		for range maxBulkFiles + 2 {
			chunk, err := a.next()
			if len(chunk) > bulkChunkFiles {
				t.Fatalf("%d files at a time", len(chunk))
			}
			for _, item := range chunk {
				switch {
				case item.fault != nil && item.content != nil:
					t.Fatal("a file at fault has content")
				case item.fault == nil && (taken[item.id] || len(item.content) > maxBulkFile):
					t.Fatalf("%s is taken twice, or has %d bytes", item.id, len(item.content))
				case item.fault == nil:
					taken[item.id] = true
				}
			}
			if err != nil {
				if p, _, unexpected := problemOf(err); err != io.EOF && (unexpected || p.Status/100 != 4) {
					t.Fatalf("it ends with %v", err)
				}
				return
			}
		}
		t.Fatal("it does not end")
	})
}
