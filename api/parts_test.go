package api

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/miniostore"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// smallParts are the smallest that real stores take.
var smallParts = artifacts.Partition{SinglePut: 5 << 20, PartSize: 5 << 20}

// large is a file of three parts, the last of which is short.
func large(seed byte) []byte {
	b := make([]byte, 11<<20)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

func digestOf(b []byte) string {
	return contentDigestPrefix + artifacts.DigestOf(b).Base64() + contentDigestClose
}

// piece is part n of a file, from 1.
func piece(content []byte, n int) []byte {
	offset := (n - 1) * int(smallParts.PartSize)
	return content[offset:min(len(content), offset+int(smallParts.PartSize))]
}

// partsOf declares parts of a file; without numbers, all of them.
func partsOf(content []byte, numbers ...int) []types.Part {
	if len(numbers) == 0 {
		numbers = []int{1, 2, 3}
	}
	out := []types.Part{}
	for _, n := range numbers {
		b := piece(content, n)
		out = append(out, types.Part{Number: int32(n), Size: int64(len(b)), Sha256: artifacts.DigestOf(b).String()})
	}
	return out
}

func withSmallParts(o *Options) { o.Partition = smallParts }

// eachStore runs a test with every driver on a server of its own.
func eachStore(t *testing.T, test func(*testing.T, *harness)) {
	t.Helper()
	t.Run("aws, versitygw", func(t *testing.T) {
		t.Parallel()
		test(t, newHarness(t, setup{s3: testenv.Versitygw, tune: withSmallParts}))
	})
	t.Run("minio-go, MinIO", func(t *testing.T) {
		t.Parallel()
		b := testenv.Bucket(t, testenv.MinIO)
		store, err := miniostore.New(t.Context(), miniostore.Config{
			Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, PathStyle: true,
			AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey, Prefix: "test/",
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		h := newHarness(t, setup{tune: func(o *Options) { o.Partition, o.Store = smallParts, store }})
		h.store = store
		test(t, h)
	})
}

func (c client) parts(f types.StagedFile, parts []types.Part) types.PartsResponse {
	c.h.t.Helper()
	return decoded[types.PartsResponse](c.do("POST", artifactPath(f)+"/parts", types.PartsRequest{Parts: parts}).want(200))
}

// sendPart sends bytes to where a part goes, as a worker without our credentials would.
func (c client) sendPart(to types.PartUpload, b []byte) int {
	c.h.t.Helper()
	if to.Url == nil || to.Method == nil || to.ExpiresAt == nil || to.State != "pending" {
		c.h.t.Fatalf("part %d goes nowhere: %+v", to.Number, to)
	}
	url, secret := *to.Url, ""
	if strings.HasPrefix(url, "/") {
		url, secret = c.h.url+url, c.secret
	}
	req, err := http.NewRequestWithContext(c.h.t.Context(), *to.Method, url, bytes.NewReader(b))
	if err != nil {
		c.h.t.Fatal(err)
	}
	for k, v := range to.Headers {
		req.Header.Set(k, v)
	}
	if secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return connectionBroken
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// connectionBroken stands for the status of an answer that was lost: a store may hang up on a body
// that it has refused already.
const connectionBroken = 499

// sendParts sends what is pending of the named parts, and tells which that were.
func (c client) sendParts(f types.StagedFile, content []byte, numbers ...int) (sent []int) {
	c.h.t.Helper()
	for _, to := range c.parts(f, partsOf(content, numbers...)).Parts {
		if to.State == "uploaded" {
			continue
		}
		if code := c.sendPart(to, piece(content, int(to.Number))); code != 200 {
			c.h.t.Fatalf("part %d: the store answers %d", to.Number, code)
		}
		sent = append(sent, int(to.Number))
	}
	return sent
}

// uploads are the uploads in progress.
func (h *harness) uploads() (ids []string) {
	h.t.Helper()
	for m, err := range h.store.ListMultiparts(h.t.Context(), h.layout.ArtifactsPrefix()) {
		if err != nil {
			h.t.Fatal(err)
		}
		ids = append(ids, m.UploadID)
	}
	return ids
}

func (c client) complete(f types.StagedFile) answer {
	c.h.t.Helper()
	return c.do("POST", artifactPath(f)+"/complete", nil)
}

func TestUploadInParts(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, h *harness) {
		content := large(1)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		if u := f.Upload; u == nil || u.Kind != "multipart" || *u.PartSize != smallParts.PartSize || *u.Parts != 3 || u.Url != nil {
			t.Fatalf("upload: %+v", f.Upload)
		}
		if none := h.admin.parts(f, []types.Part{}); len(none.Parts) != 0 || len(none.Uploaded) != 0 || len(h.uploads()) != 0 {
			t.Errorf("before the first part: %+v", none)
		}
		h.admin.sendParts(f, content, 3, 1)
		p := h.admin.complete(f).problem(409, "not-uploaded")
		if p.Field == nil || *p.Field != "parts[1].number" || !strings.Contains(p.Detail, "Part 2 of 3") {
			t.Errorf("what is missing: %+v", p)
		}
		got := h.admin.parts(f, partsOf(content))
		if len(got.Uploaded) != 2 || got.Uploaded[0].Number != 1 || got.Uploaded[1].Size != 1<<20 ||
			got.Parts[0].State != "uploaded" || got.Parts[1].State != "pending" || got.Parts[2].State != "uploaded" {
			t.Errorf("what is there: %+v", got)
		}
		if sent := h.admin.sendParts(f, content); len(sent) != 1 || sent[0] != 2 {
			t.Errorf("sent %v", sent)
		}
		in := types.CompleteRequest{Parts: partsOf(content)}
		a := decoded[types.Artifact](h.admin.do("POST", artifactPath(f)+"/complete", in).want(200))
		if a.State != "stored" || *a.Verified != pointer.VerifiedByRead {
			t.Errorf("%+v", a)
		}
		h.admin.complete(f).want(200)
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("uploads left: %v", left)
		}
		if done := h.admin.parts(f, partsOf(content, 2)); done.Parts[0].State != "uploaded" || len(done.Uploaded) != 3 {
			t.Errorf("of a stored artifact: %+v", done)
		}
		version := h.admin.publish(l)
		read := h.admin.do("GET", "/v1/pointers/p/versions/"+version+"/files/f?via=proxy", nil).want(200)
		if !bytes.Equal(read.body, content) {
			t.Error("other bytes are read than were sent")
		}
		h.admin.do("POST", artifactPath(f)+"/parts", types.PartsRequest{Parts: partsOf(content)}).problem(409, "lease-lost")
		h.admin.do("PUT", artifactPath(f)+"/parts/1", piece(content, 1), contentDigest, digestOf(piece(content, 1))).problem(409, "lease-lost")
	})
}

// S1: a part with other bytes than it was signed for is refused by the store. All parts right, but
// for another file than was declared, are found out by reading the whole back.
func TestScheduleS1WrongBytesInParts(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, h *harness) {
		content, other := large(1), large(2)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		to := h.admin.parts(f, partsOf(content)).Parts
		wrong := bytes.Clone(piece(content, 2))
		wrong[1<<20] ^= 1
		for _, b := range [][]byte{wrong, piece(content, 2)[1:]} {
			if code := h.admin.sendPart(to[1], b); code < 400 || code >= 500 {
				t.Errorf("a part of %d wrong bytes: the store answers %d", len(b), code)
			}
		}
		if there := h.admin.parts(f, []types.Part{}).Uploaded; len(there) != 0 {
			t.Errorf("stored: %+v", there)
		}
		h.admin.sendParts(f, other)
		// Its parts are not what this caller would declare.
		in := types.CompleteRequest{Parts: partsOf(content)}
		if p := h.admin.do("POST", artifactPath(f)+"/complete", in).problem(409, "not-uploaded"); *p.Field != "parts[0].sha256" {
			t.Errorf("a part that is not the declared one: %+v", p)
		}
		h.admin.complete(f).problem(422, "digest-mismatch")
		h.admin.complete(f).problem(422, "digest-mismatch")
		publish := types.PublishRequest{OperationId: uuid.New(), Token: l.Token}
		if p := h.admin.do("POST", leasePath(l)+"/publish", publish).problem(409, "publish-refused"); *p.Reason != "incomplete" {
			t.Errorf("the publish: %+v", p)
		}
		again := h.admin.stage(l, stageFile("f", content))[0]
		if again.ArtifactId == f.ArtifactId || again.State != "pending" {
			t.Fatalf("staged again: %+v", again)
		}
		if sent := h.admin.sendParts(again, content); len(sent) != 3 {
			t.Errorf("sent %v", sent)
		}
		h.admin.complete(again).want(200)
		h.admin.publish(l)
	})
}

