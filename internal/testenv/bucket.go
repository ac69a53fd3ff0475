package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/internal/devstack"
)

// Server names an S3 server that tests run against.
type Server string

// The servers. They share a protocol and little else.
const (
	Versitygw Server = "versitygw"
	MinIO     Server = "minio"
)

// EachServer runs a test against every S3 server.
func EachServer(t *testing.T, test func(*testing.T, Server)) {
	t.Helper()
	for _, server := range []Server{Versitygw, MinIO} {
		t.Run(string(server), func(t *testing.T) { test(t, server) })
	}
}

// BucketConfig is a bucket and how to reach it, in path style.
type BucketConfig struct {
	Server                       Server
	Endpoint, Region, Name       string
	AccessKeyID, SecretAccessKey string
}

// Client is a plain client of the SDK, for a test that needs more than a Store offers.
func (b BucketConfig) Client() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &b.Endpoint, Region: b.Region, UsePathStyle: true,
		Credentials:                credentials.NewStaticCredentialsProvider(b.AccessKeyID, b.SecretAccessKey, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	})
}

// BucketOption asks for a bucket of a special kind.
type BucketOption func(*bucketKind)

type bucketKind struct{ versioned, locked bool }

// Versioned asks for a bucket that keeps old versions.
func Versioned() BucketOption { return func(k *bucketKind) { k.versioned = true } }

// ObjectLock asks for a versioned bucket whose objects can be retained.
func ObjectLock() BucketOption {
	return func(k *bucketKind) { k.versioned, k.locked = true, true }
}

// Bucket makes a fresh bucket for the test, on a server that all tests of the process share. It
// goes when the process ends.
func Bucket(t testing.TB, server Server, options ...BucketOption) BucketConfig {
	t.Helper()
	known, ok := process.servers[server]
	if !ok {
		t.Fatalf("testenv: no S3 server is called %q", server)
	}
	running := known.get(t, func(ctx context.Context) (*s3Server, error) { return startS3(ctx, server) })
	b := running.config
	b.Name = randomName("test-")
	var kind bucketKind
	for _, o := range options {
		o(&kind)
	}
	if err := makeBucket(t.Context(), b, kind); err != nil {
		t.Fatalf("testenv: make a bucket on %s: %v", server, err)
	}
	return b
}

func makeBucket(ctx context.Context, b BucketConfig, kind bucketKind) error {
	client := b.Client()
	in := &s3.CreateBucketInput{Bucket: &b.Name}
	if kind.locked {
		in.ObjectLockEnabledForBucket = &kind.locked
	}
	if _, err := client.CreateBucket(ctx, in); err != nil {
		return err
	}
	if !kind.versioned {
		return nil
	}
	_, err := client.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{
		Bucket:                  &b.Name,
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	return err
}

// s3Server is a running server; its config has no bucket's name.
type s3Server struct{ config BucketConfig }

func startS3(ctx context.Context, server Server) (*s3Server, error) {
	dir, err := process.folder(string(server))
	if err != nil {
		return nil, err
	}
	if server == MinIO {
		return startMinIO(ctx, dir)
	}
	s, err := devstack.StartS3(ctx, devstack.S3Options{DataDir: dir})
	if err != nil {
		return nil, err
	}
	process.atExit(s.Stop)
	return &s3Server{config: BucketConfig{
		Server: server, Endpoint: s.Endpoint(), Region: s.Region(),
		AccessKeyID: s.AccessKeyID(), SecretAccessKey: s.SecretAccessKey(),
	}}, nil
}

// S3 starts a versitygw for this test alone, one that it may kill and start again with the same
// options. DataDir is filled in when it is empty. It is stopped when the test ends.
func S3(t testing.TB, o devstack.S3Options) *devstack.S3 {
	t.Helper()
	if o.DataDir == "" {
		dir, err := process.folder("versitygw")
		if err != nil {
			t.Fatal(err)
		}
		o.DataDir = dir
	}
	s, err := devstack.StartS3(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("testenv: stop the test's S3 server: %v", err)
		}
	})
	return s
}

const (
	// minioTries bounds how often other free ports are tried, when one was taken in between.
	minioTries   = 5
	minioTimeout = 5 * time.Minute
)

func startMinIO(ctx context.Context, dir string) (*s3Server, error) {
	program, err := findMinIO()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, minioTimeout)
	defer cancel()
	for try := 1; ; try++ {
		s, err := tryMinIO(ctx, program, dir)
		if err == nil || !errors.Is(err, devstack.ErrEndedEarly) || try == minioTries {
			return s, err
		}
	}
}

func tryMinIO(ctx context.Context, program, dir string) (*s3Server, error) {
	address, err := devstack.FreeAddress("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	console, err := devstack.FreeAddress("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := BucketConfig{
		Server: MinIO, Endpoint: "http://" + address, Region: "us-east-1",
		AccessKeyID: "minio-test", SecretAccessKey: randomName("secret-"),
	}
	log := filepath.Join(dir, "minio.log")
	p, err := devstack.StartProcess(ctx, devstack.ProcessSpec{
		Path: program, Dir: dir, Log: log, StopSignal: syscall.SIGTERM,
		Args: []string{"server", "--quiet", "--address", address, "--console-address", console, filepath.Join(dir, "data")},
		Env: []string{
			"PATH=" + os.Getenv("PATH"),
			"HOME=" + dir, // it keeps certificates there
			"MINIO_ROOT_USER=" + b.AccessKeyID, "MINIO_ROOT_PASSWORD=" + b.SecretAccessKey,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "CI=true",
		},
	})
	if err != nil {
		return nil, err
	}
	if err := p.Await(ctx, devstack.Answers(b.Endpoint+"/minio/health/cluster")); err != nil {
		p.Kill()
		<-p.Done()
		text, _ := os.ReadFile(log) // a missing log adds nothing to the error
		return nil, fmt.Errorf("testenv: MinIO did not start: %w; its log:\n%s", err, text)
	}
	process.atExit(p.Stop)
	return &s3Server{config: b}, nil
}

// findMinIO finds the MinIO server: in the checkout, where `make minio` puts it, by
// ARTIFACTD_TEST_MINIO, or on PATH.
func findMinIO() (string, error) {
	if root, err := moduleRoot(); err == nil {
		program := filepath.Join(root, ".cache", "bin", "minio")
		if fi, err := os.Stat(program); err == nil && !fi.IsDir() {
			return program, nil
		}
	}
	if program := os.Getenv("ARTIFACTD_TEST_MINIO"); program != "" {
		return filepath.Abs(program)
	}
	if program, err := exec.LookPath("minio"); err == nil {
		return filepath.Abs(program)
	}
	return "", errors.New("testenv: no MinIO server to test against: run `make minio`, which installs it into .cache/bin, " +
		"or name one in ARTIFACTD_TEST_MINIO")
}

// moduleRoot is the folder with go.mod above the test's working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}
