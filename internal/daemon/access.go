package daemon

import (
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/artifactd/artifactd/api"
	"github.com/artifactd/artifactd/internal/identity"
)

// AccessConfig is who is let in, how, and how much of the service one caller can take.
type AccessConfig struct {
	// TLSCert and TLSKey are files with a certificate chain and its key, as PEM. They are read again
	// when they change; a pair that does not fit together is logged, and the old one stays. Both empty
	// means no TLS: something in front of the service must have it then.
	TLSCert, TLSKey string
	// TrustedProxies are the networks (10.0.0.0/8) or addresses of what stands in front of the
	// service. What they say of a request's origin (X-Forwarded-For) is believed.
	TrustedProxies []string
	// OIDCConfig is a file, as YAML or JSON, that names the issuers whose identity tokens are taken,
	// and what they are good for. See package identity.
	OIDCConfig string

	// CallerRate is how many requests a second one access token, or workload, may send on average;
	// in a burst it is twice that. 0 means any number.
	CallerRate float64
	// AddressRate is the same for requests without a token from one address.
	AddressRate float64
	// FailureRate is how many requests a second without a good credential may come from one address
	// on average; in a burst it is five times that. 0 means any number.
	FailureRate float64
	// CallerConcurrency is how many requests of one caller are answered at a time; those that wait for
	// a lease or a version are counted apart, and may be eight times as many. 0 means any number.
	CallerConcurrency int
	// MaxConnections is how many connections may be open. When there are more, the oldest without a
	// request under way is closed. 0 means any number.
	MaxConnections int
	// MaxConnectionsPerAddress is how many of them may come from one address that is no trusted proxy.
	// 0 means any number.
	MaxConnectionsPerAddress int
}

func defaultAccess() AccessConfig {
	l := api.DefaultLimits()
	return AccessConfig{
		CallerRate: l.CallerRate, AddressRate: l.AddressRate, FailureRate: l.FailureRate, CallerConcurrency: l.Concurrency,
		MaxConnections: 4096, MaxConnectionsPerAddress: 1024,
	}
}

// Bind declares the flags.
func (c *AccessConfig) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.TLSCert, "tls-cert", c.TLSCert, "file with the certificate chain, as PEM; read again when it changes")
	fs.StringVar(&c.TLSKey, "tls-key", c.TLSKey, "file with the certificate's key, as PEM")
	fs.StringSliceVar(&c.TrustedProxies, "trusted-proxies", c.TrustedProxies, "networks whose X-Forwarded-For is believed, for example 10.0.0.0/8")
	fs.StringVar(&c.OIDCConfig, "oidc-config", c.OIDCConfig, "file that says which issuers' identity tokens are taken")
	fs.Float64Var(&c.CallerRate, "caller-rate", c.CallerRate, "requests a second of one caller; 0 for any number")
	fs.Float64Var(&c.AddressRate, "address-rate", c.AddressRate, "requests a second without a token from one address; 0 for any number")
	fs.Float64Var(&c.FailureRate, "failure-rate", c.FailureRate, "requests a second without a good credential from one address; 0 for any number")
	fs.IntVar(&c.CallerConcurrency, "caller-concurrency", c.CallerConcurrency, "requests of one caller at a time; 0 for any number")
	fs.IntVar(&c.MaxConnections, "max-connections", c.MaxConnections, "open connections; 0 for any number")
	fs.IntVar(&c.MaxConnectionsPerAddress, "max-connections-per-address", c.MaxConnectionsPerAddress, "open connections from one address; 0 for any number")
}

func (c *AccessConfig) validate(v *faults) {
	v.need((c.TLSCert == "") == (c.TLSKey == ""), "tls-cert", "and "+EnvName("tls-key")+" go together: give both or neither")
	_, err := c.trustedProxies()
	v.need(err == nil, "trusted-proxies", fmt.Sprint("must be networks or addresses: ", err))
	_, err = c.identities()
	v.need(err == nil, "oidc-config", fmt.Sprint("cannot be used: ", err))
	v.need(c.CallerRate >= 0 && c.AddressRate >= 0 && c.FailureRate >= 0, "caller-rate", "and the other rates must not be negative")
	v.need(c.CallerConcurrency >= 0, "caller-concurrency", "must not be negative")
	v.need(c.MaxConnections >= 0, "max-connections", "must not be negative")
	v.need(c.MaxConnectionsPerAddress >= 0, "max-connections-per-address", "must not be negative")
}

func (c *AccessConfig) trustedProxies() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range c.TrustedProxies {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, err2 := netip.ParseAddr(text)
			if err2 != nil {
				return nil, err
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// identities is the verifier that the configuration file describes, nil without one.
func (c *AccessConfig) identities() (api.Identities, error) {
	if c.OIDCConfig == "" {
		return nil, nil
	}
	loaded, err := identity.Load(c.OIDCConfig)
	if err != nil {
		return nil, err
	}
	return identity.New(loaded), nil
}

func (c *AccessConfig) limits() api.Limits {
	return api.Limits{CallerRate: c.CallerRate, AddressRate: c.AddressRate, FailureRate: c.FailureRate, Concurrency: c.CallerConcurrency}
}
