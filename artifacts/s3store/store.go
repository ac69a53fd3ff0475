package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
)

// Config says which bucket to use and how to reach it.
type Config struct {
	// Endpoint is the store's base URL. Empty: Amazon S3 itself.
	Endpoint string
	// PublicEndpoint is the base URL under which others reach the store; presigned URLs are made
	// for it. Empty: Endpoint.
	PublicEndpoint string
	// Region is the bucket's region; empty means us-east-1, which most other stores expect.
	Region string
	// Bucket is the bucket's name.
	Bucket string
	// AccessKeyID, SecretAccessKey and SessionToken are the credentials. All empty: the SDK's
	// usual sources (environment, shared files, instance role).
	AccessKeyID, SecretAccessKey, SessionToken string
	// PathStyle puts the bucket in the path instead of the host name. Most stores other than
	// Amazon's need it.
	PathStyle bool
	// Prefix is the installation's key prefix, empty or ending in "/". Only the objects of
	// EnforcesSignedDigest's probe are named by it; all other calls are given whole keys.
	Prefix string
	// ResponseTimeout bounds the silence of the store: from the last byte of a request to the
	// first of the answer, and between two bytes of either. 0 means 60 s.
	ResponseTimeout time.Duration
	// MaxAttempts bounds the attempts at one request; 0 means 6.
	MaxAttempts int
}

func (c *Config) validate() error {
	if c.Bucket == "" {
		return errors.New("s3: the bucket's name is missing")
	}
	for name, v := range map[string]string{"endpoint": c.Endpoint, "public endpoint": c.PublicEndpoint} {
		if v == "" {
			continue
		}
		u, err := url.Parse(v)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return fmt.Errorf("s3: the %s %q must be a URL such as https://s3.example.com", name, v)
		}
	}
	if (c.AccessKeyID == "") != (c.SecretAccessKey == "") {
		return errors.New("s3: the access key id and the secret access key are set together or not at all")
	}
	if c.Prefix != "" && c.Prefix[len(c.Prefix)-1] != '/' {
		return fmt.Errorf("s3: the prefix %q must end in \"/\"", c.Prefix)
	}
	if c.Region == "" {
		c.Region = "us-east-1"
	}
	if c.ResponseTimeout == 0 {
		c.ResponseTimeout = time.Minute
	}
	if c.MaxAttempts == 0 {
		c.MaxAttempts = 6
	}
	return nil
}

// maxBackoff bounds the pause between two attempts: a caller waits for all of them.
const maxBackoff = 5 * time.Second

// Store is an [artifacts.Store] in one bucket.
type Store struct {
	cfg    Config
	client *s3.Client
	// signer presigns for others, with the public endpoint; probeSigner for this process.
	signer, probeSigner *s3.PresignClient
	credentials         aws.CredentialsProvider
	transport           *transport

	// noBatchDelete remembers that the store refuses DeleteObjects.
	noBatchDelete atomic.Bool
	versioning    versioningState
	probe         probeState
}

// Memories of what the store was asked once.
type (
	versioningState struct {
		sync.Mutex
		versioned bool
		until     time.Time // the answer is asked for again after this
	}
	probeState struct {
		sync.Mutex
		known, enforced bool
	}
)

var _ artifacts.Store = (*Store)(nil)

// New makes a Store. It does not talk to the store yet; with credentials given it does not talk
// to anything.
func New(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	tr := newTransport(cfg.ResponseTimeout)
	base, err := awsConfig(ctx, cfg, tr)
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(base, options(cfg, cfg.Endpoint))
	public := client
	if cfg.PublicEndpoint != "" {
		public = s3.NewFromConfig(base, options(cfg, cfg.PublicEndpoint))
	}
	return &Store{
		cfg: cfg, client: client, transport: tr, credentials: base.Credentials,
		signer: newSigner(public), probeSigner: newSigner(client),
	}, nil
}

// Close drops the idle connections to the store.
func (s *Store) Close() { s.transport.CloseIdleConnections() }

func awsConfig(ctx context.Context, cfg Config, tr *transport) (aws.Config, error) {
	retryer := func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts = cfg.MaxAttempts
			o.MaxBackoff = maxBackoff
			// The SDK's token bucket is shared by all requests: one bad minute would leave none
			// for the good ones after it.
			o.RateLimiter = ratelimit.None
			o.Retryables = append([]retry.IsErrorRetryable{neverRetryBodies{}}, o.Retryables...)
		})
	}
	if cfg.AccessKeyID != "" {
		static := credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey, cfg.SessionToken)
		return aws.Config{
			Region: cfg.Region, Credentials: static, HTTPClient: tr.client(), Retryer: retryer,
		}, nil
	}
	c, err := config.LoadDefaultConfig(ctx,
		config.WithRegion(cfg.Region), config.WithHTTPClient(tr.client()), config.WithRetryer(retryer))
	if err != nil {
		return aws.Config{}, fmt.Errorf("s3: find credentials: %w", err)
	}
	return c, nil
}

func options(cfg Config, endpoint string) func(*s3.Options) {
	return func(o *s3.Options) {
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
		o.UsePathStyle = cfg.PathStyle
		// Every PUT carries its SHA-256. The SDK's own choice, CRC32 in a trailer, is refused by
		// several stores.
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	}
}

// EnsureBucket makes the bucket if it is missing: for development and tests. In production the
// bucket is the operator's.
func (s *Store) EnsureBucket(ctx context.Context) error {
	_, err := s.client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &s.cfg.Bucket})
	if err == nil {
		return nil
	}
	if err = s.translate(ctx, "look for the bucket", s.cfg.Bucket, err); !errors.Is(err, artifacts.ErrNotFound) {
		return err
	}
	in := &s3.CreateBucketInput{Bucket: &s.cfg.Bucket}
	if s.cfg.Endpoint == "" && s.cfg.Region != "us-east-1" {
		in.CreateBucketConfiguration = &types.CreateBucketConfiguration{
			LocationConstraint: types.BucketLocationConstraint(s.cfg.Region),
		}
	}
	_, err = s.client.CreateBucket(ctx, in)
	var mine *types.BucketAlreadyOwnedByYou
	if err == nil || errors.As(err, &mine) {
		return nil
	}
	return s.translate(ctx, "create the bucket", s.cfg.Bucket, err)
}