// A successor goes on where the generation before it was cut off.
func TestPartsAreAdopted(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, h *harness) {
		content := large(1)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		h.admin.sendParts(f, content, 2)
		h.admin.do("DELETE", leasePath(l), nil).want(204)
		h.admin.do("POST", artifactPath(f)+"/parts", types.PartsRequest{Parts: partsOf(content)}).problem(409, "lease-lost")
		next := h.admin.acquire("p")
		f = h.admin.stage(next, stageFile("elsewhere", content))[0]
		if sent := h.admin.sendParts(f, content); fmt.Sprint(sent) != "[1 3]" {
			t.Errorf("sent %v", sent)
		}
		h.admin.complete(f).want(200)
		h.admin.publish(next)
	})
}

// S2: an upload that the store has lost begins anew. One that was completed, though nobody heard of
// it, is proved.
func TestScheduleS2LostUploadsAndLostAnswers(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, h *harness) {
		content := large(1)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		key := h.layout.ArtifactKey(artifacts.DigestOf(content), f.ArtifactId)
		h.admin.sendParts(f, content)
		abort := func() {
			ids := h.uploads()
			if len(ids) != 1 {
				t.Fatalf("uploads %v", ids)
			}
			if err := h.store.AbortMultipart(t.Context(), artifacts.Multipart{Key: key, UploadID: ids[0]}); err != nil {
				t.Fatal(err)
			}
		}
		abort()
		h.admin.complete(f).problem(409, "not-uploaded")
		if sent := h.admin.sendParts(f, content); len(sent) != 3 {
			t.Errorf("sent %v", sent)
		}
		abort()
		if sent := h.admin.sendParts(f, content); len(sent) != 3 {
			t.Errorf("sent %v", sent)
		}

		var parts []artifacts.Part
		for n := 1; n <= 3; n++ {
			b := piece(content, n)
			parts = append(parts, artifacts.Part{Number: n, Size: int64(len(b)), SHA256: artifacts.DigestOf(b)})
		}
		stored, err := h.catalogue.Artifact(t.Context(), f.ArtifactId)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.store.CompleteMultipart(t.Context(), h.server.storeUpload(stored), stored.UploadID, parts); err != nil {
			t.Fatal(err)
		}
		if there := h.admin.parts(f, partsOf(content)); there.Parts[0].State != "uploaded" || len(there.Uploaded) != 3 {
			t.Errorf("of a completed upload: %+v", there)
		}
		if a := decoded[types.Artifact](h.admin.complete(f).want(200)); *a.Verified != pointer.VerifiedByRead {
			t.Errorf("%+v", a)
		}
		h.admin.publish(l)
	})
}

