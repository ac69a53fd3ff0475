package pointer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/artifacts"
)

// Paths that share their content cost what they would cost alone: of the many artifacts that could
// be adopted for them one is chosen, once.
func TestStagingPathsThatShareADigestIsLinear(t *testing.T) {
	w := newWorld(t)
	const many = 600
	w.pointer("p")
	w.exec(`SET session_replication_role = replica`) // past the guards
	// A version of many paths, each with an artifact of its own and all of them with the same bytes.
	w.exec(`INSERT INTO artifactd.generation (generation_id, pointer_id, epoch, generation, state, holder, ttl_seconds, acquired_at,
			ended_at, manifest_id, file_count, published_at, sealed_at, manifest_digest)
		SELECT md5('g')::uuid, pointer_id, 1, 1, 'published', 'x', 60, now(), now(), md5('g')::uuid, $1, now(), now(), 'x' FROM artifactd.pointer`, many)
	w.exec(`INSERT INTO artifactd.artifact (artifact_id, pointer_id, generation_id, digest, size, media_type, stored_at, writable_until)
		SELECT md5(i::text)::uuid, pointer_id, md5('g')::uuid, sha256('x'), 1, 'x', now(), now()
		  FROM artifactd.pointer, generate_series(1, $1::integer) i`, many)
	w.exec(`INSERT INTO artifactd.manifest_file (manifest_id, path, artifact_id, media_type)
		SELECT md5('g')::uuid, 'f' || i, md5(i::text)::uuid, 'x' FROM generate_series(1, $1::integer) i`, many)
	w.exec(`UPDATE artifactd.pointer SET epoch = 1, generation = 1, head_id = md5('g')::uuid, current_id = md5('g')::uuid,
		current_epoch = 1, current_generation = 1`)
	w.exec(`ANALYZE artifactd.artifact, artifactd.manifest_file, artifactd.generation`)

	p, lease := w.planned(), uuid.New()
	p.call(20, "acquire", `SELECT * FROM artifactd.acquire('p', 'h', 60, $1, $2, 'x')`, lease, uuid.New())
	// Three statements handle each path two or three times; choosing for each path handles it 600 times.
	p.call(10*many, "stage", `SELECT * FROM (SELECT array_agg('g' || i) paths, array_agg(sha256('x')) digests,
			array_agg(1::bigint) sizes, array_agg('x'::text) types, array_agg(gen_random_uuid()) ids FROM generate_series(1, $2::integer) i) f,
		artifactd.stage($1, 1, 2, f.paths, f.digests, f.sizes, f.types, f.ids, 60, 60, 100000)`, lease, many)
	if n := w.count(`SELECT count(DISTINCT artifact_id) FROM artifactd.manifest_file WHERE manifest_id = $1`, lease); n != 1 {
		t.Errorf("%d artifacts were adopted for one content", n)
	}
	if n := w.count(`SELECT count(*) FROM artifactd.manifest_file WHERE manifest_id = $1`, lease); n != many {
		t.Errorf("%d paths of %d are staged", n, many)
	}
}

// A tree is staged, looked up and proved in batches, and the last costs what the first did: also on a
// connection that made its plans while the tables were empty, before anybody had analysed them.
func TestPublishingATreeIsLinear(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	const batches, many, part = 3, 1000, 250
	p, lease := w.planned(), uuid.New()
	p.call(20, "acquire", `SELECT * FROM artifactd.acquire('p', 'h', 60, $1, $2, 'x')`, lease, uuid.New())
	for b := range batches {
		ids, how := make([]uuid.UUID, many), make([]string, many)
		for i := range ids {
			ids[i], how[i] = uuid.New(), VerifiedByStore
		}
		// No statement handles a path more than once in any of its steps; comparing with what is staged
		// handles 3000 in the end, and so does reading a table through.
		p.call(many, fmt.Sprintf("batch %d", b), `SELECT count(*) FROM (SELECT array_agg($3::integer % 7 || '/f' || $3::integer * 1000 + i) paths,
				array_agg(sha256(($3::integer * 1000 + i)::text::bytea)) digests, array_agg(1::bigint) sizes, array_agg('x'::text) types
				FROM generate_series(1, $2::integer) i) f,
			artifactd.stage($1, 1, 1, f.paths, f.digests, f.sizes, f.types, $4, 60, 60, 100000)`, lease, many, b, ids)
		for i := 0; i < many; i += part {
			for _, staged := range []bool{true, false} {
				p.call(part, fmt.Sprintf("look up batch %d, staged %v", b, staged), findArtifactsSQL, lease, ids[i:i+part], staged)
				p.indexed("look up")
			}
			p.call(part, fmt.Sprintf("prove batch %d", b), markStoredManySQL, ids[i:i+part], how[i:i+part])
			p.indexed("prove")
		}
	}
	if n := w.count(`SELECT count(*) FROM artifactd.manifest_file m JOIN artifactd.artifact a USING (artifact_id)
		WHERE m.manifest_id = $1 AND a.stored_at IS NOT NULL`, lease); n != batches*many {
		t.Errorf("%d paths of %d are staged and stored", n, batches*many)
	}
}

