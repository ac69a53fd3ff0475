package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// config is a service on a database and a bucket of the test's own.
func config(t *testing.T) (daemon.Config, *testenv.DB) {
	t.Helper()
	db, bucket := testenv.Database(t), testenv.Bucket(t, testenv.Versitygw)
	c := daemon.Default()
	c.DatabaseURL, c.Listen, c.AllowUnsafeDurability = db.ServiceURL, "127.0.0.1:0", true
	c.S3.Endpoint, c.S3.Bucket, c.S3.PathStyle = bucket.Endpoint, bucket.Name, true
	c.S3.AccessKeyID, c.S3.SecretAccessKey = bucket.AccessKeyID, bucket.SecretAccessKey
	return c, db
}

// running is a service and how it ended.
type running struct {
	url  string
	stop context.CancelFunc
	done chan error
}

func start(t *testing.T, c daemon.Config) *running {
	t.Helper()
	return startWith(t, c, daemon.Options{})
}

func startWith(t *testing.T, c daemon.Config, o daemon.Options) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stop: cancel, done: make(chan error, 1)}
	ready := make(chan net.Addr, 1)
	o.Ready = func(a net.Addr) { ready <- a }
	go func() { r.done <- daemon.Run(ctx, c, o) }()
	t.Cleanup(cancel)
	select {
	case a := <-ready:
		r.url = "http://" + a.String()
	case err := <-r.done:
		t.Fatalf("the service ended: %v", err)
	case <-time.After(3 * time.Minute):
		t.Fatal("the service is not ready")
	}
	return r
}

func (r *running) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(3 * time.Minute):
		t.Fatal("the service does not end")
		return nil
	}
}

func TestRunServesAndEnds(t *testing.T) {
	c, _ := config(t)
	r := start(t, c)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/openapi.yaml": 200, "/metrics": 401, "/v1/pointers": 401} {
		until(t, fmt.Sprint(path, " answers ", want), func() bool {
			resp, err := http.Get(r.url + path)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != want && resp.StatusCode != http.StatusServiceUnavailable { // the database is late
				t.Fatalf("%s: %s", path, resp.Status)
			}
			return resp.StatusCode == want
		})
	}
	http.DefaultClient.CloseIdleConnections()
	r.stop()
	if err := r.wait(t); err != nil {
		t.Errorf("the service ended with %v", err)
	}
	if _, err := http.Get(r.url + "/healthz"); err == nil {
		t.Error("it still answers")
	}
}

// TestRunLetsRequestsFinish: a request under way when the end is asked for is answered.
func TestRunLetsRequestsFinish(t *testing.T) {
	c, db := config(t)
	r := start(t, c)
	token, _ := credentials(t, db.ServiceURL, r.url)
	address := strings.TrimPrefix(r.url, "http://")
	// It waits for the rest of its body, and asks the database after that.
	busy, other := dial(t, address), dial(t, address)
	fmt.Fprintf(busy, "POST /v1/resolve HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"name", token)
	until(t, "it is under way", func() bool {
		fmt.Fprintf(other, "GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", token)
		_, body := other.answer()
		return strings.Contains(body, "artifactd_http_requests_in_flight 2")
	})
	r.stop()
	until(t, "nobody is taken on any more", func() bool {
		late, err := net.Dial("tcp", address)
		if err == nil {
			_ = late.Close()
		}
		return err != nil
	})
	select {
	case err := <-r.done:
		t.Fatalf("the service ended while a request ran: %v", err)
	default:
	}
	fmt.Fprint(busy, "s\":[\"a\"]}")
	if status, body := busy.answer(); status != http.StatusOK {
		t.Errorf("the request under way got status %d: %s", status, body)
	}
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

// waitForLock returns when somebody waits for a lock in the database.
func waitForLock(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var waiting bool
		err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')").Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody waits for the lock")
		}
	}
}

func TestRunCutsOffWhoTakesTooLong(t *testing.T) {
	c, _ := config(t)
	c.ShutdownGrace = 100 * time.Millisecond
	r := start(t, c)
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// An upload that never ends; it is refused only once it has been read.
	if _, err := io.WriteString(conn, "PUT /v1/pointers/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	r.stop()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

func TestRunRefusesToStart(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*testing.T, *daemon.Config, *testenv.DB)
		says  string
	}{
		"a bad configuration": {func(_ *testing.T, c *daemon.Config, _ *testenv.DB) { c.S3.Bucket = "" }, "--s3-bucket"},
		"no database": {func(_ *testing.T, c *daemon.Config, _ *testenv.DB) {
			c.DatabaseURL = "postgres://x@127.0.0.1:1/x?connect_timeout=2"
		}, "--database-url"},
		"a database that may lose commits":       {func(_ *testing.T, c *daemon.Config, _ *testenv.DB) { c.AllowUnsafeDurability = false }, "fsync=off"},
		"a role that could write past the fence": {func(_ *testing.T, c *daemon.Config, db *testenv.DB) { c.DatabaseURL = db.URL }, "--allow-unfenced-role"},
		"no schema": {func(t *testing.T, _ *daemon.Config, db *testenv.DB) {
			execute(t, db.URL, "DELETE FROM artifactd.schema_version WHERE version_id > 1")
		}, "artifactd migrate"},
		"a newer schema": {func(t *testing.T, _ *daemon.Config, db *testenv.DB) {
			execute(t, db.URL, "INSERT INTO artifactd.schema_version (version_id, is_applied) VALUES (9999, true)")
		}, "newer program"},
		"another prefix": {func(t *testing.T, c *daemon.Config, _ *testenv.DB) {
			first := start(t, *c)
			first.stop()
			if err := first.wait(t); err != nil {
				t.Fatal(err)
			}
			c.S3.Prefix = "other/"
		}, "s3-prefix"},
		"a bucket of another installation": {func(t *testing.T, c *daemon.Config, db *testenv.DB) {
			first := start(t, *c)
			first.stop()
			if err := first.wait(t); err != nil {
				t.Fatal(err)
			}
			execute(t, db.URL, "SET session_replication_role = replica; UPDATE artifactd.installation SET installation_id = gen_random_uuid()")
		}, "belongs to another installation"},
	} {
		t.Run(name, func(t *testing.T) {
			c, db := config(t)
			test.spoil(t, &c, db)
			err := daemon.Run(t.Context(), c, daemon.Options{})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want one about %q", err, test.says)
			}
			if name == "no database" && !errors.Is(err, daemon.ErrUnavailable) {
				t.Errorf("%v is not ErrUnavailable", err)
			}
		})
	}
}

func TestRunMakesTheBucketWhenAsked(t *testing.T) {
	c, _ := config(t)
	c.S3.Bucket += "-new"
	c.S3.CreateBucket = true
	for range 2 { // once to make it, once to find it there
		r := start(t, c)
		r.stop()
		if err := r.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListenSaysWhatToDo(t *testing.T) {
	l, err := daemon.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := daemon.Listen(l.Addr().String()); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("a busy port: %v", err)
	}
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
