package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/artifactd/artifactd/recovery"
)

// Config is everything that `artifactd serve` can be told. The field comments are the manual;
// every field has a flag, and every flag is also an environment variable (see [EnvName]).
type Config struct {
	// DatabaseURL is how the service reaches Postgres 15 or newer: a URL or key=value text as psql
	// takes it. The role should be the service's own (a member of artifactd_service), which may
	// execute functions and read; it needs no right to write to the tables. Required.
	DatabaseURL string
	// DatabaseConns is the largest number of database connections held at a time. 0 lets the
	// service choose (four for every CPU, at least 16).
	DatabaseConns int

	// Listen is the host:port the API is served on; port 0 picks a free one.
	Listen string
	// PublicURL is the address under which clients reach the API, without a trailing slash. Empty
	// means that URLs in answers are absolute paths, which clients resolve by themselves.
	PublicURL string
	// ShutdownGrace is how long running requests may take to finish after SIGTERM.
	ShutdownGrace time.Duration

	// S3 is the object store.
	S3 S3Config

	// UploadURLTTL is how long a presigned upload URL can be used. A collected generation's keys
	// stay in the deletion ledger for at least this long.
	UploadURLTTL time.Duration
	// ReadURLTTL is how long a presigned read URL can be used.
	ReadURLTTL time.Duration
	// ProxyLimit is the size, in bytes, up to which files are read through the service; larger ones
	// are redirected to the store. Negative means that every file is read through the service.
	ProxyLimit int64

	// GC is the collector inside the service.
	GC GCConfig

	AccessConfig

	// HistoryTiming is how fast a change of the database's history is noticed. It has no flag, because
	// all replicas and operators must have the same: only tests give another than the default.
	HistoryTiming recovery.Timing

	// AllowUnsafeDurability lets the service start on a database that may lose acknowledged
	// commits (fsync or synchronous_commit off). For development and tests only.
	AllowUnsafeDurability bool
	// AllowUnfencedRole lets the service start as a database role that could write the tables past
	// the fence, such as their owner. For development only.
	AllowUnfencedRole bool
}

// The drivers.
const driverAWS, driverMinIO = "aws", "minio"

// S3Config is how the object store is reached.
type S3Config struct {
	// Driver is the client library used: "aws" (the SDK of Amazon) or "minio" (that of MinIO). Both
	// talk to any store.
	Driver string
	// Endpoint is the store's URL as the service reaches it. Empty means AWS itself.
	Endpoint string
	// PublicEndpoint is the store's URL as clients reach it; presigned URLs carry it. Empty means
	// the same as Endpoint.
	PublicEndpoint string
	// Region of the bucket.
	Region string
	// Bucket that holds everything. Required.
	Bucket string
	// CreateBucket has the service make the bucket at its start if it is missing. Without it the
	// bucket is the operator's to make.
	CreateBucket bool
	// Prefix of every key of this installation: empty, or ending in "/". Installations that share a
	// bucket need different prefixes.
	Prefix string
	// AccessKeyID and SecretAccessKey are static credentials. Both empty means the AWS default
	// chain: environment, shared files, instance role.
	AccessKeyID, SecretAccessKey string
	// SessionToken belongs to temporary static credentials.
	SessionToken string
	// CAFile is a PEM file with certificate authorities that are trusted for the store besides those
	// of the system: for a store with a certificate of the company's own. Clients that are sent to
	// the store need to trust it too.
	CAFile string
	// PathStyle puts the bucket into the path instead of the host name, as most stores other than
	// AWS need it.
	PathStyle bool
}

// GCConfig is when the collector runs and how patient it is. None of these is a guard: what is
// garbage is decided by the fence.
type GCConfig struct {
	// Interval between two runs, spread by up to a tenth either way. 0 switches the collector of
	// this replica off.
	Interval time.Duration
	// ResumeGrace is how long the uploads of a dead generation are kept so that its successor can
	// adopt them.
	ResumeGrace time.Duration
	// LandingGrace is how long after an upload URL's expiry a PUT that began in time may still end;
	// a key is deleted once more after that.
	LandingGrace time.Duration
	// Rate bounds how many objects a second this replica deletes from the store; 0 means no bound.
	Rate float64
	// ReconcileInterval is the pause between two comparisons of the whole bucket with the database,
	// by all replicas together. 0 means that this replica makes none.
	ReconcileInterval time.Duration
	// ReconcileGrace is how long ago an object that no row knows must have been seen first before a
	// later comparison deletes it.
	ReconcileGrace time.Duration
	// ReconcileMaxShare is the largest share of the bucket's objects, 0 to 1, that one comparison may
	// delete. When more are due it deletes none.
	ReconcileMaxShare float64
}

