package client_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

const partsRoute = "POST /v1/artifacts/018f3c2e-0000-7000-8000-00000000000a/parts"

// partedStore is a service and its store for one file in parts.
type partedStore struct {
	t          *testing.T
	svc, store *service
	there      sync.Map // number to bytes
	asked      atomic.Int64
}

const testPart = 1000

// newPartedStore answers as a service with these parts there; refuse, when not nil, may answer the
// PUT of a part instead of the store.
func newPartedStore(t *testing.T, refuse func(w http.ResponseWriter, r *http.Request) bool) *partedStore {
	p := &partedStore{t: t, svc: newService(t), store: newService(t)}
	p.svc.on(partsRoute, func(w http.ResponseWriter, r *http.Request) {
		var in types.PartsRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Parts) == 0 || len(in.Parts) > 100 {
			t.Errorf("asked for %d parts, %v", len(in.Parts), err)
		}
		out := types.PartsResponse{PartSize: testPart, Parts: []types.PartUpload{}, Uploaded: []types.UploadedPart{}}
		for _, part := range in.Parts {
			answer := types.PartUpload{Number: part.Number, State: "pending", Method: new("PUT"),
				Url: new(fmt.Sprintf("%s/part?partNumber=%d&X-Amz-Signature=%d", p.store.URL, part.Number, p.asked.Add(1)))}
			if b, ok := p.there.Load(part.Number); ok && digest(b.([]byte)) == part.Sha256 && int64(len(b.([]byte))) == part.Size {
				answer = types.PartUpload{Number: part.Number, State: "uploaded"}
			}
			out.Parts = append(out.Parts, answer)
		}
		replies(200, out)(w, r)
	})
	p.store.on("PUT /part", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("our credentials went to the store")
		}
		b, err := io.ReadAll(r.Body)
		if err != nil || refuse != nil && refuse(w, r) {
			return // a body ends early when another part has failed for good
		}
		var n int32
		if _, err := fmt.Sscan(r.URL.Query().Get("partNumber"), &n); err != nil {
			t.Error(err)
		}
		p.there.Store(n, b)
	})
	p.svc.on(completeRoute, func(w http.ResponseWriter, r *http.Request) {
		var in types.CompleteRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		for i, part := range in.Parts {
			b, ok := p.there.Load(part.Number)
			if !ok || int(part.Number) != i+1 || digest(b.([]byte)) != part.Sha256 {
				refuses(409, "not-uploaded")(w, r)
				return
			}
		}
		replies(200, types.Artifact{})(w, r)
	})
	return p
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (p *partedStore) staged(size int) types.StagedFile {
	return types.StagedFile{Path: "dir/file", ArtifactId: artifactID, State: "pending", Upload: &types.Upload{
		Kind: "multipart", PartSize: new(int64(testPart)), Parts: new(int32((size + testPart - 1) / testPart)),
	}}
}

func (p *partedStore) whole(count int) []byte {
	var b []byte
	for n := 1; n <= count; n++ {
		part, _ := p.there.Load(int32(n))
		b = append(b, part.([]byte)...)
	}
	return b
}

func TestUploadInParts(t *testing.T) {
	body, _ := payload(20*testPart + 1)
	for name, change := range map[string]func(*client.Source){
		"read at any place":    func(*client.Source) {},
		"read from the start":  func(s *client.Source) { s.OpenAt = nil },
		"some parts are there": nil,
	} {
		p := newPartedStore(t, nil)
		src, sent := source(t, body), 21
		if change != nil {
			change(&src)
		} else {
			p.there.Store(int32(2), body[testPart:2*testPart])
			p.there.Store(int32(21), body[20*testPart:])
			p.there.Store(int32(3), body[:testPart]) // of another file
			sent = 19
		}
		var told atomic.Int64
		if err := p.svc.client(t).Upload(t.Context(), p.staged(len(body)), src, func(n int64) { told.Add(n) }); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !bytes.Equal(p.whole(21), body) || told.Load() != int64(len(body)) || p.store.count("PUT /part") != sent {
			t.Errorf("%s: %d parts sent, progress told of %d", name, p.store.count("PUT /part"), told.Load())
		}
	}
}

// What fails on the way is asked for again: alone where it is one part, from the start where the store
// has lost the upload.
func TestUploadInPartsThatFail(t *testing.T) {
	body, _ := payload(5 * testPart)
	for name, test := range map[string]struct {
		status, times int
		code          string
		want          error
	}{
		"the store is busy":     {503, 2, "SlowDown", nil},
		"a URL is too old":      {403, 1, "AccessDenied", nil},
		"the upload is lost":    {404, 1, "NoSuchUpload", nil},
		"the upload stays lost": {404, 1000, "NoSuchUpload", &client.StoreError{}},
		"other bytes were sent": {400, 1000, "BadDigest", client.ErrSourceChanged},
		"a URL is never good":   {403, 1000, "AccessDenied", &client.StoreError{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var failed atomic.Int64
			p := newPartedStore(t, func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("partNumber") != "3" || failed.Add(1) > int64(test.times) {
					return false
				}
				w.WriteHeader(test.status)
				fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", test.code)
				return true
			})
			var told atomic.Int64
			err := p.svc.client(t).Upload(t.Context(), p.staged(len(body)), source(t, body), func(n int64) { told.Add(n) })
			var s *client.StoreError
			switch {
			case test.want == nil:
				if err != nil || told.Load() != int64(len(body)) || !bytes.Equal(p.whole(5), body) {
					t.Errorf("error %v, progress told of %d", err, told.Load())
				}
			case errors.Is(test.want, client.ErrSourceChanged):
				if !errors.Is(err, client.ErrSourceChanged) || failed.Load() != 1 {
					t.Errorf("error %v after %d tries", err, failed.Load())
				}
			case !errors.As(err, &s) || s.Status != test.status || failed.Load() > 9:
				t.Errorf("error %v after %d tries", err, failed.Load())
			}
		})
	}
}

// A part that is gone when the upload is completed is sent again, and only it.
func TestUploadWhosePartIsGone(t *testing.T) {
	body, _ := payload(5 * testPart)
	p := newPartedStore(t, nil)
	first := true
	p.svc.on(completeRoute, func(w http.ResponseWriter, r *http.Request) {
		if first {
			first = false
			p.there.Delete(int32(4))
			refuses(409, "not-uploaded")(w, r)
			return
		}
		replies(200, types.Artifact{})(w, r)
	})
	if err := p.svc.client(t).Upload(t.Context(), p.staged(len(body)), source(t, body), nil); err != nil {
		t.Fatal(err)
	}
	if n := p.store.count("PUT /part"); n != 6 || !bytes.Equal(p.whole(5), body) {
		t.Errorf("%d parts sent", n)
	}
}
