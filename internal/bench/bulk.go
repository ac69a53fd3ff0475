package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/client"
)

const mebibyte = 1 << 20

// flipsPerRound is how many generations are published in one round of flip.
const flipsPerRound = 3

// client is the one that the command line uses, as it uses it.
func (s *stack) client(ctx context.Context, pointer string) (*client.Client, error) {
	c, err := client.New(s.api.base, s.token, client.Options{UserAgent: "artifactd-bench"})
	if err != nil {
		return nil, err
	}
	return c, s.api.createPointer(ctx, pointer)
}

// rawStore is the peer's way to the store: through the service's driver, under other keys.
func (s *stack) rawStore(ctx context.Context) (*s3store.Store, error) {
	return s3store.New(ctx, s3store.Config{
		Endpoint: s.store.Endpoint, Region: s.store.Region, Bucket: s.store.Bucket, Prefix: rawPrefix,
		AccessKeyID: s.store.AccessKeyID, SecretAccessKey: s.store.SecretAccessKey, PathStyle: s.store.PathStyle,
	})
}

// whole measures one piece of work that consists of n equal operations, of which none can be timed
// alone: each counts with the mean time.
func whole(n int64, work func() error) (sample, error) {
	start := time.Now()
	err := work()
	s := sample{operations: n, elapsed: time.Since(start), latency: newHistogram()}
	if err == nil {
		err = s.latency.RecordValues(max(1, s.elapsed.Microseconds()/n), n)
	}
	return s, err
}

// largeFile is a file that is never the same twice.
type largeFile struct {
	name  string
	size  int64
	count uint64
}

func newLargeFile(dir string, size int64) (_ *largeFile, err error) {
	f, err := os.Create(filepath.Join(dir, filePath))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	chunk, source := make([]byte, mebibyte), rand.NewPCG(1, uint64(size))
	for range size / mebibyte {
		for i := 0; i < len(chunk); i += 8 {
			binary.LittleEndian.PutUint64(chunk[i:], source.Uint64())
		}
		if _, err := f.Write(chunk); err != nil {
			return nil, err
		}
	}
	return &largeFile{name: f.Name(), size: size}, nil
}

// renew changes the file's first bytes.
func (l *largeFile) renew() (err error) {
	f, err := os.OpenFile(l.name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	l.count++
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, l.count), 0)
	return err
}

// publishLarge is what `artifactd publish NAME FILE` does.
func publishLarge(ctx context.Context, c *client.Client, pointer string, l *largeFile) (string, error) {
	src, err := client.FileSource(ctx, l.name, filePath, nil)
	if err != nil {
		return "", err
	}
	published, err := c.PublishFiles(ctx, pointer, []client.Source{src}, client.AcquireOptions{Holder: "bench"}, client.Publication{}, nil)
	if err == nil && published.UploadedBytes != l.size {
		err = fmt.Errorf("%d bytes of %d were sent", published.UploadedBytes, l.size)
	}
	return src.Digest, err
}

// prepareLarge compares a publish of one large file, hashing and proof included, with the SDK's own
// upload of the same file, as it comes but for credentials and address.
func prepareLarge(ctx context.Context, s *stack) (ours, peer side, err error) {
	const pointer = "bench.large"
	c, err := s.client(ctx, pointer)
	if err != nil {
		return nil, nil, err
	}
	file, err := newLargeFile(s.dir, s.largeSize)
	if err != nil {
		return nil, nil, err
	}
	ours = func(ctx context.Context, _ time.Duration) (sample, error) {
		if err := file.renew(); err != nil {
			return sample{}, err
		}
		return whole(file.size/mebibyte, func() error {
			_, err := publishLarge(ctx, c, pointer, file)
			return err
		})
	}
	manager := transfermanager.New(s.sdk())
	peer = func(ctx context.Context, _ time.Duration) (sample, error) {
		if err := file.renew(); err != nil {
			return sample{}, err
		}
		key := fmt.Sprintf("%slarge-%d", rawPrefix, file.count)
		return whole(file.size/mebibyte, func() (err error) {
			f, err := os.Open(file.name)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			_, err = manager.UploadObject(ctx, &transfermanager.UploadObjectInput{Bucket: aws.String(bucket), Key: &key, Body: f})
			return err
		})
	}
	return s.withCPU("large", "artifactd", s.withMemory("large", ours)), s.withCPU("large", "the SDK", peer), nil
}

