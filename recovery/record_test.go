package recovery

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

var plain = artifacts.Layout{Prefix: "x/"}

// manyFiles yields n files, made up as they are asked for.
func manyFiles(n int) func(func(pointer.ManifestFile, error) bool) {
	return func(yield func(pointer.ManifestFile, error) bool) {
		for i := range n {
			f := pointer.ManifestFile{File: pointer.File{Path: fmt.Sprintf("some/folder/<file> %06d.bin", i), Size: int64(i), MediaType: "text/plain",
				Digest: artifacts.DigestOf(fmt.Append(nil, i)), ArtifactID: uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, i))}}
			if !yield(f, nil) {
				return
			}
		}
	}
}

func rowOf(n int) *pointer.OutboxRow {
	sum, total := newManifestHash(), int64(0)
	for f := range manyFiles(n) {
		sum.add(&f.File)
		total += f.Size
	}
	return &pointer.OutboxRow{ID: uuid.New(), Kind: pointer.RecordVersion, InstallationID: uuid.New(), Pointer: "p", OperationID: uuid.New(),
		Token: pointer.Token{Epoch: 1, Generation: 2}, PublishedAt: time.Now().UTC(), Holder: "h", ManifestDigest: sum.digest(), FileCount: n, TotalBytes: total}
}

func keyOf(row *pointer.OutboxRow) string {
	return recordKey{row.Pointer, row.Token, row.ID}.in(plain, versionsFolder)
}

// The record of the largest version is written and read with little memory, and says every file.
func TestLargestVersionsRecord(t *testing.T) {
	row := rowOf(pointer.MaxFiles)
	s := newSpool()
	defer s.Close()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if err := writeVersion(s, row, manyFiles(pointer.MaxFiles)); err != nil {
		t.Fatal(err)
	}
	if s.file == nil {
		t.Fatalf("a record of %d bytes is kept in memory", s.size)
	}
	body, err := s.reader()
	if err != nil {
		t.Fatal(err)
	}
	v, err := readVersion(body, plain, keyOf(row), row.InstallationID)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for f, err := range v.files() {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 7 && (f.Path != "some/folder/<file> 000006.bin" || f.Size != 6) {
			t.Errorf("%+v", f)
		}
	}
	if n != pointer.MaxFiles || v.Holder != "h" || v.Token != row.Token {
		t.Errorf("%d files, %+v", n, v.VersionRecord)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8<<20 {
		t.Errorf("%d bytes of memory for a record of %d", grown, s.size)
	}
}

// Whatever is cut off or changed is noticed, at the end if not before.
func TestDamageIsNoticed(t *testing.T) {
	row := rowOf(50)
	var b bytes.Buffer
	if err := writeVersion(&b, row, manyFiles(50)); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	text := unzipped(t, good)
	if err := readAll(good, row); err != nil {
		t.Fatal(err)
	}
	for cut := range good {
		if err := readAll(good[:cut], row); !errors.Is(err, ErrDamagedRecord) {
			t.Fatalf("cut after %d bytes of %d: %v", cut, len(good), err)
		}
		flipped := bytes.Clone(good)
		flipped[cut] ^= 1
		if err := readAll(flipped, row); err != nil && !errors.Is(err, ErrDamagedRecord) && !errors.Is(err, ErrForeignRecord) {
			t.Fatalf("byte %d changed: %v", cut, err)
		} else if err == nil && !bytes.Equal(unzipped(t, flipped), text) { // some bits of gzip's say nothing
			t.Fatalf("byte %d changed, and nobody notices", cut)
		}
	}
	// Files that are others than those of the manifest digest are not even written.
	if err := writeVersion(io.Discard, row, manyFiles(49)); err == nil {
		t.Error("a record lacks a file")
	}
}

func unzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func rezipped(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	if err == nil {
		_, err = z.Write(text)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readAll(b []byte, row *pointer.OutboxRow) error {
	v, err := readVersion(bytes.NewReader(b), plain, keyOf(row), row.InstallationID)
	if err != nil {
		return err
	}
	for _, err := range v.files() {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestRecordKeys(t *testing.T) {
	k := recordKey{"a.b", pointer.Token{Epoch: 3, Generation: 42}, uuid.MustParse("01a22956-18f5-71f6-99ed-e515cc722b5d")}
	text := "x/versions/a.b/0000000003.000000000000042.01a22956-18f5-71f6-99ed-e515cc722b5d"
	if got := k.in(plain, versionsFolder); got != text {
		t.Errorf("%s", got)
	}
	if got, err := parseRecordKey(plain, versionsFolder, text); err != nil || got != k {
		t.Errorf("%+v, %v", got, err)
	}
	for _, odd := range []string{"", "x/versions/", "x/versions/a.b/3.42.01a22956-18f5-71f6-99ed-e515cc722b5d", text + "x", text[1:],
		"x/pointers/a.b/0000000003.000000000000042.01a22956-18f5-71f6-99ed-e515cc722b5d",
		"x/versions/a/b/0000000003.000000000000042.01a22956-18f5-71f6-99ed-e515cc722b5d",
		"x/versions/a.b/0000000003.-00000000000042.01a22956-18f5-71f6-99ed-e515cc722b5d"} {
		if _, err := parseRecordKey(plain, versionsFolder, odd); err == nil {
			t.Errorf("%q is taken for a record's key", odd)
		}
	}
	id := uuid.New()
	if got, name, err := parseOperationKey(plain, operationKey(plain, id, "a.b")); err != nil || got != id || name != "a.b" {
		t.Errorf("%s %s %v", got, name, err)
	}
}

// FuzzReadVersion: a record is something that anybody may have put into the bucket.
func FuzzReadVersion(f *testing.F) {
	row := rowOf(3)
	row.ID, row.InstallationID = uuid.Nil, uuid.Nil
	row.ID[0], row.InstallationID[0] = 1, 1
	var b bytes.Buffer
	if err := writeVersion(&b, row, manyFiles(3)); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes(), true)
	f.Add(unzipped(f, b.Bytes()), false)
	f.Add([]byte("{}"), false)
	f.Fuzz(func(t *testing.T, b []byte, zipped bool) {
		if !zipped { // a change to what is zipped already hardly ever gets any further than its checksum
			b = rezipped(t, b)
		}
		if err := readAll(b, row); err != nil && !errors.Is(err, ErrDamagedRecord) && !errors.Is(err, ErrForeignRecord) {
			t.Errorf("%v", err)
		}
	})
}
