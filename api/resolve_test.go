package api

import (
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// A database that lost its last hour gives out tokens that it gave out before. What was encoded of
// the version that was lost is not the answer for the one that has its token now.
func TestEncodedVersionsAreKeptByVersion(t *testing.T) {
	t.Parallel()
	bodies := newResolvedBodies()
	spell := func(v *pointer.Version) types.ResolvedVersion { return types.ResolvedVersion{Holder: v.Holder} }
	lost := &pointer.Version{ID: uuid.New(), Pointer: "p", Token: pointer.Token{Epoch: 1, Generation: 7}, Holder: "lost"}
	now := &pointer.Version{ID: uuid.New(), Pointer: "p", Token: lost.Token, Holder: "now"}
	first, err := bodies.get(lost, spell)
	if err != nil {
		t.Fatal(err)
	}
	again, err := bodies.get(lost, spell)
	if err != nil || &first[0] != &again[0] {
		t.Errorf("the same version is encoded twice (%v)", err)
	}
	other, err := bodies.get(now, spell)
	if err != nil || string(other) == string(first) {
		t.Errorf("%s for another version (%v)", other, err)
	}
}