// prepareRead compares reading a large file through the service with the GET of the same object.
func prepareRead(ctx context.Context, s *stack) (ours, peer side, err error) {
	const pointer = "bench.read"
	c, err := s.client(ctx, pointer)
	if err != nil {
		return nil, nil, err
	}
	file, err := newLargeFile(s.dir, s.largeSize)
	if err != nil {
		return nil, nil, err
	}
	digest, err := publishLarge(ctx, c, pointer, file)
	if err != nil {
		return nil, nil, err
	}
	version, err := c.Resolve(ctx, pointer)
	if err != nil {
		return nil, nil, err
	}
	throughService, err := http.NewRequestWithContext(ctx, http.MethodGet, s.api.base+version.Files[0].Url+"?via=proxy", nil)
	if err != nil {
		return nil, nil, err
	}
	throughService.Header.Set("Authorization", s.api.bearer)
	fromStore, err := s.signedGet(ctx, digest)
	if err != nil {
		return nil, nil, err
	}
	ours, peer = reading(throughService, file.size), reading(fromStore, file.size)
	return s.withCPU("read", "artifactd", s.withMemory("read", ours)), s.withCPU("read", "the store", peer), nil
}

// signedGet finds the object of a digest, of which there is one, and signs a GET of it.
func (s *stack) signedGet(ctx context.Context, digest string) (*http.Request, error) {
	store, err := s.rawStore(ctx)
	if err != nil {
		return nil, err
	}
	d, err := artifacts.ParseDigest(digest)
	if err != nil {
		return nil, err
	}
	for o, err := range store.List(ctx, artifacts.Layout{Prefix: s.store.Prefix}.ArtifactsPrefix()+d.Hex()+"/") {
		if err != nil {
			return nil, err
		}
		signed, err := store.SignGet(ctx, o.Key, artifacts.ReadDisposition{}, time.Hour)
		if err != nil {
			return nil, err
		}
		return http.NewRequestWithContext(ctx, signed.Method, signed.URL, nil)
	}
	return nil, fmt.Errorf("the bucket has no object of %s", digest)
}

// reading has a body read and thrown away.
func reading(req *http.Request, size int64) side {
	transport := newTransport(1)
	return func(ctx context.Context, _ time.Duration) (sample, error) {
		return whole(size/mebibyte, func() error {
			resp, err := transport.RoundTrip(req.Clone(ctx))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			n, err := io.Copy(io.Discard, resp.Body)
			if err == nil && (resp.StatusCode != http.StatusOK || n != size) {
				err = fmt.Errorf("GET %s: status %d and %d bytes of %d", req.URL.Path, resp.StatusCode, n, size)
			}
			return err
		})
	}
}

// manyPointer shows the version of many files, whose first round flip goes on with.
const manyPointer = "bench.many"

// smallFiles are n files of bytes that nothing else has.
func smallFiles(n int, round uint64) []client.Source {
	sources := make([]client.Source, n)
	for i := range sources {
		content := make([]byte, smallSize)
		binary.LittleEndian.PutUint64(content, round)
		binary.LittleEndian.PutUint64(content[8:], uint64(i))
		sources[i] = memorySource(fmt.Sprintf("d%03d/f%05d", i/100, i), content)
	}
	return sources
}

