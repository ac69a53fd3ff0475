package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/client"
)

// A program works under a lease that is kept for it, and publishes what it made.
func ExampleClient_Keep() {
	ctx := context.Background()
	c, err := client.New(os.Getenv("ARTIFACTD_URL"), os.Getenv("ARTIFACTD_TOKEN"), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	lease, err := c.Acquire(ctx, "acme.reports.daily", client.AcquireOptions{Holder: "report-builder"})
	if err != nil {
		log.Fatal(err) // client.ErrLeaseHeld: somebody else is at work
	}
	keeper := c.Keep(ctx, lease) // renews in the background
	defer func() { _ = keeper.Stop() }()

	// The work stops with the keeper's context, which ends before the lease can.
	report, err := build(keeper.Context())
	if err != nil {
		log.Fatal(errors.Join(err, c.Release(ctx, keeper.Lease())))
	}
	defer os.RemoveAll(filepath.Dir(report))
	file, err := client.FileSource(keeper.Context(), report, "report.txt", nil)
	if err != nil {
		log.Fatal(err)
	}
	published, err := c.PublishKept(ctx, keeper, []client.Source{file}, client.Publication{}, nil)
	if err != nil {
		log.Fatal(err) // client.ErrPublishRefused: nothing was published, for good
	}
	fmt.Println("published", published.Version)
	// Output: published 1.1
}

// build stands for what a program does for long.
func build(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", context.Cause(ctx)
	}
	dir, err := os.MkdirTemp("", "report-")
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "report.txt")
	return name, os.WriteFile(name, []byte("all is well\n"), 0o600)
}

// Resolve says what is current at this moment; the files of that version are read by their pinned URLs,
// and what was read is verified.
func ExampleClient_Download() {
	ctx := context.Background()
	c, err := client.New(os.Getenv("ARTIFACTD_URL"), os.Getenv("ARTIFACTD_TOKEN"), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	version, err := c.Resolve(ctx, "acme.greeting")
	if err != nil {
		log.Fatal(err) // client.ErrNothingPublished, client.ErrPointerNotFound, …
	}
	for _, file := range version.Files {
		var content bytes.Buffer
		if err := c.Download(ctx, file, &content, nil); err != nil {
			log.Fatal(err) // client.ErrDigestMismatch: use nothing of what was written
		}
		fmt.Printf("%s %s: %s", version.Version, file.Path, content.String())
	}
	// Output: 1.1 hello.txt: Hello, readers!
}

// Watch gives the current version and then every newer one. A program that remembers the last version
// that it has dealt with goes on after it.
func ExampleClient_Watch() {
	c, err := client.New(os.Getenv("ARTIFACTD_URL"), os.Getenv("ARTIFACTD_TOKEN"), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	last := "" // from where this program keeps it
	for version, err := range c.Watch(context.Background(), "acme.greeting", last) {
		if err != nil {
			log.Fatal(err) // the service refuses; while it is only down, it is asked again
		}
		fmt.Println(version.Version, "by", version.Holder)
		last = version.Version
		break // a real program goes on
	}
	// Output: 1.1 by example
}

// A program that was killed while it published does not know whether that happened. It wrote the
// operation's id down before, and settles it: what is answered then is final.
func ExampleClient_Settle() {
	ctx := context.Background()
	c, err := client.New(os.Getenv("ARTIFACTD_URL"), os.Getenv("ARTIFACTD_TOKEN"), client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	id := uuid.New() // read back from where it was written down
	outcome, err := c.Settle(ctx, id, "acme.greeting")
	if err != nil {
		log.Fatal(err)
	}
	switch outcome.Outcome {
	case "published":
		fmt.Println("it happened")
	case "aborted":
		fmt.Println("it did not happen, and never will")
	default:
		fmt.Println("it was refused")
	}
	// Output: it did not happen, and never will
}
