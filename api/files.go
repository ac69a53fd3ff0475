package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/artifacts"
	"github.com/artifactd/artifactd/pointer"
)

// ListVersionFiles answers the files of a version, by page.
func (s *Server) ListVersionFiles(c echo.Context, name types.Name, token types.VersionToken, params types.ListVersionFilesParams) error {
	t, err := parseToken("token", token)
	if err != nil {
		return err
	}
	var prefix string
	if params.Prefix != nil {
		prefix = *params.Prefix
		if err := checkText("prefix", prefix); err != nil {
			return err
		}
	}
	files, next, err := s.catalogue.Files(c.Request().Context(), name, t, prefix, page(params.Limit, params.Cursor))
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, types.FilePage{Items: s.files(name, t, files), NextCursor: optional(next)})
}

// RedirectToFile leads to the pinned URL of a file of the current version. Whether the version has
// the file is the pinned URL's business.
func (s *Server) RedirectToFile(c echo.Context, name types.Name, path types.Path) error {
	defer boundCall(c, callDeadline)()
	if err := s.checkFilePath(c.Request().Context(), name, path); err != nil {
		return err
	}
	v, err := s.catalogue.Resolve(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return redirect(c, s.fileURL(name, v.Token, path))
}

// HeadCurrentFile is RedirectToFile; a redirect has no body anyway.
func (s *Server) HeadCurrentFile(c echo.Context, name types.Name, path types.Path) error {
	return s.RedirectToFile(c, name, path)
}

// redirect is a 307 that nobody keeps. The URL is encoded already.
func redirect(c echo.Context, url string) error {
	h := c.Response().Header()
	h.Set(echo.HeaderCacheControl, "no-store")
	h.Set(echo.HeaderLocation, url)
	c.Response().WriteHeader(http.StatusTemporaryRedirect)
	return nil
}

// GetFile answers the bytes of a file of a version, or where they are.
func (s *Server) GetFile(c echo.Context, name types.Name, token types.VersionToken, path types.Path, params types.GetFileParams) error {
	f, err := s.lookUpFile(c, name, token, path)
	if err != nil {
		return err
	}
	if noneMatch(c.Request().Header, digestTag(f.Digest)) {
		s.setFileHeaders(c, f)
		return c.NoContent(http.StatusNotModified)
	}
	toStore := s.proxyLimit >= 0 && f.Size > s.proxyLimit && !f.Site
	if params.Via != nil {
		toStore = *params.Via == types.Redirect
	}
	if toStore {
		return s.redirectToStore(c, f)
	}
	err = s.sendFile(c, f)
	if errors.Is(err, errLostBytes) {
		// Rows go before their objects: of a version that is being collected since we looked nothing is lost.
		if _, gone := s.lookUpFile(c, name, token, path); gone != nil {
			return gone
		}
	}
	return err
}

// HeadFile answers the headers of a file. They come from the catalogue; the store is not asked.
func (s *Server) HeadFile(c echo.Context, name types.Name, token types.VersionToken, path types.Path) error {
	f, err := s.lookUpFile(c, name, token, path)
	if err != nil {
		return err
	}
	s.setFileHeaders(c, f)
	if noneMatch(c.Request().Header, digestTag(f.Digest)) {
		return c.NoContent(http.StatusNotModified)
	}
	c.Response().Header().Set(echo.HeaderContentLength, strconv.FormatInt(f.Size, 10))
	c.Response().WriteHeader(http.StatusOK)
	return nil
}

// lookUpFile finds a file of a readable version.
func (s *Server) lookUpFile(c echo.Context, name, token, path string) (pointer.OpenedFile, error) {
	setSendDeadline(c)
	t, err := parseToken("token", token)
	if err != nil {
		return pointer.OpenedFile{}, err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), callDeadline)
	defer cancel()
	if err := s.checkFilePath(ctx, name, path); err != nil {
		return pointer.OpenedFile{}, err
	}
	if isFolder(path) {
		path += indexFile
	}
	return s.catalogue.File(ctx, name, t, path)
}

// indexFile is what stands for its folder where a pointer is a site.
const indexFile = "index.html"

func isFolder(path string) bool { return strings.HasSuffix(path, "/") }

// checkFilePath refuses what is no path of a file; of a site a folder is one too.
func (s *Server) checkFilePath(ctx context.Context, name, path string) error {
	if !isFolder(path) || pointer.CheckPath("path", path+indexFile) != nil {
		return pointer.CheckPath("path", path)
	}
	settings, err := s.catalogue.Settings(ctx, name)
	if err == nil && !settings.Site {
		err = pointer.CheckPath("path", path)
	}
	return err
}

func digestTag(d artifacts.Digest) string { return `"` + d.String() + `"` }

// setFileHeaders says what the bytes are, and keeps a browser from taking a stranger's bytes for
// this service's own.
func (s *Server) setFileHeaders(c echo.Context, f pointer.OpenedFile) {
	audience := "private"
	if f.Public {
		audience = "public" // shared caches may keep it too
	}
	h := c.Response().Header()
	h.Set("ETag", digestTag(f.Digest))
	h.Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(f.Digest[:])+":")
	h.Set(echo.HeaderCacheControl, audience+", max-age=31536000, immutable")
	h.Set("Accept-Ranges", "bytes")
	h.Set(echo.HeaderContentType, f.MediaType)
	h.Set(echo.HeaderXContentTypeOptions, "nosniff")
	if f.Site {
		// Shown, with what a page is made of, and without what acts: no script runs, no form is
		// sent, and the page has an origin of its own, so that it is nobody on this service.
		h.Set(echo.HeaderContentSecurityPolicy, "sandbox; default-src 'none'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; font-src 'self'; media-src 'self'")
		h.Set("Referrer-Policy", "no-referrer")
		return
	}
	h.Set("Content-Disposition", disposition(f.Path))
	h.Set(echo.HeaderContentSecurityPolicy, "sandbox; default-src 'none'")
}

