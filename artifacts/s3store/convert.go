package s3store

import (
	"encoding/base64"
	"strings"

	"github.com/artifactd/artifactd/artifacts"
)

// decodeChecksum reads a base-64 SHA-256; anything else is no checksum.
func decodeChecksum(s string) artifacts.Digest {
	sum, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return artifacts.Digest{}
	}
	d, err := artifacts.DigestFromSum(sum)
	if err != nil {
		return artifacts.Digest{}
	}
	return d
}

// lowerKeys is metadata with lower-case keys; stores differ in how they return them.
func lowerKeys(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ToLower(k)] = v
	}
	return out
}
