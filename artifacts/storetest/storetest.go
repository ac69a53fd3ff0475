// Package storetest is the conformance suite of [artifacts.Store]: what every driver does on
// every S3 server. A driver's test calls [Run] with each of testenv's servers, [RunFaults] with
// each of them behind a proxy that misbehaves, and [RunFakes] with servers that never behave.
package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
	"github.com/artifactd/artifactd/internal/testenv"
)

// Prefix is the key prefix that a store under test is configured with.
const Prefix = "tenant/"

var layout = artifacts.Layout{Prefix: Prefix}

// Open makes the store under test. It ends with the test.
type Open func(t testing.TB, c bucket.Config) artifacts.Store

// Config is the configuration of a store on a test's bucket.
func Config(b testenv.BucketConfig) bucket.Config {
	return bucket.Config{
		Endpoint: b.Endpoint, Region: b.Region, Bucket: b.Name, PathStyle: true, Prefix: Prefix,
		AccessKeyID: b.AccessKeyID, SecretAccessKey: b.SecretAccessKey,
	}
}

// Run runs every case against one server.
func Run(t *testing.T, server testenv.Server, open Open) {
	cases := []struct {
		name    string
		options []testenv.BucketOption
		test    func(*testing.T, fixture)
	}{
		{"PutGetHead", nil, testPutGetHead},
		{"PutEmpty", nil, testPutEmpty},
		{"PutUnseekable", nil, testPutUnseekable},
		{"PutProving", nil, testPutProving},
		{"PutManyMegabytes", nil, testPutManyMegabytes},
		{"PutIsCreateOnly", nil, testPutIsCreateOnly},
		{"PutWrongDigest", nil, testPutWrongDigest},
		{"PutShortBody", nil, testPutShortBody},
		{"PutLongBody", nil, testPutLongBody},
		{"PutBrokenBody", nil, testPutBrokenBody},
		{"PutIncompleteDescription", nil, testPutIncompleteDescription},
		{"PutOneKeyAtOnce", nil, testPutOneKeyAtOnce},
		{"Missing", nil, testMissing},
		{"Ranges", nil, testRanges},
		{"ReadHalf", nil, testReadHalf},
		{"Cancelled", nil, testCancelled},
		{"OddKeys", nil, testOddKeys},
		{"ListAndDelete1001", nil, testListAndDelete1001},
		{"ListStopsWhenToldTo", nil, testListStopsWhenToldTo},
		{"DeleteLeavesTheRest", nil, testDeleteLeavesTheRest},
		{"SignedPut", nil, testSignedPut},
		{"SignedPutEmpty", nil, testSignedPutEmpty},
		{"SignedPutWrongBytes", nil, testSignedPutWrongBytes},
		{"SignedPutTampered", nil, testSignedPutTampered},
		{"SignedPutIsCreateOnly", nil, testSignedPutIsCreateOnly},
		{"SignedPutExpired", nil, testSignedPutExpired},
		{"SignedGet", nil, testSignedGet},
		{"EnforcesSignedDigest", nil, func(t *testing.T, f fixture) { testEnforcesSignedDigest(t, f, open) }},
		{"Multipart", nil, testMultipart},
		{"MultipartSigned", nil, testMultipartSigned},
		{"MultipartPartsAreProved", nil, testMultipartPartsAreProved},
		{"MultipartPartReplaced", nil, testMultipartPartReplaced},
		{"MultipartMismatch", nil, testMultipartMismatch},
		{"MultipartIsCreateOnly", nil, testMultipartIsCreateOnly},
		{"MultipartAborted", nil, testMultipartAborted},
		{"MultipartCompletedAtOnce", nil, testMultipartCompletedAtOnce},
		{"MultipartIncompleteDescription", nil, testMultipartIncompleteDescription},
		{"MultipartCancelled", nil, testMultipartCancelled},
		{"ListMultiparts", nil, testListMultiparts},
		{"ListMultiparts1001", nil, testListMultiparts1001},
		{"ListParts1001", nil, testListParts1001},
		{"ReadDigest", nil, testReadDigest},
		{"TLS", nil, func(t *testing.T, f fixture) { testTLS(t, f, open) }},
		{"DeleteAllVersions", []testenv.BucketOption{testenv.Versioned()}, testDeleteAllVersions},
		{"DeleteRetained", []testenv.BucketOption{testenv.ObjectLock()}, testDeleteRetained},
		{"DeleteRetainedByDefault", []testenv.BucketOption{testenv.ObjectLock()}, testDeleteRetainedByDefault},
	}
	if server == testenv.MinIO { // the one that gives temporary credentials
		t.Run("SessionToken", func(t *testing.T) {
			t.Parallel()
			testSessionToken(t, testenv.Bucket(t, server), open)
		})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := testenv.Bucket(t, server, c.options...)
			c.test(t, fixture{Store: open(t, Config(b)), bucket: b})
		})
	}
}

