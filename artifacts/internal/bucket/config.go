package bucket

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"
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
	// CAFile names a PEM file with the authorities whose certificates are trusted for the endpoint,
	// besides those that the system trusts. Empty: the system's alone.
	CAFile string
	// Prefix is the installation's key prefix, empty or ending in "/". Only the objects of
	// EnforcesSignedDigest's probe are named by it; all other calls are given whole keys.
	Prefix string
	// ResponseTimeout bounds the silence of the store: from the last byte of a request to the
	// first of the answer, and between two bytes of either. 0 means 60 s.
	ResponseTimeout time.Duration
	// MaxAttempts bounds the attempts at one request; 0 means 6.
	MaxAttempts int
}

// Validate checks the configuration and fills in what was left out.
func (c *Config) Validate() error {
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

// roots are the authorities to trust; nil means those of the system.
func (c *Config) roots() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("s3: read the authorities to trust: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without any
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("s3: %s has no certificate in it: give a PEM file", c.CAFile)
	}
	return pool, nil
}
