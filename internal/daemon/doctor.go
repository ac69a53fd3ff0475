package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/artifacts/s3store"
	"github.com/artifactd/artifactd/internal/doctor"
)

// databaseClockSQL is the clock that decides every lease.
const databaseClockSQL = `SELECT clock_timestamp()`

// probeTimeout bounds one request of the doctor's that no driver sends.
const probeTimeout = time.Minute

// ValidateStore reports every fault of the store's part of the configuration.
func (c *S3Config) ValidateStore() error {
	var v faults
	c.validate(&v)
	return errors.Join(v...)
}

// Doctor examines the store, through the driver that the service would use, and the database's
// clock unless databaseURL is empty.
func Doctor(ctx context.Context, c S3Config, databaseURL string) (doctor.Report, error) {
	if err := c.ValidateStore(); err != nil {
		return doctor.Report{}, err
	}
	public, local := c, c
	local.PublicEndpoint = ""
	store, err := openStore(ctx, local)
	if err != nil {
		return doctor.Report{}, err
	}
	defer store.Close()
	// What a bucket is set to is asked by one driver alone.
	settings, err := s3store.New(ctx, local.driverConfig())
	if err != nil {
		return doctor.Report{}, err
	}
	defer settings.Close()
	t := doctor.Target{Store: store, Bucket: settings, Prefix: c.Prefix, HTTP: probeClient()}
	if c.PublicEndpoint != "" && c.PublicEndpoint != c.Endpoint {
		signer, err := openStore(ctx, public)
		if err != nil {
			return doctor.Report{}, err
		}
		defer signer.Close()
		t.Public = signer
	}
	if databaseURL != "" {
		conn, err := pgx.Connect(ctx, databaseURL)
		if err != nil {
			return doctor.Report{}, fmt.Errorf("%w: the database: %w", ErrUnavailable, err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // it was only asked the time
		t.DatabaseClock = func(ctx context.Context) (now time.Time, err error) {
			err = conn.QueryRow(ctx, databaseClockSQL).Scan(&now)
			return now, err
		}
	}
	report, err := doctor.Run(ctx, t)
	if errors.Is(err, artifacts.ErrStoreUnavailable) {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return report, err
}

// probeClient sends signed requests as a client of the service would, but follows no redirect.
func probeClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: probeTimeout, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