// fixture is a store on an empty bucket.
type fixture struct {
	artifacts.Store
	bucket testenv.BucketConfig
}

// upload describes content under a new key.
func upload(content []byte) artifacts.Upload {
	d := artifacts.DigestOf(content)
	return artifacts.Upload{
		Key: layout.ArtifactKey(d, uuid.New()), Digest: d, Size: int64(len(content)), ContentType: "text/x-test",
		Metadata: map[string]string{"artifactd-pointer": "acme.reports", "artifactd-token": "1.42"},
	}
}

// ofAnother is an upload of the same bytes to the same key by somebody else. An upload in every respect the
// same may be taken for what is there: a store that refuses a body before it has read it breaks the
// connection, and then the refusal of the second attempt says nothing of the first.
func ofAnother(u artifacts.Upload) artifacts.Upload {
	u.Metadata = map[string]string{"artifactd-pointer": u.Metadata["artifactd-pointer"], "artifactd-token": uuid.NewString()}
	return u
}

// put stores content under a new key.
func (f fixture) put(t *testing.T, content []byte) artifacts.Upload {
	t.Helper()
	u := upload(content)
	if err := f.Put(t.Context(), u, bytes.NewReader(content)); err != nil {
		t.Fatalf("Put: %v", err)
	}
	return u
}

// holds checks that an object is what its upload described.
func (f fixture) holds(t *testing.T, u artifacts.Upload, content []byte) {
	t.Helper()
	o, err := f.Head(t.Context(), u.Key)
	if err != nil {
		t.Fatalf("Head: %v", err)
	}
	checkObject(t, "Head", o, u)
	if o.SHA256 != u.Digest {
		t.Errorf("Head: the store's SHA-256 is %v, not %v", o.SHA256, u.Digest)
	}
	r, o, err := f.Get(t.Context(), u.Key, artifacts.WholeObject)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	checkObject(t, "Get", o, u)
	if got := readAll(t, r); !bytes.Equal(got, content) {
		t.Errorf("Get: %d bytes that differ from the %d stored", len(got), len(content))
	}
}

func checkObject(t *testing.T, call string, o artifacts.Object, u artifacts.Upload) {
	t.Helper()
	if o.Key != u.Key || o.Size != u.Size || o.ContentType != u.ContentType || !maps.Equal(o.Metadata, u.Metadata) {
		t.Errorf("%s: %+v\nis not what was uploaded: %+v", call, o, u)
	}
	if age := time.Since(o.LastModified); age < -time.Minute || age > time.Hour {
		t.Errorf("%s: last modified %v ago", call, age)
	}
}

func readAll(t *testing.T, r io.ReadCloser) []byte {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	return b
}

// absent checks that nothing is stored under a key.
func (f fixture) absent(t *testing.T, key string) {
	t.Helper()
	if _, err := f.Head(t.Context(), key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Head of what must not be there: %v", err)
	}
}

// keys lists the keys under a prefix.
func (f fixture) keys(t *testing.T, prefix string) []string {
	t.Helper()
	var keys []string
	for o, err := range f.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

// onlyReader hides that a reader can do more than read.
type onlyReader struct{ io.Reader }

// zeros are n zero bytes and their digest, made as they are read.
func zeros(n int64) (io.Reader, artifacts.Digest) {
	r := func() io.Reader { return io.LimitReader(zeroReader{}, n) }
	h := sha256.New()
	if _, err := io.Copy(h, r()); err != nil {
		panic(fmt.Sprintf("hash zeros: %v", err)) // neither side can fail
	}
	return onlyReader{r()}, artifacts.Digest(h.Sum(nil))
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func cancelled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