func TestPartsThatAreNoParts(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: withSmallParts})
	content := large(1)
	h.admin.create("p")
	l := h.admin.acquire("p")
	staged := h.admin.stage(l, stageFile("f", content), stageFile("small", []byte("x")))
	f, small := staged[0], staged[1]
	ask := func(parts ...types.Part) answer {
		return h.admin.do("POST", artifactPath(f)+"/parts", map[string]any{"parts": parts})
	}
	good := partsOf(content)
	with := func(change func(*types.Part)) types.Part {
		p := good[1]
		change(&p)
		return p
	}
	ask(with(func(p *types.Part) { p.Number = 4 })).invalid("parts[0].number")
	ask(with(func(p *types.Part) { p.Number = 0 })).invalid("parts[0].number")
	ask(good[0], with(func(p *types.Part) { p.Size++ })).invalid("parts[1].size")
	ask(with(func(p *types.Part) { p.Number = 3 })).invalid("parts[0].size")
	ask(good[0], good[1], good[0]).invalid("parts[2].number")
	ask(with(func(p *types.Part) { p.Sha256 = strings.ToUpper(p.Sha256) })).invalid("parts[0].sha256")
	ask(with(func(p *types.Part) { p.Sha256 = artifacts.Digest{}.String() })).invalid("parts[0].sha256")
	h.admin.do("POST", artifactPath(f)+"/parts", map[string]any{"parts": make([]types.Part, 101)}).invalid("parts")
	h.admin.do("POST", artifactPath(f)+"/parts", map[string]any{}).invalid("parts")
	h.admin.do("POST", artifactPath(small)+"/parts", types.PartsRequest{Parts: []types.Part{}}).invalid("artifact_id")
	if left := h.uploads(); len(left) != 0 {
		t.Errorf("uploads were begun: %v", left)
	}
	h.admin.sendParts(f, content)
	h.admin.do("POST", artifactPath(f)+"/complete", types.CompleteRequest{Parts: good[:2]}).invalid("parts")
	h.admin.do("POST", artifactPath(f)+"/complete", types.CompleteRequest{Parts: []types.Part{good[2], good[0], good[1]}}).want(200)
}

