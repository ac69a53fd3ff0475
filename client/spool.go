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

// SpoolSource reads r to its end into a temporary file and hashes it on the way: what comes through a
// pipe has no digest before its end, and could not be sent a second time. The file is private and has
// no name any more when this returns, so that its space is free once the closer is called or the
// process has ended, however it ends. r may be left in the middle of a read when ctx ends first.
func SpoolSource(ctx context.Context, r io.Reader, path string) (Source, io.Closer, error) {
	if err := checkPath(path); err != nil {
		return Source{}, nil, err
	}
	f, err := os.CreateTemp("", "artifactd-spool-")
	if err != nil {
		return Source{}, nil, fmt.Errorf("make a temporary file (TMPDIR names its folder): %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return Source{}, nil, errors.Join(err, f.Close())
	}
	type spooled struct {
		size int64
		sum  []byte
		err  error
	}
	done := make(chan spooled, 1)
	go func() {
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(f, h), &watched{r: r, ctx: ctx})
		done <- spooled{n, h.Sum(nil), err}
	}()
	select {
	case <-ctx.Done(): // closing the file ends the copy with its next write
		return Source{}, nil, errors.Join(context.Cause(ctx), f.Close())
	case s := <-done:
		if s.err != nil {
			return Source{}, nil, errors.Join(fmt.Errorf("copy it to a temporary file (TMPDIR names its folder): %w", s.err), f.Close())
		}
		return Source{
			Path: path, Size: s.size, Digest: "sha256:" + hex.EncodeToString(s.sum),
			Open:   func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(f, 0, s.size)), nil },
			OpenAt: func() (ReaderAtCloser, error) { return keptOpen{f}, nil },
		}, f, nil
	}
}

// keptOpen is a file that its users do not close.
type keptOpen struct{ io.ReaderAt }

func (keptOpen) Close() error { return nil }
