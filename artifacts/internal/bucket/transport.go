package bucket

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// maxIdlePerHost is how many idle connections are kept. All go to one host, and making one anew
// costs a round trip and, with TLS, two more.
const maxIdlePerHost = 256

// bufferSize is the size of a connection's read and write buffer, in bytes.
const bufferSize = 64 << 10

// Transport is the way to the store. There is no limit on the length of a whole exchange, which
// may be 5 GiB; silence is what is bounded, at every stage.
type Transport struct {
	*http.Transport
	silence time.Duration
}

// NewTransport makes a transport that bounds the silence of the peer, as the configuration says.
func NewTransport(c Config) (*Transport, error) {
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	silence := c.ResponseTimeout
	dialer := &net.Dialer{Timeout: min(silence, 10*time.Second), KeepAlive: 15 * time.Second}
	return &Transport{silence: silence, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &impatientConn{Conn: c, silence: silence}, nil
		},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: silence,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          maxIdlePerHost,
		MaxIdleConnsPerHost:   maxIdlePerHost,
		ReadBufferSize:        bufferSize,
		WriteBufferSize:       bufferSize,
		// Compression would change lengths and digests.
		DisableCompression: true,
		TLSClientConfig:    &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}, nil
}

// Client is an HTTP client on the transport, for requests that are signed already.
func (t *Transport) Client() *http.Client {
	return &http.Client{
		Transport: t.Transport,
		// The SDK signs for one host; a redirect elsewhere is the store's answer, not an order.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// impatientConn gives up writing to a peer that takes nothing. Reading is bounded elsewhere: a
// connection may rightly be silent while a long body is sent.
type impatientConn struct {
	net.Conn
	silence time.Duration
}

func (c *impatientConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.silence)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
