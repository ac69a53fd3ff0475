package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
	"github.com/artifactd/artifactd/recovery"
)

// quick is a T that keeps tests short. A busy machine does not always hold it: see ask.
var quick = recovery.Timing{Confirm: 2 * time.Second}

// installation is a database on a server of its own, with a bucket.
type installation struct {
	t      *testing.T
	config daemon.Config
	db     *testenv.DB
	bucket testenv.BucketConfig
	token  string
}

func newInstallation(t *testing.T, pg *devstack.Postgres) *installation {
	t.Helper()
	in := &installation{t: t, db: testenv.DatabaseOn(t, pg), bucket: testenv.Bucket(t, testenv.Versitygw)}
	c := daemon.Default()
	c.DatabaseURL, c.Listen, c.AllowUnsafeDurability, c.HistoryTiming = in.db.ServiceURL, "127.0.0.1:0", true, quick
	c.GC.Interval = 0
	c.S3.Endpoint, c.S3.Bucket, c.S3.PathStyle = in.bucket.Endpoint, in.bucket.Name, true
	c.S3.AccessKeyID, c.S3.SecretAccessKey = in.bucket.AccessKeyID, in.bucket.SecretAccessKey
	in.config = c
	in.token, _ = credentials(t, in.db.URL, "http://unused.invalid")
	return in
}

// goOn is the same installation with its database on another server.
func (in *installation) goOn(pg *devstack.Postgres) {
	in.db = in.db.On(pg)
	in.config.DatabaseURL = in.db.ServiceURL
}

// replica starts a service.
func (in *installation) replica() *replica {
	in.t.Helper()
	return &replica{running: start(in.t, in.config), in: in}
}

type replica struct {
	*running
	in *installation
}

func (r *replica) end() {
	r.in.t.Helper()
	r.stop()
	if err := r.wait(r.in.t); err != nil {
		r.in.t.Fatal(err)
	}
}

// answer is what a request got.
type answer struct {
	status int
	Code   string
	Detail string
	Reason string
	Status any
	Token  string
	// OperatorRequired is a problem's operator_required.
	OperatorRequired bool `json:"operator_required"`
	body             string
	retryAfter       string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

func (r *replica) call(method, path, body string) answer {
	r.in.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.in.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.in.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.in.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.in.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, body: string(text), retryAfter: resp.Header.Get("Retry-After")}
	_ = json.Unmarshal(text, &a) // some have no body
	return a
}

// ask is call, repeated while the service says that it cannot now: on a busy machine its look at the
// bucket may come too late at any moment, and what it says then tells nothing about the question.
func (r *replica) ask(method, path, body string) (a answer) {
	r.in.t.Helper()
	within(r.in.t, method+" "+path+" is answered", func() bool {
		a = r.call(method, path, body)
		return a.status != http.StatusServiceUnavailable || a.Code != "unavailable"
	}, &a)
	return a
}

func (r *replica) put(name string) answer {
	r.in.t.Helper()
	return r.call("PUT", "/v1/pointers/"+name, "{}")
}

// pointer makes one.
func (r *replica) pointer(name string) {
	r.in.t.Helper()
	if a := r.ask("PUT", "/v1/pointers/"+name, "{}"); a.status >= 300 {
		r.in.t.Fatalf("make pointer %s: %s", name, a)
	}
}

// writes waits until writes are admitted.
func (r *replica) writes() {
	r.in.t.Helper()
	var last answer
	within(r.in.t, "writes are admitted", func() bool {
		last = r.put("probe")
		return last.status < 300
	}, &last)
}

// refuses waits until writes are refused with this code.
func (r *replica) refuses(code string) answer {
	r.in.t.Helper()
	var last answer
	within(r.in.t, "writes are refused with "+code, func() bool {
		last = r.put("probe")
		return last.status == http.StatusServiceUnavailable && last.Code == code
	}, &last)
	return last
}

