package api

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
)

// bulkArchive reads an archive of artifacts piece by piece.
type bulkArchive struct {
	body  *bulkBody
	tar   *tar.Reader
	seen  map[uuid.UUID]bool
	files int
}

func newBulkArchive(body *arrival) *bulkArchive {
	b := &bulkBody{arrival: body, left: maxBulkBody, until: time.Now().Add(bulkDeadline)}
	return &bulkArchive{body: b, tar: tar.NewReader(b), seen: map[uuid.UUID]bool{}}
}

// next is the next files, as many as are looked after together, also beside an error. io.EOF says
// that the archive has come to its end. Any other error ends it too.
func (a *bulkArchive) next() ([]bulkItem, error) {
	var chunk []bulkItem
	for size := 0; len(chunk) < bulkChunkFiles && size < bulkChunkBytes; {
		h, err := a.tar.Next()
		if err == io.EOF {
			return chunk, a.body.finish()
		}
		if err != nil {
			return chunk, a.body.fault(err)
		}
		if h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		item, err := a.file(h)
		if err != nil {
			return chunk, err
		}
		chunk = append(chunk, item)
		size += len(item.content)
	}
	return chunk, nil
}

// file reads one file. What is wrong with this one alone is its item's.
func (a *bulkArchive) file(h *tar.Header) (bulkItem, error) {
	item, err := bulkItem{}, error(nil)
	name := strings.TrimPrefix(h.Name, "./")
	if item.id, err = uuid.Parse(name); err != nil || name != item.id.String() {
		return item, invalid("body", "body: the archive has a file %.80q; every file is to be named by an artifact's id", h.Name)
	}
	if h.Typeflag != tar.TypeReg {
		return item, invalid("body", "body: %s is no regular file in the archive", item.id)
	}
	if a.files++; a.files > maxBulkFiles {
		return item, &fault{kind: errTooLarge, field: "body", detail: fmt.Sprintf("The archive has more than %d files, the most that one call takes.", maxBulkFiles)}
	}
	switch {
	case a.seen[item.id]:
		item.fault = invalid("body", "body: %s stands twice in the archive; the first one counts", item.id)
		return item, nil
	case h.Size > maxBulkFile:
		item.fault = &fault{kind: errTooLarge, field: "size", detail: fmt.Sprintf("A file above %d bytes is sent by itself: stage it again without `bulk` and send it as its upload says.", maxBulkFile)}
		return item, nil
	}
	a.seen[item.id] = true
	item.content = make([]byte, h.Size)
	if _, err := io.ReadFull(a.tar, item.content); err != nil {
		return item, a.body.fault(err)
	}
	return item, nil
}

// bulkBody is a body of bounded length that has to arrive in a bounded time.
type bulkBody struct {
	*arrival
	left  int64
	until time.Time
	err   error // why it ends before its end
	over  error // what the body itself ended with, which may be read again
}

func (b *bulkBody) Read(p []byte) (int, error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case b.over != nil:
		return 0, b.over
	case time.Now().After(b.until):
		b.err = invalid("body", "body: it did not arrive within %s; send fewer files at a time", bulkDeadline)
		return 0, b.err
	}
	n, err := b.arrival.Read(p[:min(int64(len(p)), b.left+1)])
	b.over = err
	if b.left -= int64(n); b.left < 0 {
		b.err = &http.MaxBytesError{Limit: maxBulkBody}
		return 0, b.err
	}
	return n, err
}

// finish reads what may stand behind the archive's end: padding, within the bounds.
func (b *bulkBody) finish() error {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return b.fault(err)
	}
	return io.EOF
}

// fault says what is wrong with a body of which tar, or a read, said err.
func (b *bulkBody) fault(err error) error {
	switch {
	case b.err != nil:
		return b.err
	case b.arrival.err() != nil, errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("body", "body: the archive ended early, after %d bytes; what came whole is stored: stage again to see what is missing", b.count.Load())
	}
	return invalid("body", "body: after %d bytes it is no tar archive any more: %v", b.count.Load(), err)
}
