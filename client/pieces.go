package client

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
)

// How the service cuts large files, unless it is told otherwise: into pieces of 16 MiB when they have
// more than 64 MiB, and into larger ones above 9,000 of those. Pieces that it cuts in another way are
// hashed once more; nothing else depends on these numbers.
const (
	wholeUpTo  = 64 << 20
	leastPiece = 16 << 20
	mostPieces = 9_000
	pieceUnit  = 1 << 20
)

// pieceSize is how long the pieces of a file of so many bytes will probably be; 0 when it will not be cut.
func pieceSize(size int64) int64 {
	if size <= wholeUpTo {
		return 0
	}
	least := (size + mostPieces - 1) / mostPieces
	return max(leastPiece, (least+pieceUnit-1)/pieceUnit*pieceUnit)
}

// pieces are the SHA-256s of a file's pieces, in their order.
type pieces struct {
	size int64 // of every piece but the last, bytes
	sums [][sha256.Size]byte
}

// digest is that of piece n, counted from 1, if the file was cut so.
func (p pieces) digest(n int, size int64) (string, bool) {
	if size != p.size || n < 1 || n > len(p.sums) {
		return "", false
	}
	return "sha256:" + hex.EncodeToString(p.sums[n-1][:]), true
}

// hashBlock is how much is read before both hashes take it, in bytes.
const hashBlock = 256 << 10

// hashPieces hashes what r gives, the whole and, on another processor, the pieces of so many bytes: one
// hash is as slow as a fast disk. The size that it returns is how many bytes there were.
func hashPieces(r io.Reader, size int64) (n int64, whole []byte, of pieces, err error) {
	h := sha256.New()
	if size == 0 {
		n, err = io.Copy(h, r)
		return n, h.Sum(nil), of, err
	}
	cutter := cutter{pieces: pieces{size: size}, h: sha256.New()}
	blocks, done := make(chan []byte), make(chan struct{})
	go func() {
		defer close(done)
		for b := range blocks {
			cutter.write(b)
		}
		cutter.end()
	}()
	// Once the cutter takes a block it is done with the one before, which is read into next.
	var buffers [2][]byte
	for i := range buffers {
		buffers[i] = make([]byte, hashBlock)
	}
	for i := 0; err == nil; i++ {
		b := buffers[i%len(buffers)]
		var got int
		if got, err = io.ReadFull(r, b); got > 0 {
			n += int64(got)
			blocks <- b[:got]
			h.Write(b[:got])
		}
	}
	close(blocks)
	<-done
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = nil
	}
	return n, h.Sum(nil), cutter.pieces, err
}

// cutter hashes pieces of what is written to it.
type cutter struct {
	pieces
	h    hash.Hash
	have int64 // bytes of the piece that is not finished
}

func (c *cutter) write(b []byte) {
	for len(b) > 0 {
		part := b[:min(int64(len(b)), c.size-c.have)]
		c.h.Write(part)
		c.have += int64(len(part))
		b = b[len(part):]
		if c.have == c.size {
			c.end()
		}
	}
}

func (c *cutter) end() {
	if c.have > 0 {
		c.sums = append(c.sums, [sha256.Size]byte(c.h.Sum(nil)))
		c.h.Reset()
		c.have = 0
	}
}
