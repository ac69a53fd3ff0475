package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestDatabasesAreMigratedAndApart(t *testing.T) {
	for range 4 {
		t.Run("database", func(t *testing.T) {
			t.Parallel()
			db := testenv.Database(t)
			conn := db.Connect(t)
			var applied bool
			err := conn.QueryRow(t.Context(), "SELECT count(*) > 0 FROM artifactd.schema_version").Scan(&applied)
			if err != nil || !applied {
				t.Errorf("migrated: %v %v", applied, err)
			}
			if _, err := conn.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
				t.Errorf("not alone: %v", err)
			}
		})
	}
}

func TestServiceIsNotTheOwner(t *testing.T) {
	db := testenv.Database(t)
	_, err := db.ConnectService(t).Exec(t.Context(), "DELETE FROM artifactd.schema_version")
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
		t.Errorf("the service may delete: %v", err)
	}
}

func TestDatabaseIsDropped(t *testing.T) {
	var db *testenv.DB
	t.Run("one test", func(t *testing.T) { db = testenv.Database(t) })
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err == nil {
		_ = conn.Close(t.Context())
		t.Error("the database of a finished test is still there")
	}
}

func TestOwnPostgresCanBeKilled(t *testing.T) {
	o := devstack.PostgresOptions{DataDir: t.TempDir(), FsyncOff: true}
	pg := testenv.Postgres(t, o)
	db := testenv.DatabaseOn(t, pg)
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	testenv.Postgres(t, o)
	if err := db.Connect(t).Ping(t.Context()); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestBuckets(t *testing.T) {
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		plain := testenv.Bucket(t, server)
		out, err := plain.Client().GetBucketVersioning(t.Context(), &s3.GetBucketVersioningInput{Bucket: &plain.Name})
		if err != nil || out.Status != "" {
			t.Errorf("plain bucket: %v %v", out, err)
		}
		locked := testenv.Bucket(t, server, testenv.ObjectLock())
		if _, err := locked.Client().GetObjectLockConfiguration(t.Context(), &s3.GetObjectLockConfigurationInput{Bucket: &locked.Name}); err != nil {
			t.Errorf("locked bucket: %v", err)
		}
	})
}

// echo is a server that answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

type lineClient struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, addr string) *lineClient {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &lineClient{t: t, conn: c, in: bufio.NewReader(c)}
}

func (c *lineClient) say(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *lineClient) hear(patience time.Duration) (string, error) {
	c.t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		c.t.Fatal(err)
	}
	line, err := c.in.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

const (
	long  = time.Minute
	short = 100 * time.Millisecond
)

func (c *lineClient) expect(line string) {
	c.t.Helper()
	if got, err := c.hear(long); err != nil || got != line {
		c.t.Errorf("heard %q, %v; want %q", got, err, line)
	}
}

func TestProxyHoldsAndGoesOn(t *testing.T) {
	for name, fault := range map[string]testenv.Fault{
		"to client": {HoldToClient: true}, "to server": {HoldToServer: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := testenv.NewProxy(t, echo(t))
			c := dial(t, p.Addr())
			c.say("one")
			c.expect("one")
			p.Set(fault)
			c.say("two")
			if got, err := c.hear(short); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
				t.Errorf("through a black hole came %q, %v", got, err)
			}
			p.Set(testenv.Fault{})
			c.expect("two")
		})
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestProxyResets(t *testing.T) {
	p := testenv.NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	c.say("one")
	c.expect("one")
	p.Set(testenv.Fault{Reset: true})
	if _, err := c.hear(long); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("old connection: %v", err)
	}
	p.Set(testenv.Fault{})
	c = dial(t, p.Addr())
	c.say("two")
	c.expect("two")
}

func TestProxyTripsOnAPattern(t *testing.T) {
	p := testenv.NewProxy(t, echo(t))
	c, other := dial(t, p.Addr()), dial(t, p.Addr())
	tripped := p.TripOn("commit", testenv.Fault{LoseAnswer: true})
	c.say("one")
	c.expect("one")
	c.say("com" + "mit")
	<-tripped
	if got, err := c.hear(long); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the answer was not lost: %q, %v", got, err)
	}
	other.say("commit")
	other.expect("commit")
}

func TestProxyDelays(t *testing.T) {
	p := testenv.NewProxy(t, echo(t))
	c := dial(t, p.Addr())
	p.Set(testenv.Fault{Delay: short})
	before := time.Now()
	c.say("one")
	c.expect("one")
	if took := time.Since(before); took < 2*short {
		t.Errorf("there and back took %v", took)
	}
}

func TestProxyToPostgres(t *testing.T) {
	db := testenv.Database(t)
	p := testenv.NewProxy(t, db.Postgres.Socket())
	conn, err := pgx.Connect(t.Context(), "postgres://postgres@"+p.Addr()+"/"+db.Name+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }() // broken below
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "CREATE TABLE proof ()"); err != nil {
		t.Fatal(err)
	}
	tripped := p.TripOn("commit", testenv.Fault{LoseAnswer: true})
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the answer to COMMIT was not lost")
	}
	<-tripped
	if _, err := db.Connect(t).Exec(t.Context(), "DROP TABLE proof"); err != nil {
		t.Errorf("it was not committed: %v", err)
	}
}
