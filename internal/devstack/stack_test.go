package devstack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestKilledParentLeavesNoChild(t *testing.T) {
	dir := shortTempDir(t)
	parent, pids := startParent(t, dir)
	for name, pid := range map[string]int{"postgres": pids.Postgres, "s3": pids.S3, "supervised": pids.Supervised} {
		if !running(t, pid) {
			t.Fatalf("%s (pid %d) does not run", name, pid)
		}
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed: that is the error

	// The next one starts at once, beside children that may still be shutting down.
	pg, err := StartPostgres(context.Background(), PostgresOptions{DataDir: filepath.Join(dir, "postgres"), FsyncOff: true})
	if err != nil {
		t.Fatalf("start after a killed parent: %v", err)
	}
	defer stopWithin(t, pg.Stop)
	if one := query[int](t, pg.URL("postgres"), "SELECT 1"); one != 1 {
		t.Errorf("SELECT 1 = %d", one)
	}
	eventually(t, "all children of the killed parent end", func() bool {
		return !running(t, pids.Postgres) && !running(t, pids.S3) && !running(t, pids.Supervised)
	})
}

func TestPostgresKeepsItsDataAndItsURL(t *testing.T) {
	dir := shortTempDir(t)
	ctx := context.Background()
	o := PostgresOptions{DataDir: dir, FsyncOff: true}
	pg, err := StartPostgres(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is there
		if err := pg.CreateDatabase(ctx, "artifactd"); err != nil {
			t.Fatal(err)
		}
	}
	url := pg.URL("artifactd")
	query[string](t, url, "CREATE TABLE t AS SELECT 42 AS n; SELECT ''")
	if got := query[string](t, url, "SHOW listen_addresses"); got != "" {
		t.Errorf("it listens on %q", got)
	}
	if pg.Major() < OldestPostgres {
		t.Errorf("major version %d", pg.Major())
	}
	stopWithin(t, pg.Stop)
	<-pg.Done()

	if pg, err = StartPostgres(ctx, o); err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, url, "SELECT n FROM t"); got != 42 {
		t.Errorf("after a restart n = %d", got)
	}
	// A crash: the stale pid file and what backends are left must not stop the next start.
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if pg, err = StartPostgres(ctx, o); err != nil {
		t.Fatalf("start after a crash: %v", err)
	}
	defer stopWithin(t, pg.Stop)
	if got := query[int](t, url, "SELECT n FROM t"); got != 42 {
		t.Errorf("after a crash n = %d", got)
	}
}

func TestCrashIsNoticed(t *testing.T) {
	pg, err := StartPostgres(context.Background(), PostgresOptions{DataDir: shortTempDir(t), FsyncOff: true})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-pg.Done():
		t.Fatal("done while it runs")
	default:
	}
	if err := syscall.Kill(pg.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-pg.Done()
	if pg.Err() == nil {
		t.Error("a killed Postgres reports no error")
	}
	stopWithin(t, pg.Stop)
}

