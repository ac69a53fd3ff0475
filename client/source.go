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

// ErrSourceChanged says that a file's size changed between hashing and uploading it.
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
}

// FileSource hashes a file of this machine, reading it once and keeping none of it in memory.
// progress, when not nil, is told the number of bytes after each read.
func FileSource(ctx context.Context, name, path string, progress func(int)) (Source, error) {
	f, err := os.Open(name)
	if err != nil {
		return Source{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Source{}, err
	}
	if !info.Mode().IsRegular() {
		return Source{}, fmt.Errorf("%s is not a regular file; write it to one first, so that it can be read again when an upload is repeated", name)
	}
	h := sha256.New()
	n, err := io.Copy(h, &watched{r: f, ctx: ctx, progress: progress})
	if err != nil {
		return Source{}, fmt.Errorf("read %s: %w", name, err)
	}
	if n != info.Size() {
		return Source{}, fmt.Errorf("%s: %w", name, ErrSourceChanged)
	}
	return Source{
		Path: path, Size: n,
		Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)),
		Open:   func() (io.ReadCloser, error) { return os.Open(name) },
	}, nil
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
