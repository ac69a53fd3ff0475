package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// maxWait bounds ?wait= and wait_seconds.
const maxWait = 60 * time.Second

// ResolvePointer answers the current version, or waits for a newer one.
func (s *Server) ResolvePointer(c echo.Context, name types.Name, params types.ResolvePointerParams) error {
	wait := time.Duration(0)
	if params.Wait != nil {
		wait = seconds(min(*params.Wait, maxWait.Seconds()))
	}
	defer boundCall(c, wait+callDeadline)()
	v, err := s.catalogue.Resolve(c.Request().Context(), name)
	if wait > 0 && s.shouldWait(c, v, err) {
		v, err = s.awaitNewer(c.Request().Context(), name, v, wait)
	}
	return s.writeVersion(c, v, err)
}

// HeadPointer answers a resolve's headers.
func (s *Server) HeadPointer(c echo.Context, name types.Name) error {
	return s.ResolvePointer(c, name, types.ResolvePointerParams{})
}

// shouldWait reports whether the caller knows what there is already: the version named in
// If-None-Match, or nothing while nothing is published.
func (s *Server) shouldWait(c echo.Context, v *pointer.Version, err error) bool {
	if err != nil {
		return errors.Is(err, pointer.ErrNothingPublished)
	}
	return noneMatch(c.Request().Header, versionTag(v.Token))
}

// awaitNewer waits until the pointer shows something other than v (nil: anything), and resolves
// it again. When the server shuts down the wait is over.
func (s *Server) awaitNewer(ctx context.Context, name string, v *pointer.Version, wait time.Duration) (*pointer.Version, error) {
	var known pointer.Token
	if v != nil {
		known = v.Token
	}
	waiting, stop := s.untilDraining(ctx, true)
	defer stop()
	newer, err := s.catalogue.ResolveNewer(waiting, name, known, wait)
	if waiting.Err() != nil && ctx.Err() == nil {
		return s.catalogue.Resolve(ctx, name)
	}
	return newer, err
}

func versionTag(t pointer.Token) string { return `"` + t.String() + `"` }

// writeVersion answers a resolve: 200, 304 or the error.
func (s *Server) writeVersion(c echo.Context, v *pointer.Version, err error) error {
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Set("ETag", versionTag(v.Token))
	h.Set(echo.HeaderCacheControl, "no-cache")
	if noneMatch(c.Request().Header, versionTag(v.Token)) {
		return c.NoContent(http.StatusNotModified)
	}
	body, err := s.encoded(c, v)
	if err != nil {
		return err
	}
	if c.Request().Method == http.MethodHead {
		return headJSON(c, len(body))
	}
	return writeBody(c, http.StatusOK, body)
}

// encoded is the answer that has a version. A large one is counted before it is made.
func (s *Server) encoded(c echo.Context, v *pointer.Version) ([]byte, error) {
	if size := encodedSize(v); size > largeAnswer {
		done, err := s.hold(c, size)
		if err != nil {
			return nil, err
		}
		defer done()
	}
	return s.bodies.get(v, s.resolvedVersion)
}

// resolvedVersion spells a version for readers.
func (s *Server) resolvedVersion(v *pointer.Version) types.ResolvedVersion {
	return types.ResolvedVersion{
		Name:           v.Pointer,
		Version:        v.Token.String(),
		Epoch:          v.Token.Epoch,
		Generation:     v.Token.Generation,
		PublishedAt:    v.PublishedAt.UTC(),
		Holder:         v.Holder,
		SourceRevision: v.SourceRevision,
		Metadata:       optionalJSON(v.Metadata),
		FileCount:      int32(v.FileCount),
		Files:          s.files(v.Pointer, v.Token, v.Files),
		FilesTruncated: v.FilesTruncated,
	}
}

// files spells the files of a version.
func (s *Server) files(name string, token pointer.Token, in []pointer.File) []types.File {
	out := make([]types.File, 0, len(in))
	for _, f := range in {
		out = append(out, types.File{
			Path: f.Path, Digest: f.Digest.String(), Size: f.Size, MediaType: f.MediaType,
			Url: s.fileURL(name, token, f.Path),
		})
	}
	return out
}

