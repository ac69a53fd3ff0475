package s3store

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// Config says which bucket to use and how to reach it.
type Config = bucket.Config

// maxBackoff bounds the pause between two attempts: a caller waits for all of them.
const maxBackoff = 5 * time.Second

// Store is an [artifacts.Store] in one bucket.
type Store struct {
	cfg    Config
	client *s3.Client
	// signer presigns for others, with the public endpoint.
	signer      *s3.PresignClient
	credentials aws.CredentialsProvider
	transport   *bucket.Transport
	// local is the same store, except that it presigns for this process.
	local *Store

	deleter bucket.Deleter
	probe   bucket.DigestProbe
}

var _ artifacts.Store = (*Store)(nil)

// driver is what package bucket needs: the store's requests, one a method.
type driver struct{ *Store }

// New makes a Store. It does not talk to the store yet; with credentials given it does not talk
// to anything.
func New(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tr, err := bucket.NewTransport(cfg)
	if err != nil {
		return nil, err
	}
	base, err := awsConfig(ctx, cfg, tr.Client())
	if err != nil {
		return nil, err
	}
	client := s3.NewFromConfig(base, options(cfg, cfg.Endpoint))
	public := client
	if cfg.PublicEndpoint != "" {
		public = s3.NewFromConfig(base, options(cfg, cfg.PublicEndpoint))
	}
	local := &Store{cfg: cfg, client: client, transport: tr, credentials: base.Credentials, signer: s3.NewPresignClient(client)}
	return &Store{
		cfg: cfg, client: client, transport: tr, credentials: base.Credentials, signer: s3.NewPresignClient(public), local: local,
	}, nil
}

// Close drops the idle connections to the store.
func (s *Store) Close() { s.transport.CloseIdleConnections() }

func awsConfig(ctx context.Context, cfg Config, client *http.Client) (aws.Config, error) {
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
			Region: cfg.Region, Credentials: static, HTTPClient: client, Retryer: retryer,
		}, nil
	}
	c, err := config.LoadDefaultConfig(ctx,
		config.WithRegion(cfg.Region), config.WithHTTPClient(client), config.WithRetryer(retryer))
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
	if exists, err := (driver{s}).BucketExists(ctx); err != nil || exists {
		return err
	}
	in := &s3.CreateBucketInput{Bucket: &s.cfg.Bucket}
	if s.cfg.Endpoint == "" && s.cfg.Region != "us-east-1" {
		in.CreateBucketConfiguration = &types.CreateBucketConfiguration{
			LocationConstraint: types.BucketLocationConstraint(s.cfg.Region),
		}
	}
	_, err := s.client.CreateBucket(ctx, in)
	var mine *types.BucketAlreadyOwnedByYou
	if err == nil || errors.As(err, &mine) {
		return nil
	}
	return s.translate(ctx, "create the bucket", s.cfg.Bucket, err)
}
