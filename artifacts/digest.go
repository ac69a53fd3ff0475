package artifacts

import (
	"crypto/sha256"
	"database/sql/driver"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// digestPrefix is the algorithm label of every digest that artifactd reads or prints.
const digestPrefix = "sha256:"

// ErrBadDigest says that a text is not "sha256:" followed by 64 lower-case hex digits.
var ErrBadDigest = errors.New(`digest must be "sha256:" followed by 64 lower-case hex digits`)

// Digest is the SHA-256 of an artifact's bytes. It is a comparable value, usable as a map key.
type Digest [sha256.Size]byte

// ParseDigest reads the "sha256:<hex>" form. It accepts one spelling of each digest only, so
// that equal digests are equal texts; anything else is [ErrBadDigest].
func ParseDigest(s string) (Digest, error) {
	var d Digest
	h, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(h) != hex.EncodedLen(len(d)) || strings.ToLower(h) != h {
		return Digest{}, ErrBadDigest
	}
	if _, err := hex.Decode(d[:], []byte(h)); err != nil {
		return Digest{}, ErrBadDigest
	}
	return d, nil
}

// DigestOf hashes b. For anything that does not fit in memory use crypto/sha256 directly and
// [DigestFromSum].
func DigestOf(b []byte) Digest { return sha256.Sum256(b) }

// DigestFromSum makes a Digest of a finished SHA-256 sum, 32 bytes.
func DigestFromSum(sum []byte) (Digest, error) {
	var d Digest
	if len(sum) != len(d) {
		return Digest{}, fmt.Errorf("%w: a SHA-256 sum has %d bytes, not %d", ErrBadDigest, len(d), len(sum))
	}
	copy(d[:], sum)
	return d, nil
}

// String is the "sha256:<hex>" form.
func (d Digest) String() string { return digestPrefix + d.Hex() }

// Hex is the 64 hex digits without the label, as they stand in an object key.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// Base64 is the standard base-64 form that S3's x-amz-checksum-sha256 header carries.
func (d Digest) Base64() string { return base64.StdEncoding.EncodeToString(d[:]) }

// IsZero reports whether d was never set. No known input hashes to it.
func (d Digest) IsZero() bool { return d == Digest{} }

// Value stores a digest as 32 raw bytes (bytea).
func (d Digest) Value() (driver.Value, error) { return d[:], nil }

// Scan reads the 32 raw bytes that Value wrote.
func (d *Digest) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok {
		return fmt.Errorf("a digest is stored as bytes, not %T", src)
	}
	v, err := DigestFromSum(b)
	if err != nil {
		return err
	}
	*d = v
	return nil
}
