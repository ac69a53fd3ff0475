package daemon_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/daemon"
	"github.com/artifactd/artifactd/internal/testenv"
)

const (
	partSize  = 5 << 20 // the smallest that real stores take
	partCount = 4
	partsFile = partCount*partSize - 100
)

// partPuts counts the parts that the store has taken, and does something after each.
type partPuts struct {
	taken atomic.Int64
	after func(taken int64)
}

func (p *partPuts) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusOK && r.URL.Query().Has("partNumber") {
		n := p.taken.Add(1)
		if p.after != nil {
			p.after(n)
		}
	}
	return resp, err
}

// uploaderProcess publishes a file, and stands still when so many parts have been taken.
func uploaderProcess(t *testing.T) {
	stop, err := strconv.ParseInt(os.Getenv("PARTS"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	puts := &partPuts{after: func(taken int64) {
		if taken == stop {
			fmt.Println("sent", taken)
			select {} // until it is killed
		}
	}}
	c, err := client.New(os.Getenv("URL"), os.Getenv("TOKEN"), client.Options{Parallel: 1, HTTPClient: &http.Client{Transport: puts}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := client.FileSource(t.Context(), os.Getenv("FILE"), "file", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PublishFiles(t.Context(), "p", []client.Source{src}, resumable, client.Publication{OperationID: uuid.MustParse(os.Getenv("OPERATION"))}, nil)
	t.Fatalf("it published: %v", err)
}

// resumable is how both processes ask for their lease.
var resumable = client.AcquireOptions{Holder: "worker", TTL: time.Minute, Wait: time.Minute}

// startPartly is a service with small parts.
func startPartly(t *testing.T, c daemon.Config) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, ready := make(chan error, 1), make(chan net.Addr, 1)
	go func() {
		done <- daemon.Run(ctx, c, daemon.Options{
			Ready: func(a net.Addr) { ready <- a }, Partition: artifacts.Partition{SinglePut: partSize, PartSize: partSize},
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case a := <-ready:
		return "http://" + a.String()
	case err := <-done:
		done <- err
		t.Fatalf("the service ended: %v", err)
	case <-time.After(3 * time.Minute):
		t.Fatal("the service is not ready")
	}
	return ""
}

// TestScheduleS3KilledAfterAnyPart kills the client's process after each of its parts, and starts the
// publish again: under the lease that the dead process held, or, once that is broken, under a new one.
func TestScheduleS3KilledAfterAnyPart(t *testing.T) {
	t.Parallel()
	for _, world := range []struct {
		driver string
		server testenv.Server
	}{{"aws", testenv.Versitygw}, {"minio", testenv.MinIO}} {
		t.Run(world.driver+" on "+string(world.server), func(t *testing.T) {
			t.Parallel()
			c, db := config(t)
			b := testenv.Bucket(t, world.server)
			c.S3.Driver, c.S3.Endpoint, c.S3.Bucket, c.S3.Region = world.driver, b.Endpoint, b.Name, b.Region
			c.S3.AccessKeyID, c.S3.SecretAccessKey = b.AccessKeyID, b.SecretAccessKey
			url := startPartly(t, c)
			token, admin := credentials(t, db.ServiceURL, url)
			if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
				t.Fatal(err)
			}
			for parts := int64(1); parts <= partCount; parts++ {
				for _, sameLease := range []bool{true, false} {
					killAndResume(t, admin, url, token, parts, sameLease)
				}
			}
		})
	}
}

func killAndResume(t *testing.T, reader *client.Client, url, token string, parts int64, sameLease bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	content := make([]byte, partsFile)
	_, _ = rand.NewChaCha8([32]byte{byte(parts), byte(len(t.Name()))}).Read(content) // never fails
	if !sameLease {
		content[0] ^= 1 // another file than the last time
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	operation := uuid.New()
	dead := startChild(t, "uploader", "URL="+url, "TOKEN="+token, "FILE="+name, "OPERATION="+operation.String(), "PARTS="+strconv.FormatInt(parts, 10))
	dead.says(t, "sent")
	dead.signal(t, syscall.SIGKILL)

	puts := &partPuts{}
	c, err := client.New(url, token, client.Options{HTTPClient: &http.Client{Transport: puts}})
	if err != nil {
		t.Fatal(err)
	}
	held, err := c.LeaseStatus(t.Context(), "p")
	if err != nil || held.Token == nil {
		t.Fatalf("the dead process's lease: %+v, %v", held, err)
	}
	if !sameLease {
		if err := c.BreakLease(t.Context(), "p", *held.Token); err != nil {
			t.Fatal(err)
		}
	}
	src, err := client.FileSource(t.Context(), name, "file", nil)
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	published, err := c.PublishFiles(t.Context(), "p", []client.Source{src}, resumable, client.Publication{OperationID: operation}, func(n int64) { told.Add(n) })
	if err != nil {
		t.Fatalf("killed after %d parts, then: %v", parts, err)
	}
	if (published.Version == *held.Token) != sameLease {
		t.Errorf("published %s, the dead process held %s", published.Version, *held.Token)
	}
	moved := max(0, partsFile-parts*partSize)
	if puts.taken.Load() != partCount-parts || published.UploadedBytes != moved || published.AdoptedBytes != partsFile-moved || told.Load() != partsFile {
		t.Errorf("killed after %d of %d parts: %d were sent then, %+v, progress told of %d", parts, partCount, puts.taken.Load(), published.Moved, told.Load())
	}
	v, err := reader.Resolve(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := reader.Download(t.Context(), v.Files[0], &got, nil); err != nil || got.String() != string(content) {
		t.Errorf("read back %d bytes, %v", got.Len(), err)
	}
}
