package recovery

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// ErrDamagedRecord: a record is not what one of its kind would be, or is not that of its key.
var ErrDamagedRecord = errors.New("damaged record")

// ErrForeignRecord: a record was written by another installation.
var ErrForeignRecord = errors.New("record of another installation")

// The formats. A record begins with its format; a reader refuses one that it does not know.
const (
	versionFormat = "artifactd-version/1"
	pointerFormat = "artifactd-pointer/1"
	abortedFormat = "artifactd-aborted/1"
)

// versionHeader is the first line of a version's record, which is gzipped lines of JSON. The other
// lines are its files in the order of their paths. The manifest digest covers all of them.
type versionHeader struct {
	Format         string           `json:"format"`
	InstallationID uuid.UUID        `json:"installation_id"`
	Pointer        string           `json:"pointer"`
	Token          pointer.Token    `json:"token"`
	EpochUUID      uuid.UUID        `json:"epoch_uuid"` // of the history that issued the token
	GenerationID   uuid.UUID        `json:"generation_id"`
	OperationID    uuid.UUID        `json:"operation_id"`
	PublishedAt    time.Time        `json:"published_at"`
	Holder         string           `json:"holder"`
	SourceRevision *int64           `json:"source_revision,omitempty"`
	Metadata       json.RawMessage  `json:"metadata,omitempty"`
	RollbackOf     *uuid.UUID       `json:"rollback_of,omitempty"` // a generation's id
	Recovered      *recoveredHeader `json:"recovered_from,omitempty"`
	ManifestDigest string           `json:"manifest_digest"`
	FileCount      int              `json:"file_count"`
	TotalBytes     int64            `json:"total_bytes"`
}

// recoveredHeader says which version of a lost history this one was.
type recoveredHeader struct {
	GenerationID uuid.UUID     `json:"generation_id"`
	Token        pointer.Token `json:"token"`
}

// fileLine is one file of a version.
type fileLine struct {
	Path       string    `json:"path"`
	Digest     string    `json:"digest"`
	Size       int64     `json:"size"`
	MediaType  string    `json:"media_type"`
	ArtifactID uuid.UUID `json:"artifact_id"`
}

// manifestHash is the digest of a manifest as the database computes it, file by file in the order
// of their paths.
type manifestHash struct{ sum hash.Hash }

func newManifestHash() manifestHash { return manifestHash{sha256.New()} }

func (m manifestHash) add(f *pointer.File) {
	m.sum.Write(append([]byte(f.Path), 0))
	m.sum.Write(append(f.Digest[:], 0))
	m.sum.Write(append(strconv.AppendInt(nil, f.Size, 10), 0))
	m.sum.Write(append([]byte(f.MediaType), '\n'))
}

func (m manifestHash) digest() artifacts.Digest {
	d, _ := artifacts.DigestFromSum(m.sum.Sum(nil)) // a SHA-256 sum has the right length
	return d
}

// compressors are kept: one takes half a mebibyte to make.
var compressors = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // a level that exists
	return w
}}

// writeVersion writes a version's record. The files must come in the order of their paths, and be
// all of them: their digest is compared with the row's.
func writeVersion(w io.Writer, row *pointer.OutboxRow, files iter.Seq2[pointer.ManifestFile, error]) error {
	z := compressors.Get().(*gzip.Writer)
	defer compressors.Put(z)
	z.Reset(w)
	lines := json.NewEncoder(z)
	lines.SetEscapeHTML(false)
	h := versionHeader{
		Format: versionFormat, InstallationID: row.InstallationID, Pointer: row.Pointer, Token: row.Token,
		EpochUUID: row.EpochUUID, GenerationID: row.ID, OperationID: row.OperationID, PublishedAt: row.PublishedAt, Holder: row.Holder,
		SourceRevision: row.SourceRevision, Metadata: row.Metadata, RollbackOf: row.RollbackOf,
		ManifestDigest: row.ManifestDigest.String(), FileCount: row.FileCount, TotalBytes: row.TotalBytes,
	}
	if row.Recovered != nil {
		h.Recovered = &recoveredHeader{row.Recovered.GenerationID, row.Recovered.Token}
	}
	if err := lines.Encode(h); err != nil {
		return err
	}
	sum := newManifestHash()
	for f, err := range files {
		if err != nil {
			return err
		}
		sum.add(&f.File)
		if err := lines.Encode(fileLine{f.Path, f.Digest.String(), f.Size, f.MediaType, f.ArtifactID}); err != nil {
			return err
		}
	}
	if got := sum.digest(); got != row.ManifestDigest {
		return fmt.Errorf("the files in the database have the manifest digest %s, version %s of %s was published with %s",
			got, row.Token, row.Pointer, row.ManifestDigest)
	}
	return z.Close()
}