// Where the store does not enforce signed digests, parts go through the service, which checks them.
func TestPartsThroughTheService(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, s3 testenv.Server) {
		t.Parallel()
		h := newHarness(t, setup{s3: s3, tune: func(o *Options) { o.Partition, o.Store = smallParts, laxStore{o.Store} }})
		content := large(1)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		to := h.admin.parts(f, partsOf(content)).Parts
		if *to[1].Url != artifactPath(f)+"/parts/2" || to[1].Headers[contentDigest] != digestOf(piece(content, 2)) {
			t.Fatalf("part: %+v", to[1])
		}
		second, path := piece(content, 2), *to[1].Url
		wrong := bytes.Clone(second)
		wrong[0] ^= 1
		h.admin.do("PUT", path, wrong, contentDigest, digestOf(second)).problem(422, "digest-mismatch")
		h.admin.do("PUT", path, second[1:], contentDigest, digestOf(second)).problem(422, "size-mismatch")
		h.admin.do("PUT", path, second).invalid(contentDigest)
		h.admin.do("PUT", path, second, contentDigest, "sha-256=:x:").invalid(contentDigest)
		// 43 characters of which the last carries bits that no 32 bytes have.
		h.admin.do("PUT", path, second, contentDigest, "sha-256=:"+strings.Repeat("A", 42)+"B=:").invalid(contentDigest)
		h.admin.do("PUT", path, second, contentDigest, "sha256:x").invalid(contentDigest)
		h.admin.do("PUT", path, second, contentDigest, contentDigestPrefix+artifacts.Digest{}.Base64()+contentDigestClose).invalid(contentDigest)
		h.admin.do("PUT", artifactPath(f)+"/parts/4", second, contentDigest, digestOf(second)).invalid("number")
		h.admin.do("PUT", artifactPath(f)+"/parts/10001", second, contentDigest, digestOf(second)).invalid("number")
		if there := h.admin.parts(f, []types.Part{}).Uploaded; len(there) != 0 {
			t.Errorf("stored: %+v", there)
		}
		h.admin.sendParts(f, content)
		h.admin.complete(f).want(200)
		h.admin.do("PUT", path, second, contentDigest, digestOf(second)).want(200)
		h.admin.publish(l)
	})
}

// A store that does not tell the digests of parts needs them declared; the whole is proved anyway.
func TestStoreThatForgetsDigestsOfParts(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{tune: func(o *Options) { o.Partition, o.Store = smallParts, lossyStore{o.Store} }})
	content := large(1)
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", content))[0]
	h.admin.sendParts(f, content)
	if sent := h.admin.sendParts(f, content); len(sent) != 0 {
		t.Errorf("sent %v again", sent)
	}
	h.admin.complete(f).invalid("parts")
	h.admin.do("POST", artifactPath(f)+"/complete", types.CompleteRequest{Parts: partsOf(content)}).want(200)
	h.admin.publish(l)
}

// A large file may also come in one PUT. Its upload in parts is then dropped, not forgotten.
func TestLargeFileInOnePut(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, h *harness) {
		content := large(1)
		h.admin.create("p")
		l := h.admin.acquire("p")
		f := h.admin.stage(l, stageFile("f", content))[0]
		h.admin.sendParts(f, content, 1)
		h.admin.upload(f, content)
		if left := h.uploads(); len(left) != 0 {
			t.Errorf("uploads left: %v", left)
		}
		h.admin.publish(l)
	})
}

