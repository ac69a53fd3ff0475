package bucket

import (
	"encoding/base64"
	"strings"

	"github.com/artifactd/artifactd/artifacts"
)

// Checksum reads a base-64 SHA-256 as stores send it; anything else is no checksum, zero.
func Checksum(s string) artifacts.Digest {
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

// FullChecksum is the store's SHA-256 of the whole object, or zero. That of a multipart upload is
// one of the parts' checksums ("…-3") and proves nothing about the whole.
func FullChecksum(base64, kind string) artifacts.Digest {
	if strings.EqualFold(kind, "COMPOSITE") || strings.Contains(base64, "-") {
		return artifacts.Digest{}
	}
	return Checksum(base64)
}

// LowerKeys is metadata with lower-case keys; stores differ in how they return them.
func LowerKeys(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ToLower(k)] = v
	}
	return out
}