// within waits until a condition holds, for as long as the busiest machine may need.
func within(t *testing.T, what string, holds func() bool, last *answer) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long until %s; the last answer was %v", what, last)
		}
	}
}

// worker reaches the database itself, with the rights of the service: the bytes of its files are not
// the tests' concern.
type worker struct {
	t *testing.T
	*pointer.Catalogue
}

func (in *installation) worker() worker {
	in.t.Helper()
	cfg, err := pointer.PoolConfig(in.config.DatabaseURL)
	if err != nil {
		in.t.Fatal(err)
	}
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(pool.Close)
	c, err := pointer.New(pool, pointer.Options{})
	if err != nil {
		in.t.Fatal(err)
	}
	return worker{in.t, c}
}

// ready is a lease with one stored file, with an hour to live.
func (w worker) ready(name string) pointer.Lease {
	w.t.Helper()
	l, err := w.Acquire(context.Background(), pointer.AcquireRequest{Pointer: name, Holder: "worker", TTL: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	staged, err := w.Stage(context.Background(), l.ID, l.Token, []pointer.StageFile{{Path: "file", Digest: artifacts.DigestOf([]byte(l.Token.String())), Size: 3}})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.MarkStored(context.Background(), staged[0].Artifact.ID, pointer.VerifiedOnTransfer); err != nil {
		w.t.Fatal(err)
	}
	return l
}

func publication(l pointer.Lease) pointer.PublishRequest {
	return pointer.PublishRequest{OperationID: uuid.New(), Leases: []pointer.PublishLease{{LeaseID: l.ID, Token: l.Token}}}
}

// publish publishes n generations and returns the token of the last.
func (w worker) publish(name string, n int) (last pointer.Token) {
	w.t.Helper()
	for range n {
		l := w.ready(name)
		if _, err := w.Publish(context.Background(), publication(l)); err != nil {
			w.t.Fatal(err)
		}
		last = l.Token
	}
	return last
}

// operator is what `artifactd recover` works with.
func (in *installation) operator() *daemon.Maintenance {
	in.t.Helper()
	m, err := daemon.OpenMaintenance(context.Background(), in.config)
	if err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(m.Close)
	return m
}

func (in *installation) inspect() recovery.Report {
	in.t.Helper()
	r, err := in.operator().History.Inspect(context.Background())
	if err != nil {
		in.t.Fatal(err)
	}
	return r
}

// raise is what an operator does about a loss.
func (in *installation) raise() {
	in.t.Helper()
	m := in.operator()
	r, err := m.History.Inspect(context.Background())
	if err != nil {
		in.t.Fatal(err)
	}
	if _, err := m.History.Raise(context.Background(), r); err != nil {
		in.t.Fatal(err)
	}
}

// number runs a query for one number, as the owner.
func (in *installation) number(sql string) (n int64) {
	in.t.Helper()
	if err := in.db.Connect(in.t).QueryRow(context.Background(), sql).Scan(&n); err != nil {
		in.t.Fatal(err)
	}
	return n
}

func (in *installation) count() int64 {
	return in.number(`SELECT sum(n)::bigint FROM artifactd.counter`)
}

// witnessed waits until the bucket's witness says all that the database has counted.
func (in *installation) witnessed() {
	in.t.Helper()
	within(in.t, "the bucket bears witness of everything", func() bool {
		want := fmt.Sprintf("-%020d", in.count())
		for _, k := range in.keys("witness/") {
			if strings.HasSuffix(k, want) {
				return true
			}
		}
		return false
	}, nil)
}

// keys lists the bucket below the installation's prefix.
func (in *installation) keys(below string) (keys []string) {
	in.t.Helper()
	prefix := in.config.S3.Prefix + below
	client := in.bucket.Client()
	out, err := client.ListObjectsV2(context.Background(), listInput(in.bucket.Name, prefix))
	if err != nil {
		in.t.Fatal(err)
	}
	for _, o := range out.Contents {
		keys = append(keys, strings.TrimPrefix(*o.Key, in.config.S3.Prefix))
	}
	return keys
}
