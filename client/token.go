package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// TokenSource gives the token for a request. It is asked for every one, and may be by several at once.
type TokenSource func(context.Context) (string, error)

// maxTokenFile bounds a token's file, in bytes.
const maxTokenFile = 64 << 10

// TokenFile reads the token from a file, anew for every request: what rotates it, as Kubernetes does
// with the tokens of service accounts, need not tell anybody.
func TokenFile(name string) TokenSource {
	return func(context.Context) (string, error) {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("the access token's file: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
		token := strings.TrimSpace(string(b))
		if err == nil && (token == "" || strings.ContainsAny(token, " \r\n")) {
			err = errors.New("it has to hold one token and nothing else")
		}
		if err != nil {
			return "", fmt.Errorf("the access token's file %s: %w", name, err)
		}
		return token, nil
	}
}

// tokenLead is how long before its end an identity token is replaced.
const tokenLead = time.Minute

// GitHubToken asks GitHub Actions for identity tokens with an audience, within a job that has the
// permission "id-token: write". requestURL and requestToken are the job's
// ACTIONS_ID_TOKEN_REQUEST_URL and ACTIONS_ID_TOKEN_REQUEST_TOKEN. A token lives for minutes; a new
// one is fetched when it is needed.
func GitHubToken(requestURL, requestToken, audience string) (TokenSource, error) {
	u, err := url.Parse(requestURL)
	if err != nil || u.Host == "" || requestToken == "" {
		return nil, errors.New("this is no GitHub Actions job that may have an identity token: give it the permission `id-token: write`")
	}
	query := u.Query()
	query.Set("audience", audience)
	u.RawQuery = query.Encode()
	g := &githubTokens{url: u.String(), bearer: requestToken, http: &http.Client{Timeout: 30 * time.Second}}
	return g.token, nil
}

type githubTokens struct {
	url, bearer string
	http        *http.Client

	mu      sync.Mutex
	current string
	until   time.Time
}

func (g *githubTokens) token(ctx context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Now().Before(g.until) {
		return g.current, nil
	}
	token, err := retry(ctx, g.fetch)
	if err != nil {
		return "", fmt.Errorf("an identity token of this job: %w", err)
	}
	g.current, g.until = token, expiry(token).Add(-tokenLead)
	return token, nil
}

func (g *githubTokens) fetch(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+g.bearer)
	resp, err := send(g.http, req)
	if err != nil {
		return "", err
	}
	defer drain(resp)
	if resp.StatusCode != http.StatusOK {
		return "", problemFrom(resp)
	}
	var answer struct {
		Value string `json:"value"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxTokenFile)).Decode(&answer); err != nil || answer.Value == "" {
		return "", fmt.Errorf("%s answered no token", req.URL.Host)
	}
	return answer.Value, nil
}

// expiry reads when a token ends; one that does not say is not kept.
func expiry(token string) time.Time {
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		if b, err := base64.RawURLEncoding.DecodeString(parts[1]); err == nil && json.Unmarshal(b, &claims) == nil {
			return time.Unix(int64(claims.Expires), 0)
		}
	}
	return time.Time{}
}
