package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
	"unicode"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// defaultLimit is how many items a page has unless the caller says.
const defaultLimit = 100

// page reads the parameters of a list.
func page(limit *types.Limit, cursor *types.Cursor) pointer.Page {
	p := pointer.Page{Limit: defaultLimit}
	if limit != nil {
		p.Limit = *limit
	}
	if cursor != nil {
		p.Cursor = *cursor
	}
	return p
}

// parseToken reads a token that the document has checked already, except for its range.
func parseToken(field, text string) (pointer.Token, error) {
	t, err := pointer.ParseToken(text)
	if err != nil {
		return t, invalid(field, "%s: %v", field, err)
	}
	return t, nil
}

// seconds is a number of seconds as a duration. Callers have checked its range.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// hasControl reports whether a text has control characters.
func hasControl(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return true
		}
	}
	return false
}

// optionalJSON is nil when there is none, so that the member is left out.
func optionalJSON(m json.RawMessage) *types.Metadata {
	if len(m) == 0 {
		return nil
	}
	return &m
}

// optionalTime is in UTC, or nil.
func optionalTime(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// headJSON answers a HEAD with the headers of a JSON body of that many bytes.
func headJSON(c echo.Context, size int) error {
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, jsonMediaType)
	h.Set(echo.HeaderContentLength, strconv.Itoa(size))
	c.Response().WriteHeader(http.StatusOK)
	return nil
}

func pointerSettings(s pointer.Settings) types.PointerSettings {
	return types.PointerSettings{
		Name: s.Name, KeepVersions: int32(s.KeepVersions), KeepSeconds: s.KeepSeconds, Public: s.Public, Site: s.Site,
		Labels: labels(s.Labels), CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC(), RetiredAt: optionalTime(s.RetiredAt),
	}
}

// labels are never null in an answer.
func labels(in map[string]string) types.Labels {
	if in == nil {
		return types.Labels{}
	}
	return in
}

func pointerItem(p pointer.Summary) types.PointerItem {
	s := pointerSettings(p.Settings)
	item := types.PointerItem{
		Name: s.Name, KeepVersions: s.KeepVersions, KeepSeconds: s.KeepSeconds, Public: s.Public, Site: s.Site, Labels: s.Labels,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, RetiredAt: s.RetiredAt, Lease: leaseStatus(p.Lease),
	}
	if p.Current != nil {
		item.CurrentVersion = new(p.Current.String())
	}
	return item
}

func leaseStatus(l pointer.LeaseState) types.LeaseStatus {
	if !l.Live {
		return types.LeaseStatus{}
	}
	return types.LeaseStatus{Live: true, Holder: &l.Holder, Token: new(l.Token.String()), ExpiresInSeconds: new(l.ExpiresIn.Seconds())}
}

func lease(l pointer.Lease) types.Lease {
	return types.Lease{
		LeaseId: l.ID, Pointer: l.Pointer, Token: l.Token.String(), Epoch: l.Token.Epoch, Generation: l.Token.Generation,
		Holder: l.Holder, State: string(l.State), AcquiredAt: l.AcquiredAt.UTC(), ExpiresAt: l.ExpiresAt.UTC(),
		ExpiresInSeconds: max(l.ExpiresIn.Seconds(), 0), TtlSeconds: l.TTL.Seconds(),
	}
}

func generation(name string, e pointer.HistoryEntry) types.Generation {
	g := types.Generation{
		Pointer: name, Version: e.Token.String(), Epoch: e.Token.Epoch, Generation: e.Token.Generation,
		State: string(e.State), Holder: e.Holder, AcquiredAt: e.AcquiredAt.UTC(), EndedAt: optionalTime(e.EndedAt),
		PublishedAt: optionalTime(e.PublishedAt), DisplacedAt: optionalTime(e.DisplacedAt), CollectedAt: optionalTime(e.CollectedAt),
		Current: e.Current, Readable: e.Readable, Pinned: e.Pinned, FileCount: int32(e.FileCount), TotalBytes: e.TotalBytes,
		SourceRevision: e.SourceRevision,
	}
	if e.RollbackOf != nil {
		g.RollbackOf = new(e.RollbackOf.String())
	}
	if e.RecoveredFrom != nil {
		g.RecoveredFrom = new(e.RecoveredFrom.String())
	}
	return g
}

func artifact(a pointer.Artifact) types.Artifact {
	return types.Artifact{
		ArtifactId: a.ID, Digest: a.Digest.String(), Size: a.Size, MediaType: a.MediaType,
		State: artifactState(a.Stored), Verified: optional(a.Verified),
	}
}

func artifactState(stored bool) string {
	if stored {
		return "stored"
	}
	return "pending"
}

func publishedVersions(in []pointer.PublishedVersion) []types.PublishedVersion {
	out := make([]types.PublishedVersion, 0, len(in))
	for _, v := range in {
		out = append(out, types.PublishedVersion{Pointer: v.Pointer, Version: v.Version.String()})
	}
	return out
}

// operationOutcome spells a recorded outcome. A single refusal's reason, or a single version, also
// stands by itself.
func operationOutcome(o pointer.Outcome) types.Operation {
	out := types.Operation{OperationId: o.OperationID, Outcome: o.Kind, Refusals: refusals(o.Refusals)}
	if len(o.Refusals) > 0 {
		out.Reason = new(string(o.Refusals[0].Reason))
	}
	if len(o.Versions) > 0 {
		out.Versions = publishedVersions(o.Versions)
	}
	if len(o.Versions) == 1 {
		out.Version = new(o.Versions[0].Version.String())
	}
	if o.Lease != nil {
		out.Lease = new(lease(*o.Lease))
	}
	return out
}
