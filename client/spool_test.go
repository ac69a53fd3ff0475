package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSpoolIsReadAgainAndHasNoName(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	const content = "what came through the pipe"
	src, spool, err := SpoolSource(t.Context(), iotest.OneByteReader(strings.NewReader(content)), "a/b.txt")
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the temporary file has a name: %v %v", left, err)
	}
	sum := sha256.Sum256([]byte(content))
	if src.Path != "a/b.txt" || src.Size != int64(len(content)) || src.Digest != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("%+v", src)
	}
	for range 2 {
		r, err := src.Open()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != content {
			t.Errorf("%q %v", got, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	file, err := src.sections()
	if err != nil {
		t.Fatal(err)
	}
	part, err := file.open(5, 4)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(part); err != nil || string(got) != content[5:9] {
		t.Errorf("%q %v", got, err)
	}
	if err := errors.Join(part.Close(), file.close(), spool.Close()); err != nil {
		t.Error(err)
	}
}

func TestSpoolFaults(t *testing.T) {
	if _, _, err := SpoolSource(t.Context(), strings.NewReader(""), "../up"); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("a bad path: %v", err)
	}
	broken := errors.New("broken")
	if _, _, err := SpoolSource(t.Context(), iotest.ErrReader(broken), "x"); !errors.Is(err, broken) {
		t.Errorf("a broken pipe: %v", err)
	}
	// A pipe that nobody writes to does not keep an interrupted program.
	silent, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := SpoolSource(ctx, silent, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	t.Setenv("TMPDIR", "/nowhere/at/all")
	if _, _, err := SpoolSource(t.Context(), strings.NewReader(""), "x"); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("no folder: %v", err)
	}
}
