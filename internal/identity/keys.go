package identity

import (
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/artifactd/artifactd/pointer"
)

const (
	// refreshAfter is how old keys get before they are fetched again, in the background: a key that
	// the issuer withdraws is good for that much longer.
	refreshAfter = 10 * time.Minute
	// keepFor is how long keys are good when they cannot be fetched again.
	keepFor = 24 * time.Hour
	// fetchPause is the least time between two tries to fetch.
	fetchPause = 10 * time.Second
	// fetchTimeout bounds one.
	fetchTimeout = 5 * time.Second
	// maxDocument bounds what is read of an issuer's answer, in bytes, and maxKeys how many keys of it
	// are used.
	maxDocument = 1 << 20
	maxKeys     = 64
)

// errUnknownKey: the issuer has no such key.
var errUnknownKey = errors.New("signed with a key that the issuer does not have")

// keyCache has an issuer's keys.
type keyCache struct {
	issuer  Issuer
	client  *http.Client
	now     func() time.Time
	fetches singleflight.Group

	mu      sync.Mutex
	keys    map[string][]crypto.PublicKey // by key id
	fetched time.Time                     // when keys came
	tried   time.Time                     // when they were last asked for
	failure error                         // of that try
}

func newKeyCache(i Issuer, now func() time.Time) *keyCache {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: fetchTimeout, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{RootCAs: i.roots, MinVersion: tls.VersionTLS12},
	}
	return &keyCache{issuer: i, now: now, client: &http.Client{
		Transport: limitedTransport{transport}, Timeout: fetchTimeout, CheckRedirect: keepSecure,
	}}
}

// keepSecure follows a redirect only to where keys may come from.
func keepSecure(req *http.Request, via []*http.Request) error {
	if len(via) > 3 || !fetchable(req.URL.String()) {
		return http.ErrUseLastResponse
	}
	return nil
}

// limitedTransport bounds what an answer can have.
type limitedTransport struct{ http.RoundTripper }

func (t limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxDocument), resp.Body}
	}
	return resp, err
}

// find returns the keys that a token may be signed with: those of its key id, or all when it has
// none. [errUnknownKey]; [pointer.ErrUnavailable] when the issuer cannot be asked.
func (c *keyCache) find(ctx context.Context, id string) ([]crypto.PublicKey, error) {
	now := c.now()
	keys, age, mayFetch := c.look(id, now)
	switch {
	case len(keys) > 0 && age < refreshAfter:
		return keys, nil
	case len(keys) > 0 && age < keepFor:
		if mayFetch {
			c.start(now)
		}
		return keys, nil
	case mayFetch:
		select {
		case <-c.start(now):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: the keys of %s: %w", pointer.ErrUnavailable, c.issuer.Issuer, ctx.Err())
		}
		keys, age, _ = c.look(id, now)
		if len(keys) > 0 && age < keepFor {
			return keys, nil
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failure != nil {
		return nil, fmt.Errorf("%w: the keys of %s: %w", pointer.ErrUnavailable, c.issuer.Issuer, c.failure)
	}
	return nil, errUnknownKey
}

// look finds keys among those that are there.
func (c *keyCache) look(id string, now time.Time) (keys []crypto.PublicKey, age time.Duration, mayFetch bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id != "" {
		keys = c.keys[id]
	} else {
		for _, some := range c.keys {
			keys = append(keys, some...)
		}
	}
	return keys, now.Sub(c.fetched), c.tried.IsZero() || now.Sub(c.tried) >= fetchPause
}

// start fetches the keys, once for all who ask at the same time, and for no one's deadline but its own.
func (c *keyCache) start(now time.Time) <-chan singleflight.Result {
	return c.fetches.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		keys, err := c.fetch(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tried, c.failure = now, err
		if err == nil {
			c.keys, c.fetched = keys, now
		}
		return nil, err
	})
}

// fetch asks the issuer.
func (c *keyCache) fetch(ctx context.Context) (map[string][]crypto.PublicKey, error) {
	where := c.issuer.KeysURL
	if where == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, c.client), c.issuer.Issuer)
		if err != nil {
			return nil, err
		}
		var found struct {
			JWKSURI string `json:"jwks_uri"`
		}
		if err := provider.Claims(&found); err != nil {
			return nil, err
		}
		if where = found.JWKSURI; !fetchable(where) {
			return nil, fmt.Errorf("its jwks_uri is no https URL: %q", where)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var set jose.JSONWebKeySet
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s", where, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(&set); err != nil {
		return nil, fmt.Errorf("%s answered no keys: %w", where, err)
	}
	return signingKeys(set), nil
}

// signingKeys are the public keys of a set, by key id. A symmetric one, which the library would take
// too, is no secret once it is published.
func signingKeys(set jose.JSONWebKeySet) map[string][]crypto.PublicKey {
	keys := map[string][]crypto.PublicKey{}
	for _, k := range set.Keys[:min(len(set.Keys), maxKeys)] {
		if k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			keys[k.KeyID] = append(keys[k.KeyID], k.Key)
		}
	}
	return keys
}