func TestStalePidOfAnotherProgram(t *testing.T) {
	dir := shortTempDir(t)
	o := PostgresOptions{DataDir: dir, FsyncOff: true}
	pg, err := StartPostgres(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	// The number of the dead postmaster now belongs to some other program: this test's parent.
	pidFile := folder(dir).pidFile()
	b, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n")
	if err := os.WriteFile(pidFile, fmt.Appendf(nil, "%d\n%s", os.Getppid(), rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if pg, err = StartPostgres(context.Background(), o); err != nil {
		t.Fatalf("start with a stale pid: %v", err)
	}
	stopWithin(t, pg.Stop)
}

func TestFolderInUse(t *testing.T) {
	dir := shortTempDir(t)
	pg, err := StartPostgres(context.Background(), PostgresOptions{DataDir: dir, FsyncOff: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stopWithin(t, pg.Stop)
	_, err = StartPostgres(context.Background(), PostgresOptions{DataDir: dir, FsyncOff: true})
	if !errors.Is(err, ErrFolderInUse) || !strings.Contains(err.Error(), fmt.Sprintf("another artifactd dev is running on %s (pid %d)", dir, os.Getpid())) {
		t.Errorf("second start: %v", err)
	}
}

// A child process that is just being started has every open file of its parent for a moment.
func TestFolderIsGivenBackWhileAChildHasTheLocksFile(t *testing.T) {
	dir := shortTempDir(t)
	lock, err := LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	childs, err := syscall.Dup(int(lock.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(childs) }()
	for range 2 {
		if err := lock.Unlock(); err != nil {
			t.Errorf("unlock: %v", err)
		}
	}
	again, err := LockFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestFoldersThatCannotBeUsed(t *testing.T) {
	dir := shortTempDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := StartPostgres(context.Background(), PostgresOptions{DataDir: filepath.Join(file, "below")})
	if err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("folder below a file: %v", err)
	}
	if _, err := StartPostgres(context.Background(), PostgresOptions{}); err == nil {
		t.Error("no folder at all was accepted")
	}
	if _, err := StartS3(context.Background(), S3Options{DataDir: file}); err == nil || !strings.Contains(err.Error(), "is not a folder") {
		t.Errorf("S3 on a file: %v", err)
	}
	// Root may write anywhere, so the message for an ordinary user is checked as it is made.
	err = folderError("/data", fmt.Errorf("mkdir: %w", os.ErrPermission))
	if !strings.Contains(err.Error(), "cannot be written: choose another folder") {
		t.Errorf("permission: %v", err)
	}
}

func TestFolderOfAnotherMajorVersion(t *testing.T) {
	dir := shortTempDir(t)
	cluster := folder(dir).cluster()
	if err := os.Mkdir(cluster, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cluster, "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := StartPostgres(context.Background(), PostgresOptions{DataDir: dir})
	if !errors.Is(err, ErrNoPostgres) || !strings.Contains(err.Error(), "made by Postgres 9") {
		t.Errorf("folder of version 9: %v", err)
	}
}

func TestNoPostgresInstalled(t *testing.T) {
	_, err := StartPostgres(context.Background(), PostgresOptions{DataDir: shortTempDir(t), BinDir: t.TempDir()})
	if !errors.Is(err, ErrNoPostgres) || !strings.Contains(err.Error(), "apt-get install postgresql") {
		t.Errorf("no Postgres: %v", err)
	}
}

func TestBadSettingShowsTheLog(t *testing.T) {
	_, err := StartPostgres(context.Background(), PostgresOptions{
		DataDir: shortTempDir(t), FsyncOff: true, Settings: map[string]string{"wal_level": "nonsense"},
	})
	if err == nil || !strings.Contains(err.Error(), "wal_level") {
		t.Errorf("the log is not shown: %v", err)
	}
}

func TestLongFolderGetsAShortSocket(t *testing.T) {
	dir := filepath.Join(shortTempDir(t), strings.Repeat("d", 90))
	pg, err := StartPostgres(context.Background(), PostgresOptions{DataDir: dir, FsyncOff: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(pg.Socket()); n > longestSocketPath {
		t.Errorf("the socket path has %d bytes", n)
	}
	socketDir := filepath.Dir(pg.Socket())
	if fi, err := os.Stat(socketDir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("socket folder: %v %v", fi.Mode(), err)
	}
	stopWithin(t, pg.Stop)
	if _, err := os.Stat(socketDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket folder is left behind: %v", err)
	}
}

func TestGuessedSocketFolderIsNotTrusted(t *testing.T) {
	dir := filepath.Join(shortTempDir(t), "open")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := makeOwnFolder(dir, identity{}); err == nil {
		t.Error("a folder that others can enter was trusted")
	}
}

func TestS3PortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = StartS3(context.Background(), S3Options{DataDir: shortTempDir(t), Listen: l.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("busy port: %v", err)
	}
}

func TestS3StopsAndRestarts(t *testing.T) {
	o := S3Options{DataDir: shortTempDir(t)}
	s3, err := StartS3(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s3.AccessKeyID() == "" || s3.SecretAccessKey() == "" {
		t.Error("no credentials were made")
	}
	stopWithin(t, s3.Stop)
	<-s3.Done()
	if err := s3.Err(); err != nil {
		t.Errorf("it did not end in order: %v", err)
	}
	if s3, err = StartS3(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if err := s3.Kill(); err != nil {
		t.Fatal(err)
	}
}

// A signed URL of the run before is good in the next one, unless somebody else has its port by then.
func TestS3KeepsItsPort(t *testing.T) {
	o := S3Options{DataDir: shortTempDir(t)}
	address := filepath.Join(o.DataDir, addressName)
	endpoint := func() string {
		t.Helper()
		s3, err := StartS3(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if err := s3.Kill(); err != nil {
			t.Fatal(err)
		}
		return s3.Endpoint()
	}
	if b, err := os.ReadFile(address); err == nil {
		t.Fatalf("before the first run: %s", b)
	}
	first := endpoint()
	if b, err := os.ReadFile(address); err != nil || "http://"+strings.TrimSpace(string(b)) != first {
		t.Errorf("the server was at %s, remembered is %q, %v", first, b, err)
	}
	// Below the ports that systems give out by themselves, nobody gets it in the meantime.
	free := lowPort(t)
	if err := os.WriteFile(address, []byte(free+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := endpoint(); got != "http://"+free {
			t.Errorf("the server is at %s, was at %s", got, free)
		}
	}
	l, err := net.Listen("tcp", free)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := endpoint(); got == "http://"+free {
		t.Error("two servers on one port")
	}
	// What is no address, or one of another host, is as good as none.
	for _, last := range []string{"nonsense", "127.0.0.2:" + strings.TrimPrefix(free, "127.0.0.1:"), "127.0.0.1:0"} {
		if err := os.WriteFile(address, []byte(last), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := endpoint(); !strings.HasPrefix(got, "http://127.0.0.1:") {
			t.Errorf("after %q the server is at %s", last, got)
		}
	}
}

// lowPort is a port that nobody listened on a moment ago, as 127.0.0.1:port.
func lowPort(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000)))
		if err == nil {
			_ = l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func TestSupervisorStopsItsProgram(t *testing.T) {
	dir := shortTempDir(t)
	p, err := StartProcess(context.Background(), ProcessSpec{
		Path: "/bin/sh", Args: []string{"-c", "echo started; exec sleep 1000"},
		Dir: dir, Log: filepath.Join(dir, "log"), supervise: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program starts", func() bool { return logTail(filepath.Join(dir, "log")) == "started" })
	stopWithin(t, p.Stop)
	if p.Err() != nil {
		t.Errorf("the supervisor failed: %v", p.Err())
	}
}

// query runs one statement, or several without parameters, and returns the last one's value.
func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var v T
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(&v); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return v
}