// Default is the configuration before any flag: everything but the database, the bucket and the
// credentials.
func Default() Config {
	return Config{
		Listen:        ":8080",
		ShutdownGrace: 30 * time.Second,
		S3:            S3Config{Driver: driverAWS, Region: "us-east-1", Prefix: "artifactd/"},
		UploadURLTTL:  15 * time.Minute,
		ReadURLTTL:    15 * time.Minute,
		ProxyLimit:    8 << 20,
		AccessConfig:  defaultAccess(),
		GC: GCConfig{Interval: time.Minute, ResumeGrace: time.Hour, LandingGrace: 15 * time.Minute,
			ReconcileInterval: 24 * time.Hour, ReconcileGrace: 24 * time.Hour, ReconcileMaxShare: 0.1},
	}
}

// EnvName is the environment variable that stands for a flag: "s3-bucket" is ARTIFACTD_S3_BUCKET.
func EnvName(flag string) string {
	return "ARTIFACTD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Bind declares the flags of every field on fs, with the values c has as their defaults.
func (c *Config) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.DatabaseURL, "database-url", c.DatabaseURL, "Postgres, as the service's role")
	fs.IntVar(&c.DatabaseConns, "database-conns", c.DatabaseConns, "most database connections; 0 chooses by CPUs")
	fs.StringVar(&c.Listen, "listen", c.Listen, "host:port to serve on; port 0 picks a free one")
	fs.StringVar(&c.PublicURL, "public-url", c.PublicURL, "address under which clients reach the API")
	fs.DurationVar(&c.ShutdownGrace, "shutdown-grace", c.ShutdownGrace, "how long running requests may take after SIGTERM")
	c.S3.Bind(fs)
	fs.DurationVar(&c.UploadURLTTL, "upload-url-ttl", c.UploadURLTTL, "how long an upload URL can be used")
	fs.DurationVar(&c.ReadURLTTL, "read-url-ttl", c.ReadURLTTL, "how long a presigned read URL can be used")
	fs.Int64Var(&c.ProxyLimit, "proxy-limit", c.ProxyLimit, "largest file, in bytes, that is read through the service; -1 for all")
	c.GC.Bind(fs)
	c.AccessConfig.Bind(fs)
	fs.BoolVar(&c.AllowUnfencedRole, "allow-unfenced-role", c.AllowUnfencedRole, "start although the database role could write past the fence (development only)")
	fs.BoolVar(&c.AllowUnsafeDurability, "allow-unsafe-durability", c.AllowUnsafeDurability, "start although the database may lose commits (development only)")
}

// Bind declares the store's flags.
func (c *S3Config) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.Driver, "s3-driver", c.Driver, `client library for the store: "aws" or "minio"`)
	fs.StringVar(&c.Endpoint, "s3-endpoint", c.Endpoint, "the store's URL; empty for AWS")
	fs.StringVar(&c.PublicEndpoint, "s3-public-endpoint", c.PublicEndpoint, "the store's URL as clients reach it")
	fs.StringVar(&c.Region, "s3-region", c.Region, "the bucket's region")
	fs.StringVar(&c.Bucket, "s3-bucket", c.Bucket, "the bucket")
	fs.BoolVar(&c.CreateBucket, "s3-create-bucket", c.CreateBucket, "make the bucket at the start if it is missing")
	fs.StringVar(&c.Prefix, "s3-prefix", c.Prefix, `prefix of every key; empty or ending in "/"`)
	fs.StringVar(&c.AccessKeyID, "s3-access-key-id", c.AccessKeyID, "static credentials; empty for the AWS default chain")
	fs.StringVar(&c.SecretAccessKey, "s3-secret-access-key", c.SecretAccessKey, "static credentials (better given by environment)")
	fs.StringVar(&c.SessionToken, "s3-session-token", c.SessionToken, "session token of temporary credentials")
	fs.StringVar(&c.CAFile, "s3-ca-file", c.CAFile, "PEM file with authorities to trust for the store, besides the system's")
	fs.BoolVar(&c.PathStyle, "s3-path-style", c.PathStyle, "bucket in the path instead of the host name")
}

// Bind declares the collector's flags.
func (c *GCConfig) Bind(fs *pflag.FlagSet) {
	fs.DurationVar(&c.Interval, "gc-interval", c.Interval, "pause between collections; 0 for none in this replica")
	fs.DurationVar(&c.ResumeGrace, "gc-resume-grace", c.ResumeGrace, "how long a dead generation's uploads can be adopted")
	fs.DurationVar(&c.LandingGrace, "gc-landing-grace", c.LandingGrace, "how long a PUT may take after its URL expired")
	fs.Float64Var(&c.Rate, "gc-rate", c.Rate, "most objects that this replica deletes a second; 0 for no bound")
	fs.DurationVar(&c.ReconcileInterval, "reconcile-interval", c.ReconcileInterval, "pause between comparisons of the whole bucket with the database, by all replicas together; 0 for none in this one")
	fs.DurationVar(&c.ReconcileGrace, "reconcile-grace", c.ReconcileGrace, "how long ago an unknown object must have been seen first")
	fs.Float64Var(&c.ReconcileMaxShare, "reconcile-max-share", c.ReconcileMaxShare, "largest share of the bucket's objects, 0 to 1, that one comparison may delete")
}

