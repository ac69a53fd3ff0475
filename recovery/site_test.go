package recovery_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/gc"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/pointer/pointertest"
	"github.com/artifactd/artifactd/recovery"
)

// site is one installation: a database, a bucket, and everybody's way to them.
type site struct {
	t      *testing.T
	db     *testenv.DB
	bucket testenv.BucketConfig
	store  *s3store.Store
	layout artifacts.Layout

	pools     []*pgxpool.Pool
	catalogue *pointer.Catalogue // the service's
	owners    *pointer.Catalogue // the owner's
	service   *pgxpool.Pool
	owner     *pgxpool.Pool
}

func newSite(t *testing.T, server testenv.Server) *site {
	t.Helper()
	t.Parallel()
	s := &site{t: t, db: testenv.Database(t), bucket: testenv.Bucket(t, server), layout: artifacts.Layout{Prefix: "artifactd/"}}
	s.store = s.open(s.bucket.Endpoint)
	s.connect()
	if err := s.catalogue.ClaimKeyPrefix(t.Context(), s.layout.Prefix); err != nil {
		t.Fatal(err)
	}
	s.claim()
	return s
}

func (s *site) open(endpoint string) *s3store.Store {
	s.t.Helper()
	store, err := s3store.New(s.t.Context(), s3store.Config{Endpoint: endpoint, Region: s.bucket.Region, Bucket: s.bucket.Name, Prefix: s.layout.Prefix,
		AccessKeyID: s.bucket.AccessKeyID, SecretAccessKey: s.bucket.SecretAccessKey, PathStyle: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return store
}

// claim marks the bucket, as a service that starts does.
func (s *site) claim() {
	s.t.Helper()
	if err := gc.ClaimBucket(s.t.Context(), s.service, s.store, s.layout); err != nil {
		s.t.Fatal(err)
	}
}

// connect opens the connections of the service and of the owner.
func (s *site) connect() {
	s.t.Helper()
	s.catalogue, s.service = s.dial(s.db.ServiceURL)
	s.owners, s.owner = s.dial(s.db.URL)
	s.t.Cleanup(s.disconnect)
}

func (s *site) dial(url string) (*pointer.Catalogue, *pgxpool.Pool) {
	s.t.Helper()
	cfg, err := pointer.PoolConfig(url)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.pools = append(s.pools, pool)
	c, err := pointer.New(pool, pointer.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	return c, pool
}

func (s *site) disconnect() {
	for _, p := range s.pools {
		p.Close()
	}
	s.pools = nil
}

// backup copies the database as it is now; restore puts the copy in its place.
func (s *site) backup() (restore func()) {
	s.t.Helper()
	s.disconnect()
	name := "copy_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	s.admin("CREATE DATABASE " + name + " TEMPLATE " + s.db.Name)
	s.t.Cleanup(func() { s.admin("DROP DATABASE " + name + " WITH (FORCE)") })
	s.connect()
	return func() {
		s.disconnect()
		old := s.db.Name
		s.db = &testenv.DB{Name: name, Postgres: s.db.Postgres,
			URL: strings.ReplaceAll(s.db.URL, old, name), ServiceURL: strings.ReplaceAll(s.db.ServiceURL, old, name)}
		s.connect()
	}
}

func (s *site) admin(sql string) {
	ctx := context.Background() // also at the end of the test
	conn, err := pgx.Connect(ctx, s.db.Postgres.URL("postgres"))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		s.t.Errorf("%s: %v", sql, err)
	}
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.owner.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) number(sql string, args ...any) (n int) {
	s.t.Helper()
	if err := s.owner.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// raise takes the next epoch, as an operator does after a restore.
func (s *site) raise() {
	s.t.Helper()
	s.exec(`UPDATE artifactd.installation SET epoch = epoch + 1`)
}

func (s *site) pointer(name string, change pointer.SettingsChange) {
	s.t.Helper()
	if _, _, err := s.catalogue.PutPointer(s.t.Context(), name, change); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) acquire(name string) pointer.Lease {
	s.t.Helper()
	l, err := s.catalogue.Acquire(s.t.Context(), pointer.AcquireRequest{Pointer: name, Holder: "worker"})
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

// upload stages and really uploads a file for each body: see [pointertest.Upload].
func (s *site) upload(l pointer.Lease, bodies ...string) {
	s.t.Helper()
	pointertest.Upload(s.t, s.catalogue, s.store, s.layout, l, bodies...)
}

// published is a version that somebody was told of.
type published struct {
	lease pointer.Lease
	req   pointer.PublishRequest
}

// version publishes a version whose files have these bodies, and returns what the worker knows.
func (s *site) version(name string, bodies ...string) published {
	s.t.Helper()
	l := s.acquire(name)
	s.upload(l, bodies...)
	revision := int64(len(name)) + l.Token.Generation
	p := published{l, pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token,
		SourceRevision: &revision, Metadata: []byte(`{"of": "` + name + `"}`)}}}}
	if _, err := s.catalogue.Publish(s.t.Context(), p.req); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// shows checks what a pointer shows: the bodies of its files, each read back from the bucket. No
// body means that nothing is shown.
func (s *site) shows(name string, bodies ...string) *pointer.Version {
	s.t.Helper()
	v, err := s.catalogue.Resolve(s.t.Context(), name)
	if len(bodies) == 0 {
		if !errors.Is(err, pointer.ErrNothingPublished) && !errors.Is(err, pointer.ErrPointerRetired) {
			s.t.Errorf("%s shows something: %v, %v", name, v, err)
		}
		return nil
	}
	if err != nil {
		s.t.Fatalf("resolve %s: %v", name, err)
	}
	if len(v.Files) != len(bodies) {
		s.t.Fatalf("%s %s has %d files, not %d", name, v.Token, len(v.Files), len(bodies))
	}
	for i, f := range v.Files {
		if got := s.read(s.layout.ArtifactKey(f.Digest, f.ArtifactID)); string(got) != bodies[i] {
			s.t.Errorf("%s %s: %s reads back as %q, not %q", name, v.Token, f.Path, got, bodies[i])
		}
	}
	return v
}

func (s *site) read(key string) []byte {
	s.t.Helper()
	body, _, err := s.store.Get(s.t.Context(), key, artifacts.WholeObject)
	if err != nil {
		s.t.Fatalf("%s: %v", key, err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// replace puts other bytes under a key, which no part of the product does.
func (s *site) replace(key string, b []byte) {
	s.t.Helper()
	s.delete(key)
	u := artifacts.Upload{Key: key, Digest: artifacts.DigestOf(b), Size: int64(len(b))}
	if err := s.store.Put(s.t.Context(), u, bytes.NewReader(b)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) delete(key string) {
	s.t.Helper()
	if _, err := s.store.Delete(s.t.Context(), []string{key}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) keys(folder string) []string {
	s.t.Helper()
	var keys []string
	for o, err := range s.store.List(s.t.Context(), s.layout.Prefix+folder) {
		if err != nil {
			s.t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	return keys
}

func (s *site) outbox(store recovery.OutboxStore, o recovery.OutboxOptions) *recovery.Outbox {
	s.t.Helper()
	w, err := recovery.NewOutbox(s.catalogue, store, s.layout, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return w
}

// drain writes every record.
func (s *site) drain() {
	s.t.Helper()
	if err := s.outbox(s.store, recovery.OutboxOptions{}).Drain(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	if n := s.number(waitingSQL); n != 0 {
		s.t.Fatalf("%d records wait after the outbox was drained", n)
	}
}

const waitingSQL = `SELECT count(*) FROM artifactd.outbox`

// rebuilt is what a run found.
type rebuilt struct {
	recovery.RebuildReport
	versions []recovery.LostVersion
	settings []recovery.LostSettings
}

func (s *site) tryRebuild(store recovery.RebuildStore, o recovery.RebuildOptions) (rebuilt, error) {
	s.t.Helper()
	var r rebuilt
	o.Version = func(v recovery.LostVersion) { r.versions = append(r.versions, v) }
	o.Settings = func(l recovery.LostSettings) { r.settings = append(r.settings, l) }
	var err error
	r.RebuildReport, err = recovery.NewRebuild(s.owners, store, s.layout, o).Run(s.t.Context())
	return r, err
}

func (s *site) rebuild(o recovery.RebuildOptions) rebuilt {
	s.t.Helper()
	r, err := s.tryRebuild(s.store, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// of finds what was said of a lost version.
func (r *rebuilt) of(t *testing.T, generation uuid.UUID) recovery.LostVersion {
	t.Helper()
	for _, v := range r.versions {
		if v.GenerationID == generation {
			return v
		}
	}
	t.Fatalf("nothing is said of generation %s: %+v", generation, r.versions)
	return recovery.LostVersion{}
}

// clean checks that every artifact's row has its object and that nothing is half brought back.
func (s *site) clean() {
	s.t.Helper()
	r, err := gc.NewVerifier(s.owner, s.store, s.layout).Run(s.t.Context(), gc.VerifyOptions{Deep: true})
	if err != nil || r.Wrong() != 0 {
		s.t.Errorf("verify: %+v, %v", r, err)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.restore`); n != 0 {
		s.t.Errorf("%d versions are left half brought back", n)
	}
	if n := s.number(`SELECT count(*) FROM artifactd.artifact a WHERE NOT EXISTS (SELECT FROM artifactd.generation g WHERE g.generation_id = a.generation_id)`); n != 0 {
		s.t.Errorf("%d artifacts have no generation", n)
	}
}

func zip(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text + "\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// history is how the site's database is compared with its bucket, quickly.
func (s *site) history(pool *pgxpool.Pool) recovery.Options {
	return recovery.Options{Table: pointer.NewHistories(pool), Store: s.store, Layout: s.layout, Timing: recovery.Timing{Confirm: 200 * time.Millisecond},
		Claim: func(ctx context.Context) error { return gc.CheckBucket(ctx, pool, s.store, s.layout) }}
}

// arm begins the installation's history in the bucket, as the first service does.
func (s *site) arm() {
	s.t.Helper()
	w, err := recovery.NewWatch(s.history(s.service))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := w.Look(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// recover raises the epoch as `artifactd recover` does, and returns it.
func (s *site) recover() int64 {
	s.t.Helper()
	operator := recovery.NewOperator(s.history(s.owner))
	seen, err := operator.Inspect(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := operator.Raise(s.t.Context(), seen)
	if err != nil {
		s.t.Fatal(err)
	}
	return e.Number
}
