package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/artifactd/artifactd/pointer"
)

// Config is what the configuration file holds, as YAML or JSON.
type Config struct {
	Issuers []Issuer `yaml:"issuers"`
}

// Issuer is somebody whose word is trusted for some workloads.
type Issuer struct {
	// Issuer is the URL in the tokens' iss claim, letter by letter. Below it lies
	// .well-known/openid-configuration, which leads to the keys.
	Issuer string `yaml:"issuer"`
	// Audience must be among the tokens' audiences: usually this service's own address. One that other
	// services expect too would let them use the tokens they were sent.
	Audience string `yaml:"audience"`
	// KeysURL is where the keys (a JWKS) are when the issuer publishes no configuration.
	KeysURL string `yaml:"keys_url"`
	// CAFile has certificates, as PEM, of authorities that are trusted besides the system's when the
	// keys are fetched.
	CAFile string `yaml:"ca_file"`
	// Rules say who may do what. The first that matches decides.
	Rules []Rule `yaml:"rules"`

	roots *x509.CertPool
}

// Rule gives scopes on pointers to the tokens that have all its claims.
type Rule struct {
	// Claims by name. A text must be the claim's, or be one of its elements. It may end in "*" behind a
	// slash, colon or dot, and then stands for all that begins like it. "*" alone stands for any text,
	// and does not count as the one claim that every rule needs.
	Claims map[string]string `yaml:"claims"`
	// Scopes are read, publish or admin; each includes the ones before it.
	Scopes []pointer.Scope `yaml:"scopes"`
	// Patterns are "*", "prefix.*" or pointers' names.
	Patterns []string `yaml:"patterns"`
}

// maxConfig bounds the configuration file, in bytes.
const maxConfig = 1 << 20

// Load reads and checks a configuration file. Its error names every fault.
func Load(name string) (Config, error) {
	f, err := os.Open(name)
	if err != nil {
		return Config{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return Config{}, err
	}
	var c Config
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true) // a misspelt member must not widen anything
	if err := d.Decode(&c); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func (c *Config) check() error {
	var faults []error
	if len(c.Issuers) == 0 {
		faults = append(faults, errors.New("issuers: name one at least"))
	}
	seen := map[string]bool{}
	for n := range c.Issuers {
		i := &c.Issuers[n]
		complain := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("issuers[%d]%s", n, fmt.Sprintf(format, args...)))
		}
		if !fetchable(i.Issuer) {
			complain(".issuer: must be an https URL, as it stands in the tokens, not %q", i.Issuer)
		}
		if seen[i.Issuer] {
			complain(".issuer: %q stands here twice; give it all its rules in one place", i.Issuer)
		}
		seen[i.Issuer] = true
		if i.Audience == "" {
			complain(".audience: is required: a token for another service must not be good here")
		}
		if i.KeysURL != "" && !fetchable(i.KeysURL) {
			complain(".keys_url: must be an https URL, not %q", i.KeysURL)
		}
		if err := i.loadRoots(); err != nil {
			complain(".ca_file: %v", err)
		}
		if len(i.Rules) == 0 {
			complain(".rules: name one at least; without any nobody is let in")
		}
		for m, r := range i.Rules {
			if err := r.check(); err != nil {
				complain(".rules[%d].%v", m, err)
			}
		}
	}
	return errors.Join(faults...)
}

func (i *Issuer) loadRoots() error {
	if i.CAFile == "" {
		return nil
	}
	pem, err := os.ReadFile(i.CAFile)
	if err != nil {
		return err
	}
	if i.roots, err = x509.SystemCertPool(); err != nil {
		i.roots = x509.NewCertPool()
	}
	if !i.roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate in PEM form", i.CAFile)
	}
	return nil
}

func (r *Rule) check() error {
	narrow := false
	for name, text := range r.Claims {
		if err := checkClaim(text); err != nil {
			return fmt.Errorf("claims.%s: %w", name, err)
		}
		narrow = narrow || text != "*" && name != "iss" && name != "aud"
	}
	if !narrow {
		return errors.New(`claims: name one at least with a text other than "*": an issuer speaks for many who have nothing to do with you`)
	}
	if err := pointer.CheckGrant(r.Scopes, r.Patterns); err != nil {
		return fmt.Errorf("scopes and patterns: %w", err)
	}
	return nil
}

// checkClaim refuses a "*" that would reach beyond a name: acme* covers acme-evil.
func checkClaim(text string) error {
	prefix, star := strings.CutSuffix(text, "*")
	switch {
	case text == "":
		return errors.New("must not be empty")
	case strings.Contains(prefix, "*"):
		return fmt.Errorf(`%q: "*" can only stand at the end`, text)
	case star && prefix != "" && !strings.ContainsRune("/:.", rune(prefix[len(prefix)-1])):
		return fmt.Errorf(`%q would cover names that only begin alike: put a slash, colon or dot before the "*"`, text)
	}
	return nil
}

// grants reports whether a token with these claims has all that the rule wants.
func (r *Rule) grants(claims map[string]any) bool {
	for name, want := range r.Claims {
		if !claimHas(claims[name], want) {
			return false
		}
	}
	return true
}

func claimHas(claim any, want string) bool {
	switch v := claim.(type) {
	case string:
		if prefix, star := strings.CutSuffix(want, "*"); star {
			// A name that climbs out of its folder is nobody's.
			return len(v) > len(prefix) && strings.HasPrefix(v, prefix) && !slices.Contains(strings.Split(v, "/"), "..")
		}
		return v == want
	case bool:
		return fmt.Sprint(v) == want
	case []any:
		return slices.ContainsFunc(v, func(element any) bool {
			text, ok := element.(string)
			return ok && claimHas(text, want)
		})
	}
	return false
}

// fetchable reports whether an address may be asked for keys: whoever can change them on their way
// is trusted as the issuer is. Tests have theirs on this machine.
func fetchable(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && ip != nil && ip.IsLoopback()
}
