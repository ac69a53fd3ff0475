package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/pointer"
)

// childEnv marks a re-executed test binary and says what it shall be.
const childEnv = "ARTIFACTD_SCHEDULE_CHILD"

// TestScheduleChild is the other process of a schedule; in an ordinary run there is none.
func TestScheduleChild(t *testing.T) {
	switch os.Getenv(childEnv) {
	case "worker":
		workerProcess(t)
	case "keeper":
		keeperProcess(t)
	case "service":
		serviceProcess(t)
	case "uploader":
		uploaderProcess(t)
	}
}

// child is another process of the same test binary.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startChild(t *testing.T, role string, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestScheduleChild$")
	cmd.Env = append(append(os.Environ(), childEnv+"="+role), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // end of input ends it
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &child{cmd: cmd, in: in, out: bufio.NewScanner(out)}
}

// says returns the rest of the child's next line that begins with word.
func (c *child) says(t *testing.T, word string) string {
	t.Helper()
	for c.out.Scan() {
		if rest, ok := strings.CutPrefix(c.out.Text(), word); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("the child ended without saying %q", word)
	return ""
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// workerProcess acquires, uploads, says so, waits for a line, and publishes.
func workerProcess(t *testing.T) {
	ctx := t.Context()
	c, err := client.New(os.Getenv("URL"), os.Getenv("TOKEN"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.Acquire(ctx, "p", client.AcquireOptions{Holder: "A", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	src, err := client.FileSource(ctx, os.Getenv("FILE"), "file", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.UploadAll(ctx, lease, []client.Source{src}, nil); err != nil {
		t.Fatal(err)
	}
	fmt.Println("uploaded", lease.Token)
	if !bufio.NewScanner(os.Stdin).Scan() {
		return
	}
	_, err = c.Publish(ctx, lease, client.Publication{})
	var p *client.Problem
	if errors.As(err, &p) {
		fmt.Println("publish", p.Code, p.Reason)
		return
	}
	fmt.Println("publish", err)
}

// serviceProcess runs the service until its input ends.
func serviceProcess(t *testing.T) {
	c := daemon.Default()
	c.DatabaseURL, c.Listen, c.AllowUnsafeDurability = os.Getenv("DATABASE"), "127.0.0.1:0", true
	c.S3.Endpoint, c.S3.Bucket, c.S3.PathStyle = os.Getenv("ENDPOINT"), os.Getenv("BUCKET"), true
	c.S3.AccessKeyID, c.S3.SecretAccessKey = os.Getenv("KEY"), os.Getenv("SECRET")
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := daemon.Run(ctx, c, daemon.Options{Ready: func(a net.Addr) { fmt.Println("ready http://" + a.String()) }}); err != nil {
		t.Error(err)
	}
}

// credentials makes an access token that may do everything, and a client that uses it.
func credentials(t *testing.T, db, url string) (string, *client.Client) {
	t.Helper()
	admin, err := daemon.OpenAdmin(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	_, token, err := admin.CreateToken(t.Context(), "test", []pointer.Scope{pointer.ScopeAdmin}, []string{"*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(url, token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return token, c
}

func file(t *testing.T, content string) client.Source {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := client.FileSource(t.Context(), name, "file", nil)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestScheduleH11WorkerStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	c, db := config(t)
	c.GC.Interval = 0 // what goes is counted
	r := start(t, c)
	token, admin := credentials(t, db.ServiceURL, r.url)
	if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.WriteFile(stale, []byte("a stale worker's bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	worker := startChild(t, "worker", "URL="+r.url, "TOKEN="+token, "FILE="+stale)
	worker.says(t, "uploaded")
	worker.signal(t, syscall.SIGSTOP)

	// Time passes: not so much that the upload had to be quick.
	execute(t, db.URL, `UPDATE artifactd.pointer SET lease_expires_at = clock_timestamp() + interval '1 second' WHERE name = 'p'`)
	// It takes the lease when the stopped worker's has ended, by the database's clock.
	v, err := admin.PublishFiles(t.Context(), "p", []client.Source{file(t, "good")}, client.AcquireOptions{Holder: "B", Wait: time.Minute}, client.Publication{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(worker.in, "go on"); err != nil {
		t.Fatal(err)
	}
	worker.signal(t, syscall.SIGCONT)
	if got := worker.says(t, "publish"); got != "publish-refused superseded" {
		t.Errorf("the worker that woke up: %s", got)
	}
	now, err := admin.Resolve(t.Context(), "p")
	if err != nil || now.Version != v.Version {
		t.Errorf("shows %+v, %v; want %s", now, err, v.Version)
	}
	run, err := admin.Collect(t.Context(), types.GcRequest{}, nil)
	if err != nil || run.DeletedObjects != 1 || run.DeletedBytes != int64(len("a stale worker's bytes")) {
		t.Errorf("collected %+v, %v; want the stale worker's file", run, err)
	}
}

func TestScheduleH12StoppedServiceHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	c, db := config(t)
	other := start(t, c)
	token, admin := credentials(t, db.ServiceURL, other.url)
	if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	stopped := startChild(t, "service", "DATABASE="+db.ServiceURL, "ENDPOINT="+c.S3.Endpoint, "BUCKET="+c.S3.Bucket,
		"KEY="+c.S3.AccessKeyID, "SECRET="+c.S3.SecretAccessKey)
	url := stopped.says(t, "ready")

	// The service that will be stopped has sent an acquire, which waits for the row.
	blocker := db.Connect(t)
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM artifactd.pointer WHERE name = 'p' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- acquireOnce(t.Context(), url, token) }()
	waitForLock(t, db.URL)
	stopped.signal(t, syscall.SIGSTOP)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Its transaction ends without it; only its lease has to run out.
	if _, err := admin.PublishFiles(t.Context(), "p", []client.Source{file(t, "good")}, client.AcquireOptions{Holder: "B", Wait: time.Minute}, client.Publication{}, nil); err != nil {
		t.Error(err)
	}
	stopped.signal(t, syscall.SIGCONT)
	if err := <-answer; err != nil {
		t.Errorf("the stopped service's own caller, once it goes on: %v", err)
	}
}

// acquireOnce asks for a lease of a second. A service that is ready to be read from may still wait for
// its first look at the bucket, and says so with 503.
func acquireOnce(ctx context.Context, url, token string) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/pointers/p/leases", strings.NewReader(`{"holder": "stopped", "ttl_seconds": 1}`))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A session that stops between BEGIN and COMMIT, whoever's it is, is ended by the server.
func TestScheduleH12IdleTransactionIsEnded(t *testing.T) {
	t.Parallel()
	c, db := config(t)
	r := start(t, c)
	_, admin := credentials(t, db.ServiceURL, r.url)
	if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	cfg, err := pointer.PoolConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] == "" {
		t.Fatal("the service's sessions may sit in a transaction for ever")
	}
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "200"
	idle, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close(context.Background()) }()
	if _, err := idle.Exec(t.Context(), `BEGIN`); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Exec(t.Context(), `SELECT 1 FROM artifactd.pointer WHERE name = 'p' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Acquire(t.Context(), "p", client.AcquireOptions{Holder: "B"}); err != nil {
		t.Errorf("while somebody sits in a transaction on the row: %v", err)
	}
}
