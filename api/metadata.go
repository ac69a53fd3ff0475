package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// maxMetadataDepth bounds the nesting of metadata; a database's parser is not asked for more.
const maxMetadataDepth = 32

// publishMetadata checks metadata and takes the white space out of it. Nil when there is none.
func publishMetadata(field string, m *types.Metadata) (json.RawMessage, error) {
	if m == nil {
		return nil, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, *m); err != nil {
		return nil, invalid(field, "%s: %v", field, err)
	}
	if compact.Len() > pointer.MaxMetadataBytes {
		return nil, invalid(field, "%s: %d bytes of JSON; at most %d are kept", field, compact.Len(), pointer.MaxMetadataBytes)
	}
	return compact.Bytes(), checkMetadata(field, compact.Bytes())
}

// checkMetadata refuses what a database's JSON type would: too deep, or numbers out of its range.
func checkMetadata(field string, m []byte) error {
	d := json.NewDecoder(bytes.NewReader(m))
	d.UseNumber()
	depth := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return invalid(field, "%s: %v", field, err)
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
			} else {
				depth--
			}
			if depth > maxMetadataDepth {
				return invalid(field, "%s: nested more than %d levels deep", field, maxMetadataDepth)
			}
		case json.Number:
			if !representable(v.String()) {
				return invalid(field, "%s: the number %.40s is out of range; send it as a string", field, v)
			}
		}
	}
}

// representable reports whether a number is within a double's range, neither too large nor so
// small that it would become zero.
func representable(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return false
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	return f != 0 || !strings.ContainsAny(mantissa, "123456789")
}
