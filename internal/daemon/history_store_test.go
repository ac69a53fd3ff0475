package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// shared is an installation on the server that all tests share.
func shared(t *testing.T) *installation {
	t.Helper()
	c, db := config(t)
	in := &installation{t: t, config: c, db: db}
	in.config.HistoryTiming, in.config.GC.Interval = quick, 0
	in.bucket = testenv.BucketConfig{Endpoint: c.S3.Endpoint, Region: c.S3.Region, Name: c.S3.Bucket, AccessKeyID: c.S3.AccessKeyID, SecretAccessKey: c.S3.SecretAccessKey}
	in.token, _ = credentials(t, db.URL, "http://unused.invalid")
	return in
}

// While the bucket cannot be asked nothing is acknowledged, and reads go on; afterwards everything
// goes on by itself. What was under way when the confirmation ran out is not known to count.
func TestNothingIsAcknowledgedWithoutTheBucket(t *testing.T) {
	in := shared(t)
	proxy := testenv.NewProxy(t, in.config.S3.Endpoint)
	in.config.S3.Endpoint = "http://" + proxy.Addr()
	r := in.replica()
	r.writes()
	r.pointer("p")
	l := in.worker().ready("p")
	operation := uuid.New()

	// The publish is admitted, and waits for the row until the confirmation is too old.
	owner := in.db.Connect(t)
	tx, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM artifactd.pointer WHERE name = 'p' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	published := make(chan answer, 1)
	go func() {
		published <- r.ask("POST", "/v1/leases/"+l.ID.String()+"/publish", fmt.Sprintf(`{"operation_id":%q,"token":%q}`, operation, l.Token))
	}()
	waitForLock(t, in.db.URL)
	proxy.Set(testenv.Fault{HoldToServer: true})
	a := r.refuses("unavailable")
	if !strings.Contains(a.Detail, "the object store has not confirmed the epoch") {
		t.Errorf("the refusal does not say that it is the store: %s", a)
	}
	// A look that began before may still confirm. One has failed when readiness says why, and after that
	// none can.
	within(t, "readiness tells of a look that failed", func() bool {
		a = r.call("GET", "/readyz", "")
		return a.Status == "read-only" && strings.Contains(a.Detail, "did not confirm the epoch within "+quick.Confirm.String()+": ") && strings.Contains(a.Detail, "look at the object store")
	}, &a)
	if a := r.call("GET", "/v1/pointers?limit=1", ""); a.status != http.StatusOK {
		t.Errorf("reading without the bucket: %s", a)
	}
	a = r.refuses("unavailable")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a = <-published; a.status != http.StatusGatewayTimeout || a.Code != "outcome-unknown" {
		t.Errorf("the publish under way: %s, want its outcome to be unknown", a)
	}
	proxy.Set(testenv.Fault{})
	r.writes()
	if a := r.ask("POST", "/v1/operations/"+operation.String()+"/settle", `{"pointer":"p"}`); a.status != http.StatusOK || !strings.Contains(a.body, `"published"`) {
		t.Errorf("settled as %s", a)
	}
}

// put stores an object below the installation's prefix.
func (in *installation) object(key, content string) {
	in.t.Helper()
	k := in.config.S3.Prefix + key
	if _, err := in.bucket.Client().PutObject(context.Background(), &s3.PutObjectInput{Bucket: &in.bucket.Name, Key: &k, Body: bytes.NewReader([]byte(content))}); err != nil {
		in.t.Fatal(err)
	}
}

func (in *installation) remove(keys ...string) {
	in.t.Helper()
	for _, key := range keys {
		k := in.config.S3.Prefix + key
		if _, err := in.bucket.Client().DeleteObject(context.Background(), &s3.DeleteObjectInput{Bucket: &in.bucket.Name, Key: &k}); err != nil {
			in.t.Fatal(err)
		}
	}
}

