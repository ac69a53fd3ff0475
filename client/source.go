package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// ErrSourceChanged says that a file changed between hashing and uploading it.
var ErrSourceChanged = errors.New("the file changed while it was read; publish a copy that nobody writes to")

// Source is one file to be published: where it will be in the version, and where its bytes are.
type Source struct {
	// Path names the file in the version: relative, "/"-separated.
	Path string
	// MediaType may be empty.
	MediaType string
	// Digest ("sha256:<hex>") and Size (bytes) describe the content; see [FileSource].
	Digest string
	Size   int64
	// Open returns the bytes from the start. It is called once for every attempt to send them.
	Open func() (io.ReadCloser, error)
	// OpenAt, when not nil, opens the bytes for reading at any place. A file that is sent in parts
	// is opened by it once, and read by several goroutines at once. Without it every read of a part
	// begins with Open.
	OpenAt func() (ReaderAtCloser, error)
	// Progress, when not nil, is told how many more of the file's bytes are there, sent or not, as
	// progress of [Client.UploadAll] is of all files. 0 says that an empty file is there.
	Progress func(int64)

	pieces pieces // as far as they are known
}

// ReaderAtCloser is what OpenAt of a [Source] returns, for example an [os.File].
type ReaderAtCloser interface {
	io.ReaderAt
	io.Closer
}

// sections opens pieces of a source. It is safe for concurrent use.
type sections struct {
	src Source
	at  ReaderAtCloser // nil when the source has none
}

func (s Source) sections() (sections, error) {
	if s.OpenAt == nil {
		return sections{src: s}, nil
	}
	at, err := s.OpenAt()
	return sections{src: s, at: at}, err
}

func (s sections) open(offset, length int64) (io.ReadCloser, error) {
	if s.at != nil {
		return io.NopCloser(io.NewSectionReader(s.at, offset, length)), nil
	}
	r, err := s.src.Open()
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, r, offset); err != nil {
		if err == io.EOF {
			err = ErrSourceChanged
		}
		return nil, errors.Join(err, r.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(r, length), r}, nil
}

func (s sections) close() error {
	if s.at == nil {
		return nil
	}
	return s.at.Close()
}

// FileSource hashes a file of this machine, reading it once and keeping none of it in memory.
// progress, when not nil, is told the number of bytes after each read.
func FileSource(ctx context.Context, name, path string, progress func(int)) (Source, error) {
	if err := checkPath(path); err != nil {
		return Source{}, fmt.Errorf("%q: %w", name, err)
	}
	f, info, err := openRegular(name)
	if err != nil {
		return Source{}, err
	}
	defer f.Close()
	n, sum, of, err := hashPieces(&watched{r: f, ctx: ctx, progress: progress}, pieceSize(info.Size()))
	if err != nil {
		return Source{}, fmt.Errorf("read %s: %w", name, err)
	}
	if n != info.Size() {
		return Source{}, fmt.Errorf("%s: %w", name, ErrSourceChanged)
	}
	return Source{
		Path: path, Size: n,
		Digest: "sha256:" + hex.EncodeToString(sum),
		Open:   func() (io.ReadCloser, error) { return os.Open(name) },
		OpenAt: func() (ReaderAtCloser, error) { return os.Open(name) },
		pieces: of,
	}, nil
}

// DigestOf hashes what a reader gives ("sha256:<hex>").
func DigestOf(ctx context.Context, r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, &watched{r: r, ctx: ctx})
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), err
}

// openRegular opens a file that can be read again. It looks before it opens: opening a named pipe
// waits for somebody to write to it.
func openRegular(name string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file; write it to one first, so that it can be read again when an upload is repeated", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	if info, err = f.Stat(); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// watched tells how many bytes went through it and stops when its context ends.
type watched struct {
	r        io.Reader
	ctx      context.Context
	progress func(int)
}

func (w *watched) Read(p []byte) (int, error) {
	if err := context.Cause(w.ctx); err != nil {
		return 0, err
	}
	n, err := w.r.Read(p)
	if n > 0 && w.progress != nil {
		w.progress(n)
	}
	return n, err
}
