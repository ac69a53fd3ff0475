package recovery_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// Records that cannot be trusted are said to be so; the others come back.
func TestDamagedAndForeignRecords(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	names := []string{"cut", "flipped", "swapped", "nothing", "foreign", "good"}
	for _, name := range names {
		s.pointer(name, pointer.SettingsChange{})
	}
	s.drain()
	restore := s.backup()
	lost := map[string]published{}
	for _, name := range names {
		lost[name] = s.version(name, name+" body")
	}
	s.drain()
	key := func(name string) string { return s.keys("versions/" + name + "/")[0] }
	cut := s.read(key("cut"))
	s.replace(key("cut"), cut[:len(cut)-20])
	lines := unzip(t, s.read(key("flipped")))
	s.replace(key("flipped"), zip(t, strings.Replace(strings.Join(lines, "\n"), artifacts.DigestOf([]byte("flipped body")).String(), artifacts.DigestOf([]byte("x")).String(), 1)))
	s.replace(key("swapped"), s.read(key("good")))
	s.replace(key("nothing"), nil)
	lines = unzip(t, s.read(key("foreign")))
	var installation uuid.UUID
	if err := s.owner.QueryRow(t.Context(), `SELECT installation_id FROM artifactd.installation`).Scan(&installation); err != nil {
		t.Fatal(err)
	}
	s.replace(key("foreign"), zip(t, strings.Replace(strings.Join(lines, "\n"), installation.String(), uuid.NewString(), 1)))
	s.replace(s.layout.Prefix+"versions/readme.txt", []byte("not ours"))
	restore()
	s.raise()

	r := s.rebuild(recovery.RebuildOptions{})
	for _, name := range names {
		want := recovery.LostDamaged
		switch name {
		case "foreign":
			want = recovery.LostForeign
		case "good":
			want = recovery.LostRestored
		}
		if v := r.of(t, lost[name].lease.ID); v.Status != want {
			t.Errorf("%s: %+v", name, v)
		}
		if name != "good" {
			s.shows(name)
		}
	}
	if r.Lost != 6 || r.Restored != 1 || r.Foreign != 1 {
		t.Errorf("%+v", r)
	}
	s.shows("good", "good body")
	s.clean()
}

// Only what is proved to be there comes back, and a version comes back whole or not at all.
func TestMissingObjects(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		s := newSite(t, server)
		names := []string{"missing", "shorter", "wrong", "deleting"}
		for _, name := range names {
			s.pointer(name, pointer.SettingsChange{})
		}
		s.drain()
		restore := s.backup()
		lost, objects := map[string]published{}, map[string]string{}
		for _, name := range names {
			lost[name] = s.version(name, name+" is there", name+" is not")
			v, err := s.catalogue.Resolve(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			objects[name] = s.layout.ArtifactKey(v.Files[1].Digest, v.Files[1].ArtifactID)
		}
		s.drain()
		s.delete(objects["missing"])
		s.replace(objects["shorter"], []byte("short"))
		s.replace(objects["wrong"], []byte("WRONG is not"))
		restore()
		s.raise()
		s.exec(`INSERT INTO artifactd.deletion (object_key, size, reason, stored, enqueued_at, final_after, not_before)
			VALUES ($1, 1, 'unknown', true, now(), now(), now() + interval '1 hour')`, objects["deleting"])
		before := s.keys("artifacts/")
		for _, dry := range []bool{true, false, false} {
			r := s.rebuild(recovery.RebuildOptions{DryRun: dry, Deep: true})
			for _, name := range names {
				want := recovery.LostIncomplete
				if name == "deleting" {
					if want = recovery.LostDeleting; dry {
						want = recovery.LostRestorable
					}
				}
				if v := r.of(t, lost[name].lease.ID); v.Status != want {
					t.Errorf("dry %v: %s: %+v", dry, name, v)
				}
			}
			if r.Restored != 0 {
				t.Errorf("%+v", r)
			}
		}
		for _, name := range names {
			s.shows(name)
		}
		if n := s.number(`SELECT count(*) FROM artifactd.artifact`); n != 0 {
			t.Errorf("%d artifacts are left of what could not come back", n)
		}
		if after := s.keys("artifacts/"); len(after) != len(before) {
			t.Errorf("%d objects, %d before", len(after), len(before))
		}
		s.clean()
	})
}

// Whatever the program believes, the database gives out no token of an epoch that has lost some.
func TestDatabaseRefusesTheLostEpoch(t *testing.T) {
	s := newSite(t, testenv.Versitygw)
	s.pointer("p", pointer.SettingsChange{})
	file := pointer.File{Path: "f", Digest: artifacts.DigestOf([]byte("x")), Size: 1, ArtifactID: uuid.New(), MediaType: "text/plain"}
	v := pointer.VersionRecord{Key: "x", GenerationID: uuid.New(), Pointer: "p", Token: pointer.Token{Epoch: 1, Generation: 9}, OperationID: uuid.New(),
		PublishedAt: time.Now(), Holder: "h", FileCount: 1}
	if status, detail, err := s.owners.RestoreFiles(t.Context(), v, []pointer.File{file}); err != nil || status != pointer.RestoreOK {
		t.Fatal(status, detail, err)
	}
	finish := func() (pointer.RestoreStatus, error) {
		status, _, _, _, err := s.owners.FinishRestore(t.Context(), v, false)
		return status, err
	}
	if _, err := finish(); !errors.Is(err, pointer.ErrEpochNotRaised) {
		t.Errorf("in the lost epoch: %v", err)
	}
	s.raise()
	// Neither does it take a manifest that is not proved, or is another one.
	if status, err := finish(); err != nil || status != pointer.RestoreIncomplete {
		t.Errorf("nothing is proved: %v, %v", status, err)
	}
	if err := s.owners.RestoreProved(t.Context(), []uuid.UUID{file.ArtifactID}, []string{pointer.VerifiedByStore}); err != nil {
		t.Fatal(err)
	}
	if status, err := finish(); err != nil || status != pointer.RestoreIncomplete {
		t.Errorf("another manifest: %v, %v", status, err)
	}
	v.ManifestDigest = artifacts.DigestOf([]byte("f\x00" + string(file.Digest[:]) + "\x001\x00text/plain\n"))
	if status, err := finish(); err != nil || status != pointer.RestoreRestored {
		t.Errorf("%v, %v", status, err)
	}
	// Somebody who comes late finds it done.
	if status, _, err := s.owners.RestoreFiles(t.Context(), v, []pointer.File{file}); err != nil || status != pointer.RestoreKnown {
		t.Errorf("files of what came back: %v, %v", status, err)
	}
	if status, err := finish(); err != nil || status != pointer.RestoreKnown {
		t.Errorf("finished twice: %v, %v", status, err)
	}
	// A snapshot of the settings from the current epoch, which this database does not know, is as bad.
	_, err := s.owners.RestorePointer(t.Context(), pointer.PointerSnapshot{Pointer: "p", Epoch: 2, Revision: 99, Settings: pointer.Settings{Labels: map[string]string{}}})
	if !errors.Is(err, pointer.ErrEpochNotRaised) {
		t.Errorf("settings of the database's own epoch: %v", err)
	}
}