// What the bucket holds where the history stands, and nobody can read or explain, stops writes, says
// what to do, and stops them no longer once it is gone.
func TestWhatTheBucketHidesStopsWrites(t *testing.T) {
	in := shared(t)
	r := in.replica()
	r.writes()
	for name, test := range map[string]struct{ key, content, says string }{
		"a witness from the future":   {fmt.Sprintf("witness/%020d-%020d", 99, 5), "{}", "never issued"},
		"a damaged witness":           {fmt.Sprintf("witness/%020d-%020d", 1, 999_999_999), "{", "is damaged"},
		"a witness of no form":        {"witness/1-2", "", "remove it"},
		"an epoch of no form":         {"epochs/one", "", "remove it"},
		"a witness of another's":      {fmt.Sprintf("witness/%020d-%020d", 1, 999_999_998), fmt.Sprintf(`{"installation_id":%q,"epoch":1,"counter":999999998}`, uuid.New()), "of installation"},
		"another's epoch, as it were": {"epochs/01/" + uuid.NewString(), "", "remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			in.object(test.key, test.content)
			var a answer
			within(t, "writes are refused for it", func() bool {
				a = r.refuses("history-changed")
				return strings.Contains(a.Detail, test.says)
			}, &a)
			in.remove(test.key)
			r.writes()
		})
	}
	t.Run("the witness is gone", func(t *testing.T) {
		// The replica writes no new one, for it cannot tell what the database lacks.
		var a answer
		within(t, "writes are refused for it", func() bool {
			in.remove(in.keys("witness/")...)
			a = r.put("probe")
			return a.Code == "history-changed" && strings.Contains(a.Detail, "no witness")
		}, &a)
		in.raise()
		r.writes()
	})
	t.Run("another database goes on with this bucket", func(t *testing.T) {
		in.object("epochs/77/"+uuid.NewString(), "{}")
		if a := r.refuses("history-changed"); !strings.Contains(a.Detail, "another database goes on") {
			t.Errorf("%s", a)
		}
		in.raise()
		r.writes()
		if n := in.number(`SELECT epoch FROM artifactd.installation`); n != 78 {
			t.Errorf("the epoch is %d", n)
		}
	})
}

