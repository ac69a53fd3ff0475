package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// keeperProcess is a program as somebody writes it with package client: it keeps its lease, works under
// the context it gets, and does not look at it before it publishes.
func keeperProcess(t *testing.T) {
	ctx := t.Context()
	c, err := client.New(os.Getenv("URL"), os.Getenv("TOKEN"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := c.Acquire(ctx, "p", client.AcquireOptions{Holder: "A", TTL: 12 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	keeper := c.Keep(ctx, lease)
	src, err := client.FileSource(ctx, os.Getenv("FILE"), "file", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.UploadAll(ctx, lease, []client.Source{src}, nil); err != nil {
		t.Fatal(err)
	}
	for keeper.Lease().ExpiresAt.Equal(lease.ExpiresAt) && keeper.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("renewed")
	<-keeper.Context().Done() // its work
	fmt.Println("cancelled", errors.Is(context.Cause(keeper.Context()), client.ErrLeaseLost))
	_, err = c.Publish(ctx, keeper.Lease(), client.Publication{})
	var p *client.Problem
	if errors.As(err, &p) {
		fmt.Println("publish", p.Code, p.Reason)
		return
	}
	fmt.Println("publish", err)
}

// A program that keeps its lease is stopped past it: once it goes on its context is cancelled, and its
// publish is refused although nobody else has published.
func TestScheduleH11KeeperStoppedPastItsLease(t *testing.T) {
	t.Parallel()
	c, db := config(t)
	r := start(t, c)
	token, admin := credentials(t, db.ServiceURL, r.url)
	if _, err := admin.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "stale")
	writeFile(t, name, []byte("a stale worker's bytes"))
	worker := startChild(t, "keeper", "URL="+r.url, "TOKEN="+token, "FILE="+name)
	worker.says(t, "renewed")
	worker.signal(t, syscall.SIGSTOP)
	conn := db.Connect(t)
	until(t, "the lease is over by the database's clock", func() bool {
		var live bool
		if err := conn.QueryRow(t.Context(), `SELECT lease_expires_at > clock_timestamp() FROM artifactd.pointer WHERE name = 'p'`).Scan(&live); err != nil {
			t.Fatal(err)
		}
		return !live
	})
	worker.signal(t, syscall.SIGCONT)
	if got := worker.says(t, "cancelled"); got != "true" {
		t.Errorf("its context's cause is a lost lease: %s", got)
	}
	if got := worker.says(t, "publish"); got != "publish-refused expired" {
		t.Errorf("its publish: %s", got)
	}
	if _, err := admin.Resolve(t.Context(), "p"); !errors.Is(err, client.ErrNothingPublished) {
		t.Errorf("readers see %v", err)
	}
}
