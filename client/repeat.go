package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/api/types"
)

// Recorded answers the recorded outcome of a publish under a name, and whether there is one. A recorded
// refusal is an error ([ErrPublishRefused]), and so is an operation that was something else than a publish
// under this name ([ErrOperationMismatch]). One that has no outcome yet may still be under way, but no
// longer takes effect once a new lease is taken.
func (c *Client) Recorded(ctx context.Context, pointer string, id uuid.UUID) (types.Published, bool, error) {
	none := types.Published{}
	op, err := c.Operation(ctx, id)
	switch {
	case errors.Is(err, ErrOperationNotFound):
		return none, false, nil
	case err != nil:
		return none, false, err
	case op.Outcome == "acquired":
		return none, false, mismatch(id, "operation %s took a lease", id)
	case op.Outcome == "published" && (len(op.Versions) > 1 || len(op.Versions) == 1 && op.Versions[0].Pointer != pointer):
		return none, false, mismatch(id, "operation %s published something else than %s", id, pointer)
	}
	published, err := publishedBy(op)
	return published, err == nil, err
}

// repeated answers a publish from its recorded outcome, once it is known to have published the same.
func (c *Client) repeated(ctx context.Context, pointer string, files []Source, p Publication) (types.Published, bool, error) {
	if p.OperationID == uuid.Nil {
		return types.Published{}, false, nil
	}
	published, done, err := c.Recorded(ctx, pointer, p.OperationID)
	if done {
		err = c.samePublication(ctx, pointer, published.Version, files, p)
	}
	return published, done && err == nil, err
}

// samePublication reports what a version has otherwise than a publish, as [ErrOperationMismatch]. Of a version
// that cannot be read any more that is not known, and nothing is reported.
func (c *Client) samePublication(ctx context.Context, pointer, version string, files []Source, p Publication) error {
	v, err := c.Version(ctx, pointer, version)
	if unreadable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	other := ""
	switch {
	case !sameJSON(p.Metadata, v.Metadata):
		other = "other metadata"
	case (p.SourceRevision == nil) != (v.SourceRevision == nil) || p.SourceRevision != nil && *p.SourceRevision != *v.SourceRevision:
		other = "another source revision"
	default:
		if other, err = c.otherFiles(ctx, v, files); unreadable(err) {
			return nil // collected meanwhile
		}
	}
	if err != nil || other == "" {
		return err
	}
	return mismatch(p.OperationID, "operation %s published %s %s with %s", p.OperationID, pointer, version, other)
}

// unreadable says of an error that the version is not kept any more, or not this caller's to read.
func unreadable(err error) bool {
	for _, code := range []Code{ErrVersionNotFound, ErrPointerRetired, ErrPointerNotFound, ErrForbidden} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// otherFiles says how a version's files differ from these, "" when they do not.
func (c *Client) otherFiles(ctx context.Context, v types.ResolvedVersion, files []Source) (string, error) {
	want := make(map[string]Source, len(files))
	for _, f := range files {
		want[f.Path] = f
	}
	first, more := "", -1
	differs := func(format, path string) {
		if more++; more == 0 {
			first = fmt.Sprintf(format, path)
		}
	}
	held := make(map[string]bool, v.FileCount)
	for f, err := range c.Files(ctx, v.Name, v.Version) {
		if err != nil {
			return "", err
		}
		held[f.Path] = true
		switch now, ok := want[f.Path]; {
		case !ok:
			differs("it has %q, too", f.Path)
		case now.Digest != f.Digest || now.Size != f.Size:
			differs("%q differs", f.Path)
		}
	}
	for _, f := range files {
		if !held[f.Path] {
			differs("it has no %q", f.Path)
		}
	}
	switch {
	case more > 0:
		return fmt.Sprintf("other files: %s, and %d more", first, more), nil
	case more == 0:
		return "other files: " + first, nil
	}
	return "", nil
}

// sameJSON compares two documents by what they say. Nothing is the same as nothing.
func sameJSON(given json.RawMessage, recorded *json.RawMessage) bool {
	if given == nil || recorded == nil {
		return given == nil && recorded == nil
	}
	var a, b any
	if decode(given, &a) != nil || decode(*recorded, &b) != nil {
		return false
	}
	one, err1 := json.Marshal(a)
	other, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && bytes.Equal(one, other) // the members of objects are sorted
}

// decode keeps numbers as they are written.
func decode(document []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	return d.Decode(v)
}

// mismatch is what the service answers to an operation id that was used for another request.
func mismatch(id uuid.UUID, format string, args ...any) error {
	return &Problem{Code: ErrOperationMismatch, Status: http.StatusUnprocessableEntity, OperationID: id.String(), Detail: fmt.Sprintf(format, args...)}
}
