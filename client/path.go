package client

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPathBytes is the longest path of a file in a version.
const maxPathBytes = 1024

// checkPath says which rule of the service a path breaks. The service checks too, but cannot say
// which file of a folder it was, and never sees bytes that are no text: JSON would carry others in
// their place, and publish the file under a name that nobody gave it.
func checkPath(path string) error {
	wrong := func(rule string) error {
		return fmt.Errorf("%w: %q cannot be a path of a version: %s; rename the file", ErrInvalidRequest, path, rule)
	}
	switch {
	case !utf8.ValidString(path):
		return wrong("it is not valid UTF-8")
	case len(path) > maxPathBytes:
		return wrong(fmt.Sprintf("it has %d bytes, and at most %d are allowed", len(path), maxPathBytes))
	case strings.ContainsFunc(path, unicode.IsControl):
		return wrong("it has a control character")
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment == "" || segment == "." || segment == ".." {
			return wrong(`a segment of it is empty, "." or ".."`)
		}
	}
	return nil
}
