package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/client"
)

// What the store answers is told with what to do about it: an object that is gone does not come back
// by trying again.
func TestComplaintsAboutTheStore(t *testing.T) {
	for _, tc := range []struct {
		err       client.StoreError
		want, not string
	}{
		{client.StoreError{Status: 404, Code: "NoSuchKey", Host: "store:9000"}, "artifactd verify", "try again"},
		{client.StoreError{Status: 507, Code: "InsufficientStorage", Host: "store:9000"}, "no space left", "try again"},
		{client.StoreError{Status: 416, Code: "InvalidRange", Host: "store:9000"}, "artifactd verify", "try again"},
		{client.StoreError{Status: 503, Code: "SlowDown", Host: "store:9000"}, "try again", "artifactd verify"},
	} {
		err := fmt.Errorf("get report.txt: %w", &tc.err)
		if text := complaint(err); !strings.Contains(text, tc.want) || strings.Contains(text, tc.not) || strings.Contains(text, "\n") {
			t.Errorf("%v: %s", err, text)
		}
		if code := outcomeOf(err).code; code != exitUnavailable {
			t.Errorf("%v: exit code %d", err, code)
		}
	}
}

// A certificate that is not trusted is no service that is missing.
func TestComplaintAboutACertificate(t *testing.T) {
	err := fmt.Errorf("health: %w", &client.TransportError{Host: "localhost:8443", Err: &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}})
	if text := complaint(err); !strings.Contains(text, "--ca-file") || strings.Contains(text, "is the service running") {
		t.Error(text)
	}
	if code := outcomeOf(err).code; code != exitUnavailable {
		t.Errorf("exit code %d", code)
	}
}

// Whoever published knows commands, not leases: what to do is said once, and so that it can be done.
func TestComplaintAboutALostLease(t *testing.T) {
	text := complaint(client.ErrLeaseEnding)
	if strings.Contains(text, "acquire") || !strings.Contains(text, "run the same command again") {
		t.Error(text)
	}
}

// A file that is not there does not come by itself, as a backend does: trying again is no use.
func TestAMissingFileIsNoBackend(t *testing.T) {
	_, missing := os.ReadFile(filepath.Join(t.TempDir(), "cert.pem"))
	if err := unavailable(fmt.Errorf("--tls-cert and --tls-key: %w", missing)); outcomeOf(err).code != exitFailed {
		t.Error(complaint(err))
	}
	_, refused := net.Dial("tcp", "127.0.0.1:1")
	if err := unavailable(fmt.Errorf("database: %w", refused)); outcomeOf(err).code != exitUnavailable {
		t.Error(complaint(err))
	}
}

// A damaged object is told from a lost one, and what to do about it too.
func TestComplaintAboutDamage(t *testing.T) {
	err := damaged(fmt.Errorf("f: %w: the bytes that came hash to x, published was y", client.ErrDigestMismatch))
	if text := complaint(err); !strings.Contains(text, "artifactd verify --deep") || outcomeOf(err).code != exitMismatch {
		t.Error(text)
	}
}

// What sort of error it is tells the exit code, wherever in the error that stands.
func TestComplaintsDoNotNameTheirSort(t *testing.T) {
	err := fmt.Errorf("the command succeeded, but: %w", fmt.Errorf("%w: f is not a regular file", errUsage))
	if text := complaint(err); text != "the command succeeded, but: f is not a regular file" || outcomeOf(err).code != exitUsage {
		t.Error(text)
	}
}

// A sentence of the service's and the hint after it are one line without a full stop in its middle.
func TestComplaintsReadWell(t *testing.T) {
	text := complaint(fmt.Errorf("%w: \"ci\" holds the lease for another 50.0 s unless it renews; try again then.", client.ErrLeaseHeld))
	if strings.Contains(text, ".;") || !strings.Contains(text, "--wait") {
		t.Error(text)
	}
}
