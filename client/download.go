package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

	"github.com/artifactd/artifactd/api/types"
)

// Download writes a file of a version to w and verifies its size and digest. A connection that
// breaks is taken up again where it broke. What was written must not be used unless the error is
// nil: a mismatch ([ErrDigestMismatch], [ErrSizeMismatch]) is only known at the end. progress, when
// not nil, is told the bytes written.
func (c *Client) Download(ctx context.Context, f types.File, w io.Writer, progress func(int64)) error {
	d := &download{client: c, file: f, w: w, hash: sha256.New(), progress: progress}
	for {
		before := d.done
		_, err := retry(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.attempt(ctx) })
		if err == nil {
			return d.verify()
		}
		// As long as bytes arrive, a flaky way to them is worth going on with.
		if d.done == before || !worthRetrying(err) || ctx.Err() != nil {
			return err
		}
	}
}

// download is one file on its way.
type download struct {
	client   *Client
	file     types.File
	w        io.Writer
	hash     hash.Hash
	done     int64 // bytes written
	progress func(int64)
	proxied  bool // through the service, wherever it would send us
}

// attempt asks for what is missing and writes what comes.
func (d *download) attempt(ctx context.Context) error {
	if d.done == d.file.Size && d.done > 0 {
		return nil
	}
	transfer, idle := stopWhenIdle(ctx, d.client.stall, d.client.base.Host)
	defer idle.end()
	resp, err := d.open(transfer)
	if err != nil {
		return err
	}
	defer drain(resp)
	body := io.Reader(&watchedBody{r: resp.Body, idle: idle})
	if d.done > 0 && resp.StatusCode == http.StatusOK {
		// The server ignored the range: what we have comes once more.
		if _, err := io.CopyN(io.Discard, body, d.done); err != nil {
			return &TransportError{Host: resp.Request.URL.Host, Err: err}
		}
	}
	_, err = io.Copy(d, io.LimitReader(body, d.file.Size-d.done+1))
	var local *writeError
	var stalled *TransportError
	switch {
	case errors.As(err, &local):
		return local.err
	case err != nil && context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(context.Cause(transfer), &stalled):
		return stalled
	case err != nil:
		return &TransportError{Host: resp.Request.URL.Host, Err: err, Store: !d.client.own(resp.Request.URL)}
	case d.done > d.file.Size:
		return fmt.Errorf("%s: %w: more than the %d bytes that were published", d.file.Path, ErrSizeMismatch, d.file.Size)
	case d.done < d.file.Size:
		return &TransportError{Host: resp.Request.URL.Host, Err: io.ErrUnexpectedEOF, Store: !d.client.own(resp.Request.URL)}
	}
	return nil
}

// watchedBody counts the time in which the other side sends nothing, and not the time in which the
// destination takes nothing.
type watchedBody struct {
	r    io.Reader
	idle *idleness
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.idle.watch()
	defer b.idle.pause()
	return b.r.Read(p)
}

func (d *download) open(ctx context.Context) (*http.Response, error) {
	u, err := d.client.resolve(d.file.Url)
	if err != nil {
		return nil, err
	}
	if d.proxied {
		query := u.Query()
		query.Set("via", "proxy")
		u.RawQuery = query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	// Ranges count the published bytes, so no encoding may come in between.
	req.Header.Set("Accept-Encoding", "identity")
	if d.done > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.done))
	}
	if d.client.own(u) {
		if err := d.client.authorize(req); err != nil {
			return nil, err
		}
	}
	resp, err := d.client.transfer(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && d.done > 0 {
		return resp, nil
	}
	defer drain(resp)
	if d.client.own(resp.Request.URL) {
		return nil, problemFrom(resp)
	}
	if resp.StatusCode == http.StatusNotFound && d.client.own(u) && !d.proxied {
		// The service knows whether the version has been collected since it sent us there, or is lost.
		d.proxied = true
		return d.open(ctx)
	}
	return nil, storeError(resp)
}

// writeError tells a failure of the destination from one of the source.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

// Write hashes and counts what the destination took.
func (d *download) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	d.hash.Write(p[:n])
	d.done += int64(n)
	if d.progress != nil {
		d.progress(int64(n))
	}
	if err != nil {
		return n, &writeError{err}
	}
	return n, nil
}

func (d *download) verify() error {
	if got := "sha256:" + hex.EncodeToString(d.hash.Sum(nil)); got != d.file.Digest {
		return fmt.Errorf("%s: %w: the bytes that came hash to %s, published was %s", d.file.Path, ErrDigestMismatch, got, d.file.Digest)
	}
	return nil
}