// maxLine bounds a line of a record, in bytes: metadata of 16 KiB and a path of 1 KiB, escaped.
const maxLine = 256 << 10

// versionReader reads a version's record: its header first, then Files, once.
type versionReader struct {
	pointer.VersionRecord
	TotalBytes int64

	lines *bufio.Scanner
}

// readVersion reads the header and checks that the record is of this key and installation.
// [ErrDamagedRecord], [ErrForeignRecord].
func readVersion(r io.Reader, layout artifacts.Layout, key string, installation uuid.UUID) (*versionReader, error) {
	k, err := parseRecordKey(layout, versionsFolder, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	v := &versionReader{lines: bufio.NewScanner(z)}
	v.lines.Buffer(nil, maxLine)
	var h versionHeader
	if err := v.line(&h); err == io.EOF {
		return nil, fmt.Errorf("%w: it is empty", ErrDamagedRecord)
	} else if err != nil {
		return nil, err
	}
	if h.Format != versionFormat {
		return nil, fmt.Errorf("%w: its format is %q, this program knows %q", ErrDamagedRecord, h.Format, versionFormat)
	}
	if h.InstallationID != installation {
		return nil, fmt.Errorf("%w: %s", ErrForeignRecord, h.InstallationID)
	}
	digest, err := artifacts.ParseDigest(h.ManifestDigest)
	if err != nil {
		return nil, fmt.Errorf("%w: manifest digest: %w", ErrDamagedRecord, err)
	}
	if (recordKey{h.Pointer, h.Token, h.GenerationID}) != k || h.OperationID == uuid.Nil || h.FileCount < 1 || h.FileCount > pointer.MaxFiles ||
		h.PublishedAt.IsZero() || h.Holder == "" {
		return nil, fmt.Errorf("%w: it says other things than its key, or less than it must", ErrDamagedRecord)
	}
	v.VersionRecord = pointer.VersionRecord{
		Key: key, GenerationID: h.GenerationID, Pointer: h.Pointer, Token: h.Token, OperationID: h.OperationID,
		PublishedAt: h.PublishedAt, Holder: h.Holder, SourceRevision: h.SourceRevision, Metadata: h.Metadata,
		RollbackOf: h.RollbackOf, ManifestDigest: digest, FileCount: h.FileCount,
	}
	v.TotalBytes = h.TotalBytes
	if h.Recovered != nil {
		v.Recovered = &pointer.Recovered{GenerationID: h.Recovered.GenerationID, Token: h.Recovered.Token}
	}
	return v, nil
}

// line reads the next line into dest. io.EOF after the last one.
func (v *versionReader) line(dest any) error {
	if !v.lines.Scan() {
		if err := v.lines.Err(); err != nil {
			return fmt.Errorf("%w: %w", ErrDamagedRecord, err)
		}
		return io.EOF
	}
	if err := json.Unmarshal(v.lines.Bytes(), dest); err != nil {
		return fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	return nil
}

// files yields the files in the order of their paths, and at the end an error unless they were
// exactly those of the manifest digest.
func (v *versionReader) files() iter.Seq2[pointer.File, error] {
	return func(yield func(pointer.File, error) bool) {
		sum := newManifestHash()
		var n int
		var bytes int64
		var last string
		for {
			f, err := v.file()
			if err == io.EOF {
				break
			}
			if err == nil && f.Path <= last {
				err = fmt.Errorf("%w: the path %q stands behind %q", ErrDamagedRecord, f.Path, last)
			}
			if err != nil {
				yield(f, err)
				return
			}
			last = f.Path
			sum.add(&f)
			bytes += f.Size
			if n++; n > v.FileCount {
				break
			}
			if !yield(f, nil) {
				return
			}
		}
		if n != v.FileCount || bytes != v.TotalBytes || sum.digest() != v.ManifestDigest {
			yield(pointer.File{}, fmt.Errorf("%w: its %d files are not those of the manifest %s", ErrDamagedRecord, n, v.ManifestDigest))
		}
	}
}

func (v *versionReader) file() (pointer.File, error) {
	var l fileLine
	if err := v.line(&l); err != nil {
		return pointer.File{}, err
	}
	digest, err := artifacts.ParseDigest(l.Digest)
	if err == nil {
		err = pointer.CheckPath("path", l.Path)
	}
	if err == nil && (l.Size < 0 || l.ArtifactID == uuid.Nil) {
		err = errors.New("a file without a size or an artifact")
	}
	if err != nil {
		return pointer.File{}, fmt.Errorf("%w: %w", ErrDamagedRecord, err)
	}
	return pointer.File{Path: l.Path, Digest: digest, Size: l.Size, MediaType: l.MediaType, ArtifactID: l.ArtifactID}, nil
}