// Validate reports every fault at once, each naming the flag and the variable that set it.
func (c *Config) Validate() error {
	var v faults
	v.need(c.DatabaseURL != "", "database-url", "is required: where is Postgres? for example postgres://artifactd@db.example.com/artifactd")
	v.need(c.DatabaseConns >= 0, "database-conns", "must not be negative")
	_, _, err := net.SplitHostPort(c.Listen)
	v.need(err == nil, "listen", fmt.Sprintf("must be host:port, not %q", c.Listen))
	v.url("public-url", c.PublicURL)
	v.need(!strings.HasSuffix(c.PublicURL, "/"), "public-url", "must not end in a slash")
	v.need(c.ShutdownGrace >= 0, "shutdown-grace", "must not be negative")
	c.S3.validate(&v)
	v.between("upload-url-ttl", c.UploadURLTTL, time.Minute, maxURLTTL)
	v.between("read-url-ttl", c.ReadURLTTL, time.Second, maxURLTTL)
	v.need(c.GC.Interval == 0 || c.GC.Interval >= 100*time.Millisecond, "gc-interval", "must be 0 or at least 100ms")
	v.need(c.GC.ResumeGrace >= 0, "gc-resume-grace", "must not be negative")
	v.need(c.GC.LandingGrace >= 0, "gc-landing-grace", "must not be negative")
	v.need(c.GC.Rate >= 0, "gc-rate", "must not be negative")
	v.need(c.GC.ReconcileInterval == 0 || c.GC.ReconcileInterval >= minReconcile, "reconcile-interval", fmt.Sprintf("must be 0 or at least %s: it lists the whole bucket", minReconcile))
	v.need(c.GC.ReconcileGrace > 0, "reconcile-grace", "must be more than 0: without it an upload that is on its way could be taken for lost")
	v.need(c.GC.ReconcileMaxShare >= 0 && c.GC.ReconcileMaxShare <= 1, "reconcile-max-share", fmt.Sprintf("must be 0 to 1, not %v", c.GC.ReconcileMaxShare))
	c.AccessConfig.validate(&v)
	return errors.Join(v...)
}

// minReconcile is the shortest pause between two comparisons of the bucket.
const minReconcile = time.Second

// maxURLTTL is the longest life of a presigned URL that S3 allows.
const maxURLTTL = 7 * 24 * time.Hour

func (c *S3Config) validate(v *faults) {
	v.need(c.Driver == driverAWS || c.Driver == driverMinIO, "s3-driver", fmt.Sprintf(`must be %q or %q, not %q`, driverAWS, driverMinIO, c.Driver))
	v.url("s3-endpoint", c.Endpoint)
	v.url("s3-public-endpoint", c.PublicEndpoint)
	v.need(c.Region != "", "s3-region", `is required; for a store without regions say "us-east-1"`)
	v.need(c.Bucket != "", "s3-bucket", "is required: the bucket that holds the artifacts")
	v.need(c.Prefix == "" || strings.HasSuffix(c.Prefix, "/") && !strings.HasPrefix(c.Prefix, "/"), "s3-prefix", fmt.Sprintf(`must be empty, or end and not begin with "/", not %q`, c.Prefix))
	v.need((c.AccessKeyID == "") == (c.SecretAccessKey == ""), "s3-access-key-id", "and "+EnvName("s3-secret-access-key")+" go together: give both or neither")
	v.need(c.SessionToken == "" || c.AccessKeyID != "", "s3-session-token", "needs "+EnvName("s3-access-key-id"))
}

// faults collects what is wrong.
type faults []error

func (v *faults) need(ok bool, flag, complaint string) {
	if !ok {
		*v = append(*v, fmt.Errorf("--%s (%s) %s", flag, EnvName(flag), complaint))
	}
}

func (v *faults) url(flag, s string) {
	if s == "" {
		return
	}
	u, err := url.Parse(s)
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
	v.need(ok, flag, fmt.Sprintf("must be an http or https URL without query and credentials, not %q", redactURL(s)))
}

func (v *faults) between(flag string, d, low, high time.Duration) {
	v.need(d >= low && d <= high, flag, fmt.Sprintf("must be between %s and %s, not %s", low, high, d))
}

// redactURL hides a password, should somebody have put one where none belongs.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}
