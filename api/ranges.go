package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/artifactd/artifactd/artifacts"
)

// span is a part of a file, in bytes, with at least one byte in it.
type span struct{ first, length int64 }

// contentRange is the header of a 206.
func (s span) contentRange(size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", s.first, s.first+s.length-1, size)
}

// byteRange is the same part as a store takes it.
func (s span) byteRange() artifacts.ByteRange {
	return artifacts.ByteRange{Offset: s.first, Length: s.length}
}

// requestedSpan reads Range (RFC 9110, section 14). partial is false when the whole file is to be
// sent: no Range, one that is not understood, several ranges at once, or an If-Range that names
// other bytes. errRangeNotSatisfied when the range has no byte of the file in it.
func requestedSpan(h http.Header, etag string, size int64) (s span, partial bool, err error) {
	values := h.Values("Range")
	if len(values) != 1 {
		return span{}, false, nil
	}
	// If-Range with a date never matches: files have no modification time here, they have a digest.
	if condition := h.Get("If-Range"); condition != "" && condition != etag {
		return span{}, false, nil
	}
	unit, spec, ok := strings.Cut(values[0], "=")
	if !ok || !strings.EqualFold(strings.TrimSpace(unit), "bytes") || strings.Contains(spec, ",") {
		return span{}, false, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return span{}, false, nil
	}
	return resolveSpan(first, last, size)
}

// resolveSpan holds "first-last", "first-" or "-suffix" against the size.
func resolveSpan(first, last string, size int64) (span, bool, error) {
	if first == "" {
		n, ok := parsePosition(last)
		switch {
		case !ok:
			return span{}, false, nil
		case n == 0:
			return span{}, false, errRangeNotSatisfied
		case size == 0:
			return span{}, false, nil // the last n bytes of nothing are all there is
		}
		n = min(n, size)
		return span{size - n, n}, true, nil
	}
	from, ok := parsePosition(first)
	if !ok {
		return span{}, false, nil
	}
	to := size - 1
	if last != "" {
		n, ok := parsePosition(last)
		if !ok || n < from {
			return span{}, false, nil
		}
		to = min(n, to)
	}
	if from >= size {
		return span{}, false, errRangeNotSatisfied
	}
	return span{from, to - from + 1}, true, nil
}

// parsePosition reads digits alone; a number too large for any file is as good as the largest.
func parsePosition(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return n, true
}

// noneMatch reports whether If-None-Match names etag, by the weak comparison that GET uses. All
// values of the header count.
func noneMatch(h http.Header, etag string) bool {
	for _, value := range h.Values("If-None-Match") {
		if strings.TrimSpace(value) == "*" {
			return true
		}
		for rest := value; rest != ""; {
			var tag string
			tag, rest = nextTag(rest)
			if tag == etag {
				return true
			}
		}
	}
	return false
}

// nextTag cuts the first entity tag, without W/, off a list. Commas may stand inside the quotes.
func nextTag(list string) (tag, rest string) {
	list = strings.TrimLeft(list, " \t,")
	opaque := strings.TrimPrefix(list, "W/")
	if !strings.HasPrefix(opaque, `"`) {
		_, rest, _ = strings.Cut(list, ",")
		return "", rest
	}
	end := strings.IndexByte(opaque[1:], '"')
	if end < 0 {
		return "", ""
	}
	return opaque[:end+2], opaque[end+2:]
}
