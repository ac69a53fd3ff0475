package recovery

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"

	"github.com/artifactd/artifactd/artifacts"
)

// spoolMemory is how many bytes of a record are kept in memory; larger ones go to a temporary file.
const spoolMemory = 1 << 20

// spool holds a record's bytes until their number and digest are known, or they were looked at once.
// Close it.
type spool struct {
	memory bytes.Buffer
	file   *os.File // everything, once it is more than spoolMemory
	size   int64
	sum    hash.Hash
}

func newSpool() *spool { return &spool{sum: sha256.New()} }

func (s *spool) Write(p []byte) (int, error) {
	s.sum.Write(p)
	s.size += int64(len(p))
	if s.file == nil && s.memory.Len()+len(p) <= spoolMemory {
		return s.memory.Write(p)
	}
	if s.file == nil {
		f, err := os.CreateTemp("", "artifactd-record-")
		if err != nil {
			return 0, err
		}
		s.file = f
		_ = os.Remove(f.Name()) // so that a crash leaves nothing; where that is impossible Close removes it
		if _, err := s.memory.WriteTo(f); err != nil {
			return 0, err
		}
	}
	return s.file.Write(p)
}

// digest is of what was written.
func (s *spool) digest() artifacts.Digest {
	d, _ := artifacts.DigestFromSum(s.sum.Sum(nil)) // a SHA-256 sum has the right length
	return d
}

// reader reads everything from the beginning. A later one replaces it.
func (s *spool) reader() (io.ReadSeeker, error) {
	if s.file == nil {
		return bytes.NewReader(s.memory.Bytes()), nil
	}
	return io.NewSectionReader(s.file, 0, s.size), nil
}

func (s *spool) Close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if removed := os.Remove(s.file.Name()); removed != nil && !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}
