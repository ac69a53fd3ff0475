package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/api/types"
	"github.com/artifactd/artifactd/pointer"
)

// ListPointers answers the pointers that the caller may read.
func (s *Server) ListPointers(c echo.Context, params types.ListPointersParams) error {
	who := callerOf(c)
	var prefix string
	if params.Prefix != nil {
		prefix = *params.Prefix
	}
	items, next, err := s.catalogue.ListPointers(c.Request().Context(), prefix, who.known.Patterns, page(params.Limit, params.Cursor))
	if err != nil {
		return err
	}
	out := types.PointerPage{Items: make([]types.PointerItem, 0, len(items)), NextCursor: optional(next)}
	for _, p := range items {
		item := pointerItem(p)
		if !who.may(pointer.ScopeRead, item.Name) {
			// It is listed because it is public; who works on it is not.
			item.Lease = types.LeaseStatus{Live: item.Lease.Live}
		}
		out.Items = append(out.Items, item)
	}
	return writeJSON(c, http.StatusOK, out)
}

// PutPointer creates a pointer or changes its settings.
func (s *Server) PutPointer(c echo.Context, name types.Name) error {
	in, err := decode[types.PutPointerRequest](c)
	if err != nil {
		return err
	}
	change := pointer.SettingsChange{KeepSeconds: in.KeepSeconds, Public: in.Public, Site: in.Site}
	if in.KeepVersions != nil {
		change.KeepVersions = new(int(*in.KeepVersions))
	}
	if in.Labels != nil {
		change.Labels = *in.Labels
	}
	settings, created, err := s.catalogue.PutPointer(c.Request().Context(), name, change)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		c.Response().Header().Set(echo.HeaderLocation, s.publicURL+"/v1/pointers/"+name)
	}
	return writeJSON(c, status, pointerSettings(settings))
}

// GetPointerSettings answers a pointer's settings.
func (s *Server) GetPointerSettings(c echo.Context, name types.Name) error {
	settings, err := s.catalogue.Settings(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, pointerSettings(settings))
}

// GetPointerLease tells who holds the lease, without the id that entitles its holder.
func (s *Server) GetPointerLease(c echo.Context, name types.Name) error {
	state, err := s.catalogue.LeaseState(c.Request().Context(), name)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, leaseStatus(state))
}

// RetirePointer ends a pointer for now; its numbers go on when the name is created again.
func (s *Server) RetirePointer(c echo.Context, name types.Name, params types.RetirePointerParams) error {
	var current pointer.Token
	if params.CurrentToken != nil {
		t, err := parseToken("current_token", *params.CurrentToken)
		if err != nil {
			return err
		}
		current = t
	}
	if err := s.catalogue.Retire(c.Request().Context(), name, current); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// BreakLease ends somebody else's lease.
func (s *Server) BreakLease(c echo.Context, name types.Name) error {
	in, err := decode[types.BreakLeaseRequest](c)
	if err != nil {
		return err
	}
	token, err := parseToken("token", in.Token)
	if err != nil {
		return err
	}
	if err := s.catalogue.BreakLease(c.Request().Context(), name, token); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// ListVersions answers the history, newest first.
func (s *Server) ListVersions(c echo.Context, name types.Name, params types.ListVersionsParams) error {
	entries, next, err := s.catalogue.Versions(c.Request().Context(), name, page(params.Limit, params.Cursor))
	if err != nil {
		return err
	}
	out := types.GenerationPage{Items: make([]types.Generation, 0, len(entries)), NextCursor: optional(next)}
	for _, e := range entries {
		out.Items = append(out.Items, generation(name, e))
	}
	return writeJSON(c, http.StatusOK, out)
}

// GetVersion answers one version by its token.
func (s *Server) GetVersion(c echo.Context, name types.Name, token types.VersionToken) error {
	t, err := parseToken("token", token)
	if err != nil {
		return err
	}
	v, err := s.catalogue.Version(c.Request().Context(), name, t)
	if err != nil {
		return err
	}
	return writeJSON(c, http.StatusOK, s.resolvedVersion(v))
}

// PinVersion holds a version against retention.
func (s *Server) PinVersion(c echo.Context, name types.Name, token types.VersionToken) error {
	return s.setPin(c, name, token, true)
}

// UnpinVersion lets retention have a version again.
func (s *Server) UnpinVersion(c echo.Context, name types.Name, token types.VersionToken) error {
	return s.setPin(c, name, token, false)
}

func (s *Server) setPin(c echo.Context, name, token string, pinned bool) error {
	t, err := parseToken("token", token)
	if err != nil {
		return err
	}
	if err := s.catalogue.Pin(c.Request().Context(), name, t, pinned); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// Rollback publishes an old version's files again.
func (s *Server) Rollback(c echo.Context, name types.Name) error {
	in, err := decode[types.RollbackRequest](c)
	if err != nil {
		return err
	}
	to, err := parseToken("to", in.To)
	if err != nil {
		return err
	}
	current, err := parseToken("current_token", in.CurrentToken)
	if err != nil {
		return err
	}
	version, err := s.catalogue.Rollback(c.Request().Context(), pointer.RollbackRequest{
		Pointer: name, To: to, Current: current, OperationID: in.OperationId, Holder: callerOf(c).holder(),
	})
	if err != nil {
		return err
	}
	return writePublished(c, in.OperationId, version)
}