// dump runs pg_dump or pg_restore on the installation's database. Where a service runs, either may lose
// a deadlock against it, and is then repeated: nothing of it has happened.
func (in *installation) dump(program string, args ...string) {
	in.t.Helper()
	pg := in.db.Postgres
	within(in.t, program+" gets through", func() bool {
		cmd := exec.CommandContext(context.Background(), filepath.Join(pg.BinDir(), program), append([]string{
			"--host", filepath.Dir(pg.Socket()), "--username", "postgres"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil && !bytes.Contains(out, []byte("deadlock detected")) {
			in.t.Fatalf("%s: %v\n%s", program, err, out)
		}
		return err == nil
	}, nil)
}

// A dump that is restored into the same database, under the feet of a running service, changes
// neither server nor timeline. The tables are others: nothing is decided until somebody has counted.
func TestDumpRestoredIntoTheSameDatabase(t *testing.T) {
	in := newInstallation(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	file := filepath.Join(t.TempDir(), "dump")
	r := in.replica()
	r.writes()
	r.pointer("p")
	shown := in.worker().publish("p", 1)
	in.dump("pg_dump", "--format=custom", "--file", file, in.db.Name)
	held := in.worker().ready("p")
	in.witnessed()
	in.dump("pg_restore", "--clean", "--single-transaction", "--dbname", in.db.Name, file)
	if _, _, err := in.worker().PutPointer(t.Context(), "q", pointer.SettingsChange{}); err == nil {
		t.Error("a decision on restored tables that nobody compared with anything")
	}
	everythingWaits(t, r, shown)
	in.raise()
	r.writes()
	refusedAsOld(t, in.worker(), held)
}

// A dump from before the guard was armed knows of no epoch; the bucket does.
func TestDumpFromBeforeTheGuard(t *testing.T) {
	in := newInstallation(t, testenv.Postgres(t, devstack.PostgresOptions{}))
	file := filepath.Join(t.TempDir(), "dump")
	in.dump("pg_dump", "--format=custom", "--file", file, in.db.Name)
	r := in.replica()
	r.writes()
	r.end()
	in.dump("pg_restore", "--clean", "--single-transaction", "--dbname", in.db.Name, file)
	r = in.replica()
	if a := r.refuses("history-changed"); !strings.Contains(a.Detail, "never took part") {
		t.Errorf("%s", a)
	}
	in.raise()
	r.writes()
	if n := in.number(`SELECT epoch FROM artifactd.installation`); n != 2 {
		t.Errorf("the epoch is %d", n)
	}
}

// An operator whose raise was cut off after the epoch was issued goes on with the same one.
func TestRaiseGoesOnAfterACrash(t *testing.T) {
	in := shared(t)
	r := in.replica()
	r.writes()
	m := in.operator()
	report, err := m.History.Inspect(t.Context())
	if err != nil || report.NeedsRaise {
		t.Fatalf("%+v, %v", report, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	raised := make(chan error, 1)
	go func() {
		_, err := m.History.Raise(ctx, report)
		raised <- err
	}()
	within(t, "the epoch is issued", func() bool { return len(in.keys("epochs/")) == 2 }, nil)
	cancel()
	if err := <-raised; err == nil {
		t.Fatal("it was not cut off")
	}
	r.refuses("history-changed") // as soon as its service has looked: the bucket goes on with another
	e, err := in.operator().History.Raise(t.Context(), report)
	if err != nil || e.Number != 2 || len(in.keys("epochs/")) != 2 {
		t.Errorf("raised %v, %v; the bucket holds %v", e, err, in.keys("epochs/"))
	}
	r.writes()
}

// The old primary goes on running, with a replica that reaches it and the bucket: it acknowledges
// nothing once the new one's epoch is issued.
func TestOldPrimaryAcknowledgesNothing(t *testing.T) {
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	in := newInstallation(t, primary)
	old := in.replica()
	old.writes()
	old.pointer("p")
	standby, _ := testenv.Standby(t, primary, "standby1")
	promoted := *in
	promoted.goOn(standby)
	in.witnessed()
	conn, err := pgx.Connect(t.Context(), promoted.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	fresh := promoted.replica()
	if a := old.refuses("history-changed"); !strings.Contains(a.Detail, "another database goes on") {
		t.Errorf("the old primary: %s", a)
	}
	fresh.writes()
	// From now on nothing that the old one decides is acknowledged, whatever it decides.
	for deadline := time.Now().Add(2 * quick.Confirm); time.Now().Before(deadline); {
		if a := old.put("probe"); a.status < 300 {
			t.Fatalf("the old primary acknowledged a write: %s", a)
		}
	}
	if n := promoted.number(`SELECT epoch FROM artifactd.installation`); n != 2 {
		t.Errorf("the promoted one is in epoch %d", n)
	}
}

// The old primary's replica has lost the bucket and goes on with what the bucket confirmed last. The
// new primary acknowledges nothing before that has run out.
func TestOldPrimaryIsOutwaited(t *testing.T) {
	primary := testenv.Postgres(t, devstack.PostgresOptions{})
	in := newInstallation(t, primary)
	proxy := testenv.NewProxy(t, in.config.S3.Endpoint)
	behind := *in
	behind.config.S3.Endpoint = "http://" + proxy.Addr()
	old := behind.replica()
	old.writes()
	standby, _ := testenv.Standby(t, primary, "standby1")
	promoted := *in
	promoted.goOn(standby)
	in.witnessed()
	conn, err := pgx.Connect(t.Context(), promoted.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	// A look that is under way now may confirm; none that begins later does.
	proxy.Set(testenv.Fault{HoldToServer: true})
	if _, err := conn.Exec(t.Context(), `SELECT pg_promote()`); err != nil {
		t.Fatal(err)
	}
	// When the last write was sent that the old one acknowledged: it was confirmed later than that.
	last := make(chan time.Time, 1)
	go func() {
		var at time.Time
		for {
			sent := time.Now()
			if a := old.put("probe"); a.status >= 300 {
				last <- at
				return
			}
			at = sent
		}
	}()
	fresh := promoted.replica()
	fresh.writes()
	acknowledged := time.Now()
	if at := <-last; !at.Before(acknowledged) {
		t.Errorf("the old primary acknowledged a write sent %s after the new one had acknowledged one", at.Sub(acknowledged))
	}
}
