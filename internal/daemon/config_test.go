package daemon

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func valid() Config {
	c := Default()
	c.DatabaseURL, c.S3.Bucket = "postgres://artifactd@db/artifactd", "artifacts"
	return c
}

func TestValidate(t *testing.T) {
	c := valid()
	if err := c.Validate(); err != nil {
		t.Fatalf("the least configuration: %v", err)
	}
	for variable, spoil := range map[string]func(*Config){
		"ARTIFACTD_DATABASE_URL":        func(c *Config) { c.DatabaseURL = "" },
		"ARTIFACTD_DATABASE_CONNS":      func(c *Config) { c.DatabaseConns = -1 },
		"ARTIFACTD_LISTEN":              func(c *Config) { c.Listen = "8080" },
		"ARTIFACTD_PUBLIC_URL":          func(c *Config) { c.PublicURL = "https://host/" },
		"ARTIFACTD_SHUTDOWN_GRACE":      func(c *Config) { c.ShutdownGrace = -time.Second },
		"ARTIFACTD_S3_DRIVER":           func(c *Config) { c.S3.Driver = "azure" },
		"ARTIFACTD_S3_ENDPOINT":         func(c *Config) { c.S3.Endpoint = "s3.example.com" },
		"ARTIFACTD_S3_PUBLIC_ENDPOINT":  func(c *Config) { c.S3.PublicEndpoint = "https://user:pass@host" },
		"ARTIFACTD_S3_REGION":           func(c *Config) { c.S3.Region = "" },
		"ARTIFACTD_S3_BUCKET":           func(c *Config) { c.S3.Bucket = "" },
		"ARTIFACTD_S3_PREFIX":           func(c *Config) { c.S3.Prefix = "artifactd" },
		"ARTIFACTD_S3_ACCESS_KEY_ID":    func(c *Config) { c.S3.SecretAccessKey = "alone" },
		"ARTIFACTD_S3_SESSION_TOKEN":    func(c *Config) { c.S3.SessionToken = "alone" },
		"ARTIFACTD_UPLOAD_URL_TTL":      func(c *Config) { c.UploadURLTTL = 8 * 24 * time.Hour },
		"ARTIFACTD_READ_URL_TTL":        func(c *Config) { c.ReadURLTTL = 0 },
		"ARTIFACTD_GC_INTERVAL":         func(c *Config) { c.GC.Interval = time.Millisecond },
		"ARTIFACTD_GC_RESUME_GRACE":     func(c *Config) { c.GC.ResumeGrace = -1 },
		"ARTIFACTD_GC_LANDING_GRACE":    func(c *Config) { c.GC.LandingGrace = -1 },
		"ARTIFACTD_GC_RATE":             func(c *Config) { c.GC.Rate = -1 },
		"ARTIFACTD_RECONCILE_INTERVAL":  func(c *Config) { c.GC.ReconcileInterval = time.Millisecond },
		"ARTIFACTD_RECONCILE_GRACE":     func(c *Config) { c.GC.ReconcileGrace = 0 },
		"ARTIFACTD_RECONCILE_MAX_SHARE": func(c *Config) { c.GC.ReconcileMaxShare = 1.1 },
	} {
		c := valid()
		spoil(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), "("+variable+")") {
			t.Errorf("%s: %v", variable, err)
		}
		if err != nil && (strings.Contains(err.Error(), "pass") || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: a secret, or more than one fault: %v", variable, err)
		}
	}
}

func TestValidateReportsEverythingAtOnce(t *testing.T) {
	c := Config{}
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "\n") < 5 {
		t.Errorf("faults of an empty configuration: %v", err)
	}
}

// TestEveryFieldHasAFlag: what the faults name can be set.
func TestEveryFieldHasAFlag(t *testing.T) {
	c := Default()
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	c.Bind(fs)
	before := c
	n := 0
	fs.VisitAll(func(f *pflag.Flag) {
		n++
		if f.Usage == "" {
			t.Errorf("--%s has no description", f.Name)
		}
		for _, v := range []string{"true", "7", "77s", "text"} {
			if err := f.Value.Set(v); err == nil && f.Value.String() != f.DefValue {
				return
			}
		}
		t.Errorf("--%s cannot be set", f.Name)
	})
	if n < 20 || reflect.DeepEqual(before, c) {
		t.Errorf("%d flags", n)
	}
	if got := EnvName("s3-access-key-id"); got != "ARTIFACTD_S3_ACCESS_KEY_ID" {
		t.Errorf("EnvName: %s", got)
	}
}