func TestLargestFiles(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	l := h.admin.acquire("p")
	file := stageFile("f", []byte("x"))
	file.Size = artifacts.MaxObject
	f := h.admin.stage(l, file)[0]
	if u := f.Upload; u.Kind != "multipart" || *u.PartSize != 583<<20 || *u.Parts != 8993 {
		t.Errorf("upload: %+v", u)
	}
	file.Size++
	h.admin.do("POST", leasePath(l)+"/files", types.StageRequest{Token: l.Token, Files: []types.StageFile{file}}).invalid("files[0].size")

	file.Path, file.Size = "g", artifacts.MaxSinglePut+1
	f = h.admin.stage(l, file)[0]
	req := h.admin.request("PUT", contentPath(f), nil)
	req.Body, req.ContentLength = http.NoBody, file.Size
	req.Header.Set("Expect", "100-continue")
	req.Body = struct{ *neverRead }{&neverRead{t}}
	if p := h.admin.send(req).problem(413, "too-large"); !strings.Contains(p.Detail, artifactPath(f)+"/parts") {
		t.Errorf("%+v", p)
	}
}

// neverRead is the body of a request that is refused before it is sent.
type neverRead struct{ t *testing.T }

func (n *neverRead) Read([]byte) (int, error) {
	n.t.Error("the body was asked for")
	return 0, http.ErrBodyReadAfterClose
}

func (n *neverRead) Close() error { return nil }

// Of callers that begin an upload at once, all send to the same one, and nothing of the others stays.
func TestUploadsThatBeginAtOnce(t *testing.T) {
	t.Parallel()
	const callers = 3
	var begun sync.WaitGroup
	begun.Add(callers)
	h := newHarness(t, setup{s3: testenv.MinIO, tune: func(o *Options) {
		o.Partition = smallParts
		o.Store = gatedStore{Store: o.Store, create: func() {
			begun.Done()
			begun.Wait()
		}}
	}})
	content := large(1)
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", content))[0]
	var group errgroup.Group
	for n := 1; n <= callers; n++ {
		group.Go(func() error {
			h.admin.sendParts(f, content, n)
			return nil
		})
	}
	_ = group.Wait() // failures are the test's own
	if ids := h.uploads(); len(ids) != 1 {
		t.Errorf("uploads in progress: %v", ids)
	}
	h.admin.complete(f).want(200)
	h.admin.publish(l)
}

// Completes of one artifact at once share one proof, which outlives callers that hang up.
func TestCompletesAtOnce(t *testing.T) {
	t.Parallel()
	reading, gate := make(chan struct{}, 8), make(chan struct{})
	h := newHarness(t, setup{tune: func(o *Options) {
		o.Partition = smallParts
		o.Store = gatedStore{Store: o.Store, read: func() {
			reading <- struct{}{}
			<-gate
		}}
	}})
	content := large(1)
	h.admin.create("p")
	l := h.admin.acquire("p")
	f := h.admin.stage(l, stageFile("f", content))[0]
	h.admin.sendParts(f, content)

	// The first hangs up while its object is read back.
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		req := h.admin.request("POST", artifactPath(f)+"/complete", nil)
		_, err := http.DefaultClient.Do(req.WithContext(ctx))
		gone <- err
	}()
	<-reading
	hangUp()
	if err := <-gone; err == nil {
		t.Fatal("the first caller was answered")
	}
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			if a := decoded[types.Artifact](h.admin.complete(f).want(200)); *a.Verified != pointer.VerifiedByRead {
				t.Errorf("%+v", a)
			}
			return nil
		})
	}
	eventually(t, "all wait", func() bool {
		h.server.proofs.mu.Lock()
		defer h.server.proofs.mu.Unlock()
		one := h.server.proofs.running[f.ArtifactId]
		return one != nil && one.waiting == 3
	})
	close(gate)
	_ = group.Wait() // failures are the test's own
	if n := len(reading); n != 0 {
		t.Errorf("the object was read %d times more", n)
	}
	h.admin.publish(l)
}

// A proof that nobody waits for ends after a while, and at once when the service shuts down.
func TestProofsThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	started := make(chan struct{}, 1)
	endless := func(ctx context.Context) (pointer.Artifact, error) {
		started <- struct{}{}
		<-ctx.Done()
		return pointer.Artifact{}, ctx.Err()
	}
	idle := func(p *proofs) func() bool {
		return func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.running) == 0
		}
	}
	for what, p := range map[string]*proofs{"short linger": newProofs(1), "long linger": newProofs(proofLinger)} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-started
			cancel()
		}()
		if _, err := p.join(ctx, uuid.New(), endless); err == nil {
			t.Errorf("%s: an endless proof ended", what)
		}
		if what == "long linger" {
			if idle(p)() {
				t.Error("the proof ended with its caller")
			}
			p.drain()
		}
		eventually(t, what, idle(p))
	}
}