// A tree that hardly changed is staged again at the cost of its paths: each is not compared with every
// other that might be adopted.
func TestAdoptingATreeIsLinear(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	const many = 1000
	worker := w.worker()
	first := w.acquire(worker, "p", "first")
	paths := make([]string, many)
	for i := range paths {
		paths[i] = fmt.Sprintf("%d/f%d", i%7, i)
	}
	w.stored(worker, first, "same", paths...)
	w.published(worker, first)
	w.exec(`ANALYZE artifactd.artifact, artifactd.manifest_file, artifactd.generation`)

	second := w.acquire(worker, "p", "second")
	ids, digests, sizes, types := make([]uuid.UUID, many), make([][]byte, many), make([]int64, many), make([]string, many)
	for i, path := range paths {
		d := artifacts.DigestOf([]byte(path + "same"))
		ids[i], digests[i], sizes[i], types[i] = uuid.New(), d[:], int64(len(path+"same")), "x"
	}
	p := w.planned()
	p.call(4*many, "stage the same again", `SELECT count(*) FROM artifactd.stage($1, $2, $3, $4, $5, $6, $7, $8, 60, 60, 100000)`,
		second.ID, second.Token.Epoch, second.Token.Generation, paths, digests, sizes, types, ids)
	p.indexed("stage the same again")
	if n := w.count(`SELECT count(*) FROM artifactd.manifest_file m JOIN artifactd.artifact a USING (artifact_id)
		WHERE m.manifest_id = $1 AND a.generation_id = $2`, second.ID, first.ID); n != many {
		t.Errorf("%d paths of %d are adopted", n, many)
	}
}

// A version is always something that a file system can hold.
func TestAFileIsNoFolderOfAnother(t *testing.T) {
	w := newWorld(t)
	a := w.worker()
	w.pointer("p")
	stage := func(l Lease, paths ...string) error {
		files := make([]StageFile, len(paths))
		for i, p := range paths {
			files[i] = StageFile{Path: p, Digest: artifacts.DigestOf([]byte(p)), Size: int64(len(p))}
		}
		_, err := a.Stage(t.Context(), l.ID, l.Token, files)
		return err
	}
	deep := strings.Repeat("d/", 400) + "f"
	for _, c := range []struct {
		before, paths []string
		field, words  string // of the refusal; empty for none
	}{
		{nil, []string{"q", "q/r"}, "files[1].path", `"q" would be a file and, for "q/r", a folder`},
		{nil, []string{"q/r/s", "x", "q"}, "files[0].path", `"q" would be a file and, for "q/r/s", a folder`},
		{[]string{"q"}, []string{"a", "q/r/s/t"}, "files[1].path", `"q" would be a file and, for "q/r/s/t", a folder`},
		{[]string{"q/r/s/t"}, []string{"a", "b", "q/r"}, "files[2].path", `"q/r" would be a file and, for "q/r/s/t", a folder`},
		{[]string{deep}, []string{"d"}, "files[0].path", `"d" would be a file and, for "d/d/`},
		{nil, []string{"q", "q.r", "q!", "q0", "qq/r", "Q/r", "a/q/r"}, "", ""},
		{[]string{"q", "w/x"}, []string{"q", "q.r", "q0/r", "w/x", "w/y", "wx", "w0"}, "", ""},
	} {
		l := w.acquire(a, "p", "h")
		if c.before != nil {
			if err := stage(l, c.before...); err != nil {
				t.Fatalf("%v: %v", c.before, err)
			}
		}
		err := stage(l, c.paths...)
		var invalid *InvalidError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%v after %v: %v", c.paths, c.before, err)
		case c.field != "" && (!errors.As(err, &invalid) || invalid.Field != c.field || !strings.HasPrefix(invalid.Detail, c.words)):
			t.Errorf("%v after %v: got %v, want a fault of %s: %s", c.paths, c.before, err, c.field, c.words)
		}
		want := len(c.before)
		if c.field == "" {
			want = w.count(`SELECT count(*) FROM (SELECT unnest($1::text[]) UNION SELECT unnest($2::text[])) f`, c.before, c.paths)
		}
		if n := w.count(`SELECT count(*) FROM artifactd.manifest_file WHERE manifest_id = $1`, l.ID); n != want {
			t.Errorf("%v after %v: %d paths are staged, want %d", c.paths, c.before, n, want)
		}
		if err := a.Release(t.Context(), l.ID); err != nil {
			t.Fatal(fmt.Errorf("release: %w", err))
		}
	}
}

// The database looks for such paths without comparing each with each. What it finds is what
// comparing finds.
func TestPathConflictsAgainstComparing(t *testing.T) {
	w := newWorld(t)
	w.pointer("p")
	a := w.worker()
	l := w.acquire(a, "p", "h")
	some := w.stage(a, l, "", "f")[0].Artifact.ID
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "a-", "a.b", "é", "0", "~"}
	paths := func() []string {
		list := make([]string, 1+random.IntN(4))
		for i := range list {
			parts := make([]string, 1+random.IntN(4))
			for k := range parts {
				parts[k] = names[random.IntN(len(names))]
			}
			list[i] = strings.Join(parts, "/")
		}
		return list
	}
	conn, conflicts := w.db.Connect(t), 0
	for range 1000 {
		before, given := paths(), paths()
		manifest := uuid.New()
		if _, err := conn.Exec(t.Context(), `INSERT INTO artifactd.manifest_file
			SELECT $1, path, $2, 'text/plain' FROM (SELECT DISTINCT unnest($3::text[])) f (path)`, manifest, some, before); err != nil {
			t.Fatal(err)
		}
		want := slices.ContainsFunc(given, func(p string) bool {
			return slices.ContainsFunc(given, func(q string) bool { return strings.HasPrefix(q, p+"/") }) ||
				slices.ContainsFunc(before, func(q string) bool { return strings.HasPrefix(q, p+"/") || strings.HasPrefix(p, q+"/") })
		})
		var got bool
		if err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT 1 FROM artifactd.path_conflict($1, $2))`, manifest, given).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("%q after %q: a conflict is found: %v, there is one: %v", given, before, got, want)
		}
		if want {
			conflicts++
		}
	}
	if conflicts < 100 || conflicts > 900 {
		t.Errorf("%d conflicts in 1000 draws tell little", conflicts)
	}
}