// disposition makes a browser save the file under its own name (RFC 6266, RFC 8187).
func disposition(filePath string) string {
	const plain = "!#$&+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b strings.Builder
	b.WriteString("attachment; filename*=UTF-8''")
	for _, c := range []byte(path.Base(filePath)) {
		if strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// redirectToStore leads to a presigned URL.
func (s *Server) redirectToStore(c echo.Context, f pointer.OpenedFile) error {
	signed, err := s.store.SignGet(c.Request().Context(), f.Key(s.layout),
		artifacts.ReadDisposition{ContentType: f.MediaType, ContentDisposition: disposition(f.Path)}, s.readTTL)
	if err != nil {
		return err
	}
	return redirect(c, signed.URL)
}

// sendFile sends the file, or the requested part of it, through the service.
func (s *Server) sendFile(c echo.Context, f pointer.OpenedFile) error {
	h := c.Response().Header()
	part, partial, err := requestedSpan(c.Request().Header, digestTag(f.Digest), f.Size)
	if err != nil {
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", f.Size))
		return err
	}
	status, length, want := http.StatusOK, f.Size, artifacts.WholeObject
	if partial {
		status, length, want = http.StatusPartialContent, part.length, part.byteRange()
	}
	var body io.ReadCloser = http.NoBody
	if length > 0 {
		if body, err = s.openObject(c.Request().Context(), f, want); err != nil {
			return err
		}
	}
	defer body.Close()
	s.setFileHeaders(c, f)
	if partial {
		h.Set("Content-Range", part.contentRange(f.Size))
	}
	h.Set(echo.HeaderContentLength, strconv.FormatInt(length, 10))
	c.Response().WriteHeader(status)
	n, err := s.copyOut(c, body, length)
	s.metrics.sent.Add(float64(n))
	if err == nil && n != length {
		err = fmt.Errorf("the store sent %d of %d bytes", n, length)
	}
	// The answer has begun: an error breaks off the connection, so that it cannot look complete.
	return err
}

// openObject opens the bytes of a published file. A file whose object is missing or has another
// size is a loss, and no answer to a reader.
func (s *Server) openObject(ctx context.Context, f pointer.OpenedFile, r artifacts.ByteRange) (io.ReadCloser, error) {
	key := f.Key(s.layout)
	body, object, err := s.store.Get(ctx, key, r)
	switch {
	case errors.Is(err, artifacts.ErrNotFound):
		return nil, fmt.Errorf("%w: object %s is missing from the store: %v", errLostBytes, key, err)
	case errors.Is(err, artifacts.ErrBadRange): // what is asked for lies within the file
		return nil, fmt.Errorf("%w: object %s is shorter in the store than %d bytes: %v", errLostBytes, key, f.Size, err)
	}
	if err != nil {
		return nil, err
	}
	if object.Size != f.Size {
		_ = body.Close()
		return nil, fmt.Errorf("%w: object %s has %d bytes in the store, not %d", errLostBytes, key, object.Size, f.Size)
	}
	return body, nil
}

// Buffers of transfers are reused. A large one means fewer and longer system calls, which is all that
// a long transfer costs here; as they count, only maxLargeBuffers are out at once.
const (
	copyBuffer      = 64 << 10
	largeCopyBuffer = 512 << 10
	largeCopy       = 4 << 20 // bytes from which a transfer is long
	maxLargeBuffers = 32
)

var (
	copyBuffers      = sync.Pool{New: func() any { return new(make([]byte, copyBuffer)) }}
	largeCopyBuffers = sync.Pool{New: func() any { return new(make([]byte, largeCopyBuffer)) }}
)

// borrowBuffer is a buffer for a transfer of so many bytes; giveBack takes it back.
func (s *Server) borrowBuffer(length int64) (buffer []byte, giveBack func()) {
	if length >= largeCopy && s.largeCopies.TryAcquire(1) {
		b := largeCopyBuffers.Get().(*[]byte)
		return *b, func() {
			largeCopyBuffers.Put(b)
			s.largeCopies.Release(1)
		}
	}
	b := copyBuffers.Get().(*[]byte)
	return *b, func() { copyBuffers.Put(b) }
}

// copyOut sends so many bytes for as long as they make progress.
func (s *Server) copyOut(c echo.Context, body io.Reader, length int64) (sent int64, err error) {
	buffer, giveBack := s.borrowBuffer(length)
	defer giveBack()
	control := http.NewResponseController(c.Response().Writer)
	var deadline time.Time
	for {
		n, readErr := body.Read(buffer)
		if n > 0 {
			if now := time.Now(); deadline.Sub(now) < stallLimit-stallRefresh {
				deadline = now.Add(stallLimit)
				_ = control.SetWriteDeadline(deadline)
			}
			w, err := c.Response().Write(buffer[:n])
			sent += int64(w)
			if err != nil {
				return sent, err
			}
		}
		if errors.Is(readErr, io.EOF) {
			return sent, nil
		}
		if readErr != nil {
			return sent, readErr
		}
	}
}
