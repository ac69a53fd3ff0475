package miniostore

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/artifactd/artifactd/artifacts/internal/bucket"
)

// maxPage bounds the answer to one request for a listing, which has 1,000 entries at most.
const maxPage = 16 << 20

// guard is the transport under minio-go. It counts the attempts at a request, and lets no page of
// a listing pass that does not say plainly whether another follows and how to ask for it: minio-go
// would take such a page for the last one, or ask for it for ever.
type guard struct{ *bucket.Transport }

// attemptsKey finds the counter of a call's attempts in its context.
type attemptsKey struct{}

// counted is a context whose requests are counted.
func counted(ctx context.Context, attempts *int) context.Context {
	return context.WithValue(ctx, attemptsKey{}, attempts)
}

// RoundTrip implements [http.RoundTripper].
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if n, ok := r.Context().Value(attemptsKey{}).(*int); ok {
		*n++ // the attempts of a call follow one another
	}
	resp, err := g.Transport.RoundTrip(r)
	if err != nil || r.Method != http.MethodGet || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	check := pageCheck(r.URL.Query())
	if check == nil {
		return resp, nil
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err != nil {
		return nil, fmt.Errorf("read a listing: %w", err)
	}
	if err := checkPage(page, check); err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(page))
	return resp, nil
}

// page is what every listing has in one form or another.
type page struct {
	IsTruncated           *bool
	KeyCount              *int
	Contents              []struct{}
	CommonPrefixes        []struct{}
	EncodingType          string
	NextContinuationToken string
	NextKeyMarker         string
	NextVersionIDMarker   string `xml:"NextVersionIdMarker"`
	NextUploadIDMarker    string `xml:"NextUploadIdMarker"`
	NextPartNumberMarker  string
}

// pageCheck is the check of whether a truncated page leads on from the request for it; nil when
// the request is for no listing.
func pageCheck(q url.Values) func(page) bool {
	switch {
	case q.Has("list-type"):
		return func(p page) bool {
			return p.NextContinuationToken != "" && p.NextContinuationToken != q.Get("continuation-token")
		}
	case q.Has("versions"):
		return func(p page) bool {
			return leadsOn(p, q.Get("key-marker"), p.NextVersionIDMarker, q.Get("version-id-marker"))
		}
	case q.Has("uploads"):
		return func(p page) bool {
			return leadsOn(p, q.Get("key-marker"), p.NextUploadIDMarker, q.Get("upload-id-marker"))
		}
	case q.Has("uploadId"):
		return func(p page) bool {
			return p.NextPartNumberMarker != "" && p.NextPartNumberMarker != q.Get("part-number-marker")
		}
	}
	return nil
}

// leadsOn compares the markers of the next page with those of this one.
func leadsOn(p page, keyMarker, nextID, idMarker string) bool {
	key := p.NextKeyMarker
	if p.EncodingType == "url" {
		if decoded, err := url.QueryUnescape(key); err == nil {
			key = decoded
		}
	}
	return key != "" && (key != keyMarker || nextID != idMarker)
}

func checkPage(text []byte, next func(page) bool) error {
	if len(text) > maxPage {
		return fmt.Errorf("the store sent a page of a listing of more than %d bytes", maxPage)
	}
	var p page
	if err := xml.Unmarshal(text, &p); err != nil {
		// minio-go would replace an error whose text speaks of an end of file.
		return errors.New("the store sent a page of a listing that is broken off, or is no XML")
	}
	switch {
	case p.IsTruncated == nil:
		return errors.New("the store does not say whether the listing is complete")
	case p.KeyCount != nil && *p.KeyCount != len(p.Contents)+len(p.CommonPrefixes):
		return fmt.Errorf("the store announced %d keys and sent %d", *p.KeyCount, len(p.Contents))
	case *p.IsTruncated && !next(p):
		return errors.New("the store cut the listing short without a way to go on")
	}
	return nil
}