func memorySource(path string, content []byte) client.Source {
	return client.Source{
		Path: path, Digest: artifacts.DigestOf(content).String(), Size: int64(len(content)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
	}
}

// prepareMany compares a publish of many small files with the SDK's PUTs of the same number of objects
// that are made the same way: with a digest that the store checks, and under keys that must be free.
// As many at once as the client has files under way.
func prepareMany(ctx context.Context, s *stack) (ours, peer side, err error) {
	const pointer = manyPointer
	c, err := s.client(ctx, pointer)
	if err != nil {
		return nil, nil, err
	}
	sdk := s.sdk()
	var rounds atomic.Uint64
	ours = func(ctx context.Context, _ time.Duration) (sample, error) {
		files := smallFiles(s.files, rounds.Add(1))
		return whole(int64(len(files)), func() error {
			_, err := c.PublishFiles(ctx, pointer, files, client.AcquireOptions{Holder: "bench"}, client.Publication{FileCount: len(files)}, nil)
			return err
		})
	}
	peer = func(ctx context.Context, _ time.Duration) (sample, error) {
		files := smallFiles(s.files, rounds.Add(1))
		return whole(int64(len(files)), func() error {
			puts, ctx := errgroup.WithContext(ctx)
			var next atomic.Int64
			for range client.DefaultParallel {
				puts.Go(func() error {
					for i := next.Add(1) - 1; i < int64(len(files)); i = next.Add(1) - 1 {
						if err := putSDK(ctx, sdk, pointer, files[i]); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return puts.Wait()
		})
	}
	// Where new objects come to lie on a fresh disk costs whoever is the first as much as everything else.
	for _, run := range []side{ours, peer} {
		if _, err := run(ctx, 0); err != nil {
			return nil, nil, err
		}
	}
	return s.withCPU("many", "artifactd", ours), s.withCPU("many", "the SDK", peer), nil
}

// sdk is the SDK as it comes but for credentials and address, with a connection for each of its calls.
func (s *stack) sdk() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &s.store.Endpoint, Region: s.store.Region, UsePathStyle: s.store.PathStyle,
		Credentials: credentials.NewStaticCredentialsProvider(s.store.AccessKeyID, s.store.SecretAccessKey, ""),
		HTTPClient: awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost = 2 * client.DefaultParallel
		}),
	})
}

func putSDK(ctx context.Context, sdk *s3.Client, pointer string, f client.Source) (err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	digest, err := artifacts.ParseDigest(f.Digest)
	if err != nil {
		return err
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, err = sdk.PutObject(ctx, &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String(artifacts.Layout{Prefix: rawPrefix}.ArtifactKey(digest, id)),
		Body: bytes.NewReader(content), ContentType: aws.String("application/octet-stream"), IfNoneMatch: aws.String("*"),
		ChecksumSHA256: aws.String(digest.Base64()), Metadata: map[string]string{"pointer": pointer, "token": "1.1"},
	})
	return err
}

// prepareFlip compares how long readers' view takes to change when the new version has many files
// and when it has one. What depends on the number of files (staging, sealing) is done before.
func prepareFlip(ctx context.Context, s *stack) (ours, peer side, err error) {
	if ours, err = flips(ctx, s, manyPointer, s.files); err != nil {
		return nil, nil, err
	}
	peer, err = flips(ctx, s, "bench.flip.one", 1)
	return ours, peer, err
}

// flips publishes the same n files over and over, so that their bytes are there already.
func flips(ctx context.Context, s *stack, pointer string, n int) (side, error) {
	c, err := s.client(ctx, pointer)
	if err != nil {
		return nil, err
	}
	files := smallFiles(n, 1)
	if _, err := c.PublishFiles(ctx, pointer, files, client.AcquireOptions{Holder: "bench"}, client.Publication{}, nil); err != nil {
		return nil, err
	}
	return func(ctx context.Context, _ time.Duration) (sample, error) {
		all := sample{latency: newHistogram()}
		for range flipsPerRound {
			took, err := flip(ctx, s, c, pointer, files)
			if err == nil {
				err = all.latency.RecordValue(took.Microseconds())
			}
			if err != nil {
				return all, err
			}
			all.operations++
			all.elapsed += took
			all.calls++
		}
		return all, nil
	}, nil
}

// flip prepares one generation and times the request that publishes it, once the service has nothing
// else to do: records of what was published before are written by then. A publish that names a wrong
// number of files is refused after its manifest was sealed, and the lease lives on.
func flip(ctx context.Context, s *stack, c *client.Client, pointer string, files []client.Source) (time.Duration, error) {
	lease, err := c.Acquire(ctx, pointer, client.AcquireOptions{Holder: "bench", TTL: time.Hour})
	if err != nil {
		return 0, err
	}
	if _, err := c.UploadAll(ctx, lease, files, nil); err != nil {
		return 0, err
	}
	_, err = c.Publish(ctx, lease, client.Publication{FileCount: len(files) + 1})
	var refused *client.Problem
	if !errors.As(err, &refused) || refused.Reason != "incomplete" {
		return 0, fmt.Errorf("a publish of too many files was to be refused as incomplete, and gave %w", err)
	}
	if err := s.recorded(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	_, err = c.Publish(ctx, lease, client.Publication{FileCount: len(files)})
	return time.Since(start), err
}
