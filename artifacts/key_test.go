package artifacts_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

func TestArtifactKey(t *testing.T) {
	id := uuid.MustParse("018f3c5e-7b1a-7c3d-9e2f-0123456789ab")
	for prefix, want := range map[string]string{
		"":         "artifacts/" + emptyHex + "/018f3c5e-7b1a-7c3d-9e2f-0123456789ab",
		"team/ci/": "team/ci/artifacts/" + emptyHex + "/018f3c5e-7b1a-7c3d-9e2f-0123456789ab",
	} {
		l := artifacts.Layout{Prefix: prefix}
		key := l.ArtifactKey(artifacts.DigestOf(nil), id)
		if key != want || !strings.HasPrefix(key, l.ArtifactsPrefix()) {
			t.Errorf("prefix %q: %s", prefix, key)
		}
		d, back, err := l.ParseArtifactKey(key)
		if err != nil || d != artifacts.DigestOf(nil) || back != id {
			t.Errorf("ParseArtifactKey(%s) = %v, %v, %v", key, d, back, err)
		}
	}
}

func TestForeignKeys(t *testing.T) {
	const id = "018f3c5e-7b1a-7c3d-9e2f-0123456789ab"
	l := artifacts.Layout{Prefix: "mine/"}
	for _, key := range []string{
		"", "mine/", "mine/artifacts/", "artifacts/" + emptyHex + "/" + id, "other/artifacts/" + emptyHex + "/" + id,
		"mine/artifacts/" + emptyHex, "mine/artifacts/" + emptyHex + "/", "mine/artifacts/" + emptyHex + "/" + id + "/more",
		"mine/artifacts/" + emptyHex + "/" + strings.ToUpper(id), "mine/artifacts/" + emptyHex + "/{" + id + "}",
		"mine/artifacts/" + emptyHex + "/" + strings.ReplaceAll(id, "-", ""), "mine/artifacts/" + strings.ToUpper(emptyHex) + "/" + id,
		"mine/artifacts/" + emptyHex[1:] + "/" + id, "mine/probe/" + id, "mine/epochs/1/" + id,
	} {
		if _, _, err := l.ParseArtifactKey(key); !errors.Is(err, artifacts.ErrForeignKey) {
			t.Errorf("ParseArtifactKey(%q): %v", key, err)
		}
	}
}