// ResolveMany answers several pointers from one snapshot.
func (s *Server) ResolveMany(c echo.Context) error {
	in, err := decode[types.ResolveRequest](c)
	if err != nil {
		return err
	}
	who := callerOf(c)
	versions, errs, err := s.catalogue.ResolveMany(c.Request().Context(), in.Names, func(name string, public bool) bool {
		return public || who.may(pointer.ScopeRead, name)
	})
	if err != nil {
		return err
	}
	var forbidden []string
	for i, name := range in.Names {
		if errors.Is(errs[i], pointer.ErrUnreadable) {
			forbidden = append(forbidden, name)
		}
	}
	s.auditForbidden(c, forbidden)
	// The answer can be of tens of megabytes, which are counted before they are made.
	size := int64(0)
	for _, v := range versions {
		if v != nil {
			size += encodedSize(v)
		}
	}
	done, err := s.hold(c, size)
	if err != nil {
		return err
	}
	defer done()
	items := make([]types.ResolveItem, 0, len(in.Names))
	for i, name := range in.Names {
		items = append(items, s.resolveItem(name, versions[i], errs[i]))
	}
	return writeJSON(c, http.StatusOK, types.ResolveResponse{Items: items})
}

// encodedSize is about how many bytes a version has as JSON: a path stands there twice, and once of
// that percent-encoded.
func encodedSize(v *pointer.Version) int64 {
	n := 512 + len(v.Metadata) + len(v.Holder)
	for _, f := range v.Files {
		n += 256 + len(v.Pointer) + len(f.MediaType) + 4*len(f.Path)
	}
	return int64(n)
}

// resolveItem is a version, or the code that says why there is none.
func (s *Server) resolveItem(name string, v *pointer.Version, err error) types.ResolveItem {
	if err != nil {
		p, _, _ := problemOf(err)
		return types.ResolveItem{Name: name, Code: &p.Code}
	}
	r := s.resolvedVersion(v)
	return types.ResolveItem{
		Name: name, Version: &r.Version, Epoch: &r.Epoch, Generation: &r.Generation, PublishedAt: &r.PublishedAt,
		Holder: &r.Holder, SourceRevision: r.SourceRevision, Metadata: r.Metadata, FileCount: &r.FileCount,
		Files: r.Files, FilesTruncated: &r.FilesTruncated,
	}
}

// maxResolvedBytes bounds the encoded versions that are kept, and maxResolvedBody the size of one.
const (
	maxResolvedBytes = 16 << 20
	maxResolvedBody  = 256 << 10
)

// resolvedBodies keeps encoded versions by pointer. A version never changes, so an entry is good
// for as long as its version is the one that the catalogue answers; what is current is never kept.
type resolvedBodies struct {
	mu      sync.RWMutex
	entries map[string]resolvedBody
	bytes   int
}

type resolvedBody struct {
	version uuid.UUID
	body    []byte
}

func newResolvedBodies() *resolvedBodies {
	return &resolvedBodies{entries: make(map[string]resolvedBody)}
}

// get is the encoded version; callers must not change it.
func (b *resolvedBodies) get(v *pointer.Version, spell func(*pointer.Version) types.ResolvedVersion) ([]byte, error) {
	b.mu.RLock()
	e := b.entries[v.Pointer]
	b.mu.RUnlock()
	if e.version == v.ID {
		return e.body, nil
	}
	body, err := json.Marshal(spell(v))
	if err == nil && len(body) <= maxResolvedBody {
		b.put(v.Pointer, resolvedBody{version: v.ID, body: body})
	}
	return body, err
}

func (b *resolvedBodies) put(name string, e resolvedBody) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes+len(e.body) > maxResolvedBytes {
		clear(b.entries)
		b.bytes = 0
	}
	b.bytes += len(e.body) - len(b.entries[name].body)
	b.entries[name] = e
}
