package bucket

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/artifactd/artifactd/artifacts"
)

// UploadsPage is a page of the listing of multipart uploads, in the order of their keys unless it
// is the only one. NextKey is the key that it ends with, where it does not end the listing.
type UploadsPage struct {
	Uploads   []artifacts.Multipart
	Truncated bool
	NextKey   string
}

// ListMultiparts walks all pages and yields what lies under the prefix. ask gets the page of the
// keys after the marker; its errors are translated already.
//
// The listing is asked for without a prefix, because MinIO would take one for a whole key. It is
// continued by key alone, because versitygw refuses the markers of upload ids that it gives out:
// the uploads of a page's last key, which may go on in the next page, are listed again there.
func ListMultiparts(ctx context.Context, prefix string, ask func(ctx context.Context, keyMarker string) (UploadsPage, error)) iter.Seq2[artifacts.Multipart, error] {
	return func(yield func(artifacts.Multipart, error) bool) {
		marker := ""
		seen := map[string]bool{} // the upload ids that come again
		for {
			page, err := ask(ctx, marker)
			if err != nil {
				yield(artifacts.Multipart{}, err)
				return
			}
			for _, m := range page.Uploads {
				if strings.HasPrefix(m.Key, prefix) && !seen[m.UploadID] && !yield(m, nil) {
					return
				}
			}
			if !page.Truncated {
				return
			}
			if marker, err = page.next(marker); err != nil {
				yield(artifacts.Multipart{}, fmt.Errorf("s3: list the multipart uploads: %w: %w", artifacts.ErrStoreUnavailable, err))
				return
			}
			seen = map[string]bool{}
			for _, m := range page.Uploads {
				if m.Key > marker {
					seen[m.UploadID] = true
				}
			}
		}
	}
}

// next is the marker to go on from: the last key but one of the page.
func (p UploadsPage) next(marker string) (string, error) {
	last, before := "", marker
	for _, m := range p.Uploads {
		if m.Key <= marker || m.Key < last {
			return "", fmt.Errorf("the store sent the key %q after %q and the marker %q: it does not list in order", m.Key, last, marker)
		}
		if m.Key > last && last != "" {
			before = last
		}
		last = m.Key
	}
	switch {
	case last == "" || last != p.NextKey:
		return "", errors.New("the store cut the listing short without a way to go on")
	case before == marker:
		return "", fmt.Errorf("more uploads to %q are in progress than one page lists: abort some of them", last)
	}
	return before, nil
}
