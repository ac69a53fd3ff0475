package client_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/client"
)

// A publish that is repeated is answered from its recorded outcome, if it is the same; no lease is taken
// for it, and no file is sent.
func TestRepeatedPublish(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	const files = 1500 // more than a page
	source := func(i int, digest string) client.Source {
		return client.Source{Path: fmt.Sprintf("f%04d", i), Digest: digest, Size: int64(i)}
	}
	page := func(from, to int, next *string) types.FilePage {
		p := types.FilePage{NextCursor: next}
		for i := from; i < to; i++ {
			p.Items = append(p.Items, types.File{Path: source(i, "").Path, Digest: "sha256:a", Size: int64(i)})
		}
		return p
	}
	published := types.Operation{OperationId: id, Outcome: "published", Versions: []types.PublishedVersion{{Pointer: "a", Version: "1.7"}}}
	for name, tc := range map[string]struct {
		operation any
		version   http.HandlerFunc
		change    func([]client.Source) []client.Source
		says      string // "" when it is the same
		code      client.Code
	}{
		"the same": {operation: published},
		"others": {operation: published, change: func(s []client.Source) []client.Source {
			s[7] = source(7, "sha256:b")
			s[1400].Size++
			return append(s[:1499], source(2000, "sha256:a"))
		}, says: `published a 1.7 with other files: "f0007" differs, and 3 more`, code: client.ErrOperationMismatch},
		"collected":   {operation: published, version: refuses(http.StatusNotFound, "version-not-found")},
		"unavailable": {operation: published, version: refuses(http.StatusTeapot, "internal"), says: "internal", code: client.ErrInternal},
		"of several pointers": {operation: types.Operation{Outcome: "published", Versions: []types.PublishedVersion{{Pointer: "a", Version: "1.7"}, {Pointer: "b", Version: "1.1"}}},
			says: "something else than a", code: client.ErrOperationMismatch},
		"a lease":   {operation: types.Operation{Outcome: "acquired"}, says: "took a lease", code: client.ErrOperationMismatch},
		"a refusal": {operation: types.Operation{Outcome: "aborted"}, says: "publish-refused (aborted)", code: client.ErrPublishRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.on("GET /v1/operations/"+id.String(), replies(200, tc.operation))
			s.on("GET /v1/pointers/a/versions/1.7", replies(200, types.ResolvedVersion{Name: "a", Version: "1.7", FileCount: files}))
			if tc.version != nil {
				s.on("GET /v1/pointers/a/versions/1.7", tc.version)
			}
			s.on("GET /v1/pointers/a/versions/1.7/files", replies(200, page(0, 1000, new("next"))), replies(200, page(1000, files, nil)))
			var given []client.Source
			for i := range files {
				given = append(given, source(i, "sha256:a"))
			}
			if tc.change != nil {
				given = tc.change(given)
			}
			p, err := s.client(t).PublishFiles(t.Context(), "a", given, client.AcquireOptions{Holder: "h"}, client.Publication{OperationID: id}, nil)
			switch {
			case tc.says == "" && (err != nil || p.Version != "1.7"):
				t.Errorf("%+v, %v", p, err)
			case tc.says != "" && (err == nil || !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%+v, %v; want %q", p, err, tc.says)
			}
		})
	}
}
