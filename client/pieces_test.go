package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/artifactd/artifactd/artifacts"
)

// Both hashes are those of the same bytes, wherever the blocks that are read end.
func TestHashPieces(t *testing.T) {
	all := make([]byte, 3*hashBlock+1234)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(all)
	for _, size := range []int64{0, 1000, hashBlock, hashBlock + 1, int64(len(all)) / 2, int64(len(all)), 1 << 30} {
		for _, content := range [][]byte{nil, all[:1], all[:hashBlock], all} {
			n, whole, of, err := hashPieces(iotest.HalfReader(bytes.NewReader(content)), size)
			if sum := sha256.Sum256(content); err != nil || n != int64(len(content)) || !bytes.Equal(whole, sum[:]) {
				t.Fatalf("%d bytes: %d bytes hash to %x: %v", len(content), n, whole, err)
			}
			var want int
			for rest := content; size > 0 && len(rest) > 0; want++ {
				piece := rest[:min(int64(len(rest)), size)]
				rest = rest[len(piece):]
				sum := sha256.Sum256(piece)
				if got, ok := of.digest(want+1, size); !ok || got != "sha256:"+hex.EncodeToString(sum[:]) {
					t.Fatalf("%d bytes in pieces of %d: piece %d is %s, %t", len(content), size, want+1, got, ok)
				}
			}
			if len(of.sums) != want {
				t.Errorf("%d bytes have %d pieces of %d, not %d", len(content), len(of.sums), size, want)
			}
			if _, ok := of.digest(1, size+1); ok {
				t.Error("pieces of another size are taken for these")
			}
		}
	}
	broken := errors.New("broken")
	if _, _, _, err := hashPieces(io.MultiReader(bytes.NewReader(all), iotest.ErrReader(broken)), 1000); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// A part that was hashed with the whole is not read for that again; any other is.
func TestPartsAreHashedOnce(t *testing.T) {
	content := make([]byte, 2500)
	_, whole, of, err := hashPieces(bytes.NewReader(content), 1000)
	if err != nil {
		t.Fatal(err)
	}
	reads := 0
	src := Source{Size: 2500, Digest: "sha256:" + hex.EncodeToString(whole), pieces: of, Open: func() (io.ReadCloser, error) {
		reads++
		return io.NopCloser(bytes.NewReader(content)), nil
	}}
	for _, tc := range []struct{ partSize, reads int64 }{{1000, 0}, {500, 1}} {
		u, file := &partsUpload{src: src, partSize: tc.partSize}, sections{src: src}
		reads = 0
		part, err := u.hash(context.Background(), file, 2)
		if sum := sha256.Sum256(content[:tc.partSize]); err != nil || part.Sha256 != "sha256:"+hex.EncodeToString(sum[:]) || part.Size != tc.partSize || int64(reads) != tc.reads {
			t.Errorf("parts of %d: %+v after %d reads, %v", tc.partSize, part, reads, err)
		}
	}
}

// The pieces are those that the service cuts a file into by default.
func TestPieceSize(t *testing.T) {
	for _, size := range []int64{0, 1, 64 << 20, 64<<20 + 1, 9000 * 16 << 20, 9000*16<<20 + 1, 5 << 40} {
		plan, err := artifacts.PlanParts(size)
		if err != nil {
			t.Fatal(err)
		}
		want := plan.PartSize
		if !plan.Multipart() {
			want = 0
		}
		if got := pieceSize(size); got != want {
			t.Errorf("a file of %d bytes has pieces of %d, want %d", size, got, want)
		}
	}
}
