package bucket_test

import (
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

func TestConfigIsChecked(t *testing.T) {
	good := bucket.Config{Endpoint: "http://localhost:1", Bucket: "b", AccessKeyID: "a", SecretAccessKey: "s"}
	c := good
	if err := c.Validate(); err != nil || c.Region != "us-east-1" || c.ResponseTimeout != time.Minute || c.MaxAttempts != 6 {
		t.Errorf("%+v: %v", c, err)
	}
	for name, change := range map[string]func(*bucket.Config){
		"bucket":            func(c *bucket.Config) { c.Bucket = "" },
		"endpoint":          func(c *bucket.Config) { c.Endpoint = "localhost:9000" },
		"public endpoint":   func(c *bucket.Config) { c.PublicEndpoint = "files.example.com" },
		"secret access key": func(c *bucket.Config) { c.SecretAccessKey = "" },
		"prefix":            func(c *bucket.Config) { c.Prefix = "tenant" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
