package miniostore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Config says which bucket to use and how to reach it.
type Config = bucket.Config

// amazon is the endpoint of Amazon S3; minio-go goes on to that of the region.
const amazon = "https://s3.amazonaws.com"

// Store is an [artifacts.Store] in one bucket.
type Store struct {
	cfg  Config
	core minio.Core
	// public presigns for others, with the public endpoint.
	public      *minio.Client
	credentials *credentials.Credentials
	transport   *bucket.Transport
	// local is the same store, except that it presigns for this process.
	local *Store

	deleter bucket.Deleter
	probe   bucket.DigestProbe
}

var _ artifacts.Store = (*Store)(nil)

// driver is what package bucket needs: the store's requests, one a method.
type driver struct{ *Store }

// New makes a Store. It does not talk to the store yet, and looks for credentials when they are
// first needed.
func New(_ context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tr, err := bucket.NewTransport(cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, credentials: newCredentials(cfg), transport: tr}
	client, err := s.newClient(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	s.core, s.public = minio.Core{Client: client}, client
	s.local = &Store{cfg: cfg, core: s.core, public: client, credentials: s.credentials, transport: tr}
	if cfg.PublicEndpoint != "" {
		if s.public, err = s.newClient(cfg.PublicEndpoint); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// newClient is a client for one endpoint.
func (s *Store) newClient(endpoint string) (*minio.Client, error) {
	if endpoint == "" {
		endpoint = amazon
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("s3: read the endpoint: %w", err)
	}
	client, err := minio.New(u.Host+strings.TrimSuffix(u.Path, "/"), &minio.Options{
		Creds:  s.credentials,
		Secure: u.Scheme == "https",
		// With a region the client need not ask for it.
		Region:    s.cfg.Region,
		Transport: guard{s.transport},
		// Otherwise it would add a CRC32C in a trailer, which several stores refuse.
		TrailingHeaders:    false,
		MaxRetries:         s.cfg.MaxAttempts,
		BucketLookupViaURL: s.lookup,
	})
	if err != nil {
		return nil, fmt.Errorf("s3: the endpoint %q cannot be used: %w: give scheme and host only", endpoint, err)
	}
	return client, nil
}

// lookup puts the bucket in the path or in the host name. A certificate for "*.host" does not
// cover a bucket with a dot in its name.
func (s *Store) lookup(u url.URL, name string) minio.BucketLookupType {
	if s.cfg.PathStyle || u.Scheme == "https" && strings.Contains(name, ".") {
		return minio.BucketLookupPath
	}
	return minio.BucketLookupDNS
}

// Close drops the idle connections to the store.
func (s *Store) Close() { s.transport.CloseIdleConnections() }

// newCredentials are the configured credentials or, without, the SDK's usual sources.
func newCredentials(cfg Config) *credentials.Credentials {
	if cfg.AccessKeyID != "" {
		return credentials.NewStaticV4(cfg.AccessKeyID, cfg.SecretAccessKey, cfg.SessionToken)
	}
	return credentials.New(&chain{credentials.Chain{Providers: []credentials.Provider{
		&credentials.EnvAWS{}, &credentials.EnvMinio{},
		&credentials.FileAWSCredentials{}, &credentials.FileMinioClient{},
		&credentials.IAM{},
	}}})
}

// chain is minio-go's chain of sources, except that finding nothing is an error.
type chain struct{ credentials.Chain }

var errNoCredentials = errors.New("no credentials for the store were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
	"give a shared credentials file, or configure an access key")

func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	return found(c.Chain.RetrieveWithCredContext(cc))
}

func (c *chain) Retrieve() (credentials.Value, error) { return found(c.Chain.Retrieve()) }

func found(v credentials.Value, err error) (credentials.Value, error) {
	if err == nil && (v.AccessKeyID == "" || v.SignerType.IsAnonymous()) {
		return credentials.Value{}, errNoCredentials
	}
	return v, err
}

// EnsureBucket makes the bucket if it is missing: for development and tests. In production the
// bucket is the operator's.
func (s *Store) EnsureBucket(ctx context.Context) error {
	if exists, err := (driver{s}).BucketExists(ctx); err != nil || exists {
		return err
	}
	err := s.core.MakeBucket(ctx, s.cfg.Bucket, minio.MakeBucketOptions{Region: s.cfg.Region})
	var resp minio.ErrorResponse
	if errors.As(err, &resp) && resp.StatusCode == http.StatusConflict && resp.Code == minio.BucketAlreadyOwnedByYou {
		return nil
	}
	return s.translate(ctx, "create the bucket", s.cfg.Bucket, err)
}
