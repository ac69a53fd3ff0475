package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/testenv"
)

// A publish of many small files that is cut off in the middle of their archive goes on, under the next
// lease, with what had not come whole.
func TestScheduleS2CutOffInAnArchive(t *testing.T) {
	t.Parallel()
	testenv.EachServer(t, func(t *testing.T, server testenv.Server) {
		t.Parallel()
		const files, cutAt, size = 200, 150, 4096
		c, db := config(t)
		b := testenv.Bucket(t, server)
		c.S3.Endpoint, c.S3.Bucket, c.S3.Region = b.Endpoint, b.Name, b.Region
		c.S3.AccessKeyID, c.S3.SecretAccessKey = b.AccessKeyID, b.SecretAccessKey
		url := startPartly(t, c)
		token, publisher := credentials(t, db.ServiceURL, url)
		if _, err := publisher.PutPointer(t.Context(), "p", types.PutPointerRequest{}); err != nil {
			t.Fatal(err)
		}
		sources := make([]client.Source, files)
		for i := range sources {
			content := bytes.Repeat(fmt.Appendf(nil, "%07d\n", i), size/8)
			sources[i] = client.Source{Path: fmt.Sprintf("f%03d", i), Digest: artifacts.DigestOf(content).String(), Size: size,
				Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }}
		}
		ctx, cutOff := context.WithCancel(t.Context())
		defer cutOff()
		first, err := client.New(url, token, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		cut := append([]client.Source(nil), sources...)
		cut[cutAt].Open = func() (io.ReadCloser, error) {
			cutOff()
			return nil, context.Canceled
		}
		wait := client.AcquireOptions{Holder: "worker", TTL: 20 * time.Second, Wait: 2 * time.Minute}
		if _, err := first.PublishFiles(ctx, "p", cut, wait, client.Publication{}, nil); err == nil {
			t.Fatal("it published")
		}
		conn, stored := db.Connect(t), int64(0)
		for deadline := time.Now().Add(time.Minute); stored == 0; time.Sleep(20 * time.Millisecond) {
			if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM artifactd.artifact WHERE stored_at IS NOT NULL`).Scan(&stored); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatal("nothing of what came whole is stored")
			}
		}
		if stored > cutAt {
			t.Fatalf("%d files are stored, and %d were sent", stored, cutAt)
		}
		published, err := publisher.PublishFiles(t.Context(), "p", sources, wait, client.Publication{FileCount: files}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if published.UploadedFiles != files-stored || published.UploadedBytes != (files-stored)*size || published.AdoptedBytes != stored*size {
			t.Errorf("%d of %d files were stored, and then it moved %+v", stored, files, published.Moved)
		}
	})
}
