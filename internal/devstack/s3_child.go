//go:build !nodevs3

package devstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// hasS3Child: the S3 server is part of this build.
const hasS3Child = true

// s3Connections bounds what a development store serves at once.
const s3Connections = 4096

// runS3Child serves S3 until the parent is gone.
func runS3Child(stdin io.Reader) error {
	var c s3ChildConfig
	end, err := receiveConfig(stdin, &c)
	if err != nil {
		return err
	}
	store, sidecar, err := metadataStore(c)
	if err != nil {
		return err
	}
	be, err := posix.New(c.Objects, store, posix.PosixOpts{VersioningDir: c.Versions, SideCarDir: sidecar})
	if err != nil {
		return fmt.Errorf("open the object folder: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-end
		cancel()
		// Requests in flight may hold the server up; nobody is left to wait for them.
		time.Sleep(childGrace)
		os.Exit(1)
	}()
	return embedgw.RunVersityGW(ctx, be, &embedgw.Config{
		RootUserAccess: c.AccessKeyID,
		RootUserSecret: c.SecretAccessKey,
		Region:         c.Region,
		Ports:          []string{c.Listen},
		MaxConnections: s3Connections,
		MaxRequests:    s3Connections,
		// The limit of S3 itself.
		MultipartMaxParts: 10_000,
		HealthPath:        c.HealthPath,
		KeepAlive:         true,
		Quiet:             true,
	})
}

// metadataStore keeps object metadata in extended attributes, where they are written together
// with the object, or in a folder beside it when the file system has none. A folder that was
// begun one way goes on that way.
func metadataStore(c s3ChildConfig) (meta.MetadataStorer, string, error) {
	_, err := os.Stat(c.Sidecar)
	if errors.Is(err, fs.ErrNotExist) {
		if (meta.XattrMeta{}).Test(c.Objects) == nil {
			return meta.XattrMeta{}, "", nil
		}
		err = makeFolder(c.Sidecar)
	}
	if err != nil {
		return nil, "", err
	}
	store, err := meta.NewSideCar(c.Sidecar)
	return store, c.Sidecar, err
}
