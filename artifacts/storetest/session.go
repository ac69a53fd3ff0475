package storetest

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/internal/testenv"
)

// testSessionToken does everything with temporary credentials, which are nothing without their token.
func testSessionToken(t *testing.T, b testenv.BucketConfig, open Open) {
	sts, err := credentials.NewSTSAssumeRole(b.Endpoint, credentials.STSAssumeRoleOptions{
		AccessKey: b.AccessKeyID, SecretKey: b.SecretAccessKey, DurationSeconds: 900,
	})
	if err != nil {
		t.Fatal(err)
	}
	given, err := sts.GetWithContext(nil)
	if err != nil {
		t.Fatal(err)
	}
	if given.SessionToken == "" {
		t.Fatal("the server gave no session token")
	}
	config := Config(b)
	config.AccessKeyID, config.SecretAccessKey = given.AccessKeyID, given.SecretAccessKey
	content := []byte("for a while")
	u := upload(content)
	if err := open(t, config).Put(t.Context(), u, bytes.NewReader(content)); !errors.Is(err, artifacts.ErrStoreDenied) {
		t.Errorf("without the token: %v", err)
	}

	config.SessionToken = given.SessionToken
	f := fixture{Store: open(t, config), bucket: b}
	f.absent(t, u.Key)
	f.holds(t, f.put(t, content), content)
	signed := f.signPut(t, u)
	stores(t, signed, content)
	f.holds(t, u, content)
	if !strings.Contains(signed.URL, "X-Amz-Security-Token=") {
		t.Errorf("the signed URL lacks the token: %s", signed.URL)
	}
	if deleted, err := f.Delete(t.Context(), []string{u.Key}); err != nil || deleted[0].Err != nil {
		t.Errorf("Delete: %v, %v", deleted, err)
	}
}
