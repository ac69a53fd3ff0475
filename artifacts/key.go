package artifacts

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// ErrForeignKey says that an object key is not one that this installation could have written.
var ErrForeignKey = errors.New("object key is not an artifact's of this prefix")

// Layout names the objects of one installation. Prefix is empty or ends in "/"; it is applied
// here and nowhere else, so a [Store] always sees whole keys.
type Layout struct{ Prefix string }

// ArtifactsPrefix is the prefix under which every artifact of the installation lies.
func (l Layout) ArtifactsPrefix() string { return l.Prefix + "artifacts/" }

// ArtifactKey is the key of one upload. The artifact id makes it unique; the digest makes the
// bucket auditable without the database.
func (l Layout) ArtifactKey(d Digest, id uuid.UUID) string {
	return l.ArtifactsPrefix() + d.Hex() + "/" + id.String()
}

// ParseArtifactKey is the inverse of ArtifactKey, or [ErrForeignKey].
func (l Layout) ParseArtifactKey(key string) (Digest, uuid.UUID, error) {
	rest, ok := strings.CutPrefix(key, l.ArtifactsPrefix())
	if !ok {
		return Digest{}, uuid.UUID{}, ErrForeignKey
	}
	h, tail, ok := strings.Cut(rest, "/")
	if !ok {
		return Digest{}, uuid.UUID{}, ErrForeignKey
	}
	d, err := ParseDigest(digestPrefix + h)
	if err != nil {
		return Digest{}, uuid.UUID{}, fmt.Errorf("%w: %w", ErrForeignKey, err)
	}
	id, err := uuid.Parse(tail)
	if err != nil || id.String() != tail {
		return Digest{}, uuid.UUID{}, ErrForeignKey
	}
	return d, id, nil
}
