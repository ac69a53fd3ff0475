package client_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/devstack"
	"github.com/artifactd/artifactd/internal/testenv"
	"github.com/artifactd/artifactd/pointer"
)

// TestMain gives the examples a service, which is in the environment as it is for any program. When no
// example is going to run, there is none: the tests do not need it.
func TestMain(m *testing.M) {
	if devstack.RunChild() {
		return
	}
	flag.Parse()
	// Whoever names tests runs no example, and need not wait for its service.
	if chosen := flag.Lookup("test.run").Value.String(); !strings.HasPrefix(strings.TrimLeft(chosen, "^("), "Test") {
		serveExamples(starting{})
	}
	testenv.Main(m)
}

// starting is a testing.TB before there is any test: what fails ends the process, and what was started
// ends with it.
type starting struct{ testing.TB }

func (starting) Helper()                           {}
func (starting) Cleanup(func())                    {}
func (starting) Context() context.Context          { return context.Background() }
func (starting) Fatalf(format string, args ...any) { starting{}.Fatal(fmt.Sprintf(format, args...)) }
func (starting) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, "the examples' service does not start:", fmt.Sprint(args...))
	os.Exit(1)
}

// serveExamples starts a service with what the examples find there.
func serveExamples(t testing.TB) {
	db, bucket := testenv.Database(t), testenv.Bucket(t, testenv.Versitygw)
	c := daemon.Default()
	c.DatabaseURL, c.Listen, c.AllowUnsafeDurability = db.ServiceURL, "127.0.0.1:0", true
	c.S3.Endpoint, c.S3.Bucket, c.S3.PathStyle = bucket.Endpoint, bucket.Name, true
	c.S3.AccessKeyID, c.S3.SecretAccessKey = bucket.AccessKeyID, bucket.SecretAccessKey
	ready := make(chan net.Addr, 1)
	go func() {
		t.Fatal(daemon.Run(t.Context(), c, daemon.Options{Ready: func(a net.Addr) { ready <- a }}))
	}()
	url := "http://" + (<-ready).String()

	admin, err := daemon.OpenAdmin(t.Context(), db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	_, token, err := admin.CreateToken(t.Context(), "examples", []pointer.Scope{pointer.ScopeAdmin}, []string{"*"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"ARTIFACTD_URL": url, "ARTIFACTD_TOKEN": token} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := publishGreeting(t.Context(), url, token); err != nil {
		t.Fatal(err)
	}
}

func publishGreeting(ctx context.Context, url, token string) error {
	service, err := client.New(url, token, client.Options{})
	if err != nil {
		return err
	}
	defer service.Close()
	for _, name := range []string{"acme.greeting", "acme.reports.daily"} {
		if _, err := service.PutPointer(ctx, name, types.PutPointerRequest{}); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "artifactd-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "hello.txt")
	if err := os.WriteFile(name, []byte("Hello, readers!\n"), 0o600); err != nil {
		return err
	}
	hello, err := client.FileSource(ctx, name, "hello.txt", nil)
	if err != nil {
		return err
	}
	_, err = service.PublishFiles(ctx, "acme.greeting", []client.Source{hello}, client.AcquireOptions{Holder: "example"}, client.Publication{}, nil)
	return err
}
