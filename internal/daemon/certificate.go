package daemon

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// certificateLook is the pause between two looks at the certificate's files.
const certificateLook = 5 * time.Second

// certificate is the service's, from two files that may be replaced while it runs.
type certificate struct {
	certFile, keyFile string
	logger            *slog.Logger
	current           atomic.Pointer[tls.Certificate]
	seen              [sha256.Size]byte // of the files' contents, good or bad
}

// loadCertificate reads the files for the first time.
func loadCertificate(c Config, logger *slog.Logger) (*certificate, error) {
	k := &certificate{certFile: c.TLSCert, keyFile: c.TLSKey, logger: logger}
	if _, err := k.reload(); err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	return k, nil
}

// reload takes what the files hold if that is new and fits together; otherwise what was there stays.
func (k *certificate) reload() (changed bool, err error) {
	cert, err := os.ReadFile(k.certFile)
	if err != nil {
		return false, err
	}
	key, err := os.ReadFile(k.keyFile)
	if err != nil {
		return false, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d\n", len(cert))
	sum.Write(cert)
	sum.Write(key)
	found := [sha256.Size]byte(sum.Sum(nil))
	if found == k.seen {
		return false, nil
	}
	k.seen = found
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return false, fmt.Errorf("%s and %s: %w", k.certFile, k.keyFile, err)
	}
	k.current.Store(&pair)
	return true, nil
}

// watch looks at the files until ctx ends. A fault is logged once.
func (k *certificate) watch(ctx context.Context) {
	ticker := time.NewTicker(certificateLook)
	defer ticker.Stop()
	var last string
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		changed, err := k.reload()
		switch {
		case err != nil && err.Error() != last:
			last = err.Error()
			k.logger.Error("the new TLS certificate cannot be used; the old one is still served", "error", err)
		case changed:
			last = ""
			k.logger.Info("a new TLS certificate is served", "expires", k.current.Load().Leaf.NotAfter)
		}
	}
}

// config is what the server needs.
func (k *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current.Load(), nil },
	}
}
