package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/labstack/echo/v4"

	"github.com/artifactd/artifactd/pointer"
)

// access is what an operation needs of its caller, as x-access in the document says.
type access string

const (
	accessPublic     access = "public"      // nothing
	accessToken      access = "token"       // any valid token
	accessReadPublic access = "read-public" // read, unless the pointer is public
	accessRead       access = "read"
	accessPublish    access = "publish"
	accessAdmin      access = "admin"
)

// scope is the scope that an access level asks for; empty where it asks for none.
func (a access) scope() pointer.Scope {
	switch a {
	case accessRead, accessReadPublic:
		return pointer.ScopeRead
	case accessPublish:
		return pointer.ScopePublish
	case accessAdmin:
		return pointer.ScopeAdmin
	}
	return ""
}

// operation is one operation of the document, ready to check requests against.
type operation struct {
	id     string
	access access
	named  bool // its path names a pointer
	route  *routers.Route
	// parameters of the path and of the query.
	parameters []*openapi3.Parameter
	body       bodyKind
	// hot operations are checked by their handlers alone while they carry no query.
	hot bool
	// unbounded operations move bytes or wait, and have no deadline as a whole.
	unbounded bool
	// waits: it may wait for something to happen, and holds no database connection while it does.
	waits bool
}

// bodyKind is what an operation takes as its body.
type bodyKind int

const (
	bodyNone bodyKind = iota
	bodyJSON
	bodyBytes
)

// hotOperations are the reads whose cost counts; checking them against the document would be a
// good part of it.
var hotOperations = map[string]bool{
	"ResolvePointer": true, "HeadPointer": true, "RedirectToFile": true, "HeadCurrentFile": true, "GetFile": true, "HeadFile": true,
}

// unboundedOperations set deadlines of their own.
var unboundedOperations = map[string]bool{
	"GetFile": true, "PutArtifactContent": true, "PutArtifactPart": true, "CompleteArtifact": true, "CompleteLease": true, "PutLeaseContent": true, "RunGc": true, "GetGcRun": true, "ResolvePointer": true, "AcquireLease": true,
}

// waitingOperations may wait: for a newer version, or for somebody else's lease to end.
var waitingOperations = map[string]bool{"ResolvePointer": true, "AcquireLease": true}

// loadOperations reads the document and indexes its operations by id.
func loadOperations(document []byte) (map[string]*operation, error) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(document)
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(loader.Context); err != nil {
		return nil, err
	}
	out := make(map[string]*operation)
	for path, item := range doc.Paths.Map() {
		for method, o := range item.Operations() {
			op, err := newOperation(o)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			op.named = item.Parameters.GetByInAndName(openapi3.ParameterInPath, "name") != nil
			for _, p := range slices.Concat(item.Parameters, o.Parameters) {
				op.parameters = append(op.parameters, p.Value)
			}
			op.route = &routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: o}
			out[op.id] = op
		}
	}
	return out, nil
}

func newOperation(o *openapi3.Operation) (*operation, error) {
	level, _ := o.Extensions["x-access"].(string)
	op := &operation{id: o.OperationID, access: access(level), hot: hotOperations[o.OperationID], unbounded: unboundedOperations[o.OperationID], waits: waitingOperations[o.OperationID]}
	switch op.access {
	case accessPublic, accessToken, accessReadPublic, accessRead, accessPublish, accessAdmin:
	default:
		return nil, fmt.Errorf("x-access is %q; every operation needs one of the levels that the introduction lists", level)
	}
	if op.id == "" {
		return nil, errors.New("operationId is missing")
	}
	if o.RequestBody != nil {
		op.body = bodyBytes
		if o.RequestBody.Value.Content[jsonMediaType] != nil {
			op.body = bodyJSON
		}
	}
	return op, nil
}

// Deadlines of the calls that do not move bytes.
const (
	admitDeadline = 10 * time.Second // for asking the database who calls and what that caller may do
	callDeadline  = 30 * time.Second // for the handler
	sendDeadline  = 30 * time.Second // for writing the answer after that
)

// guard checks who calls and what is asked before an operation's handler runs. Who comes first,
// so that a stranger learns nothing from the checks.
func (s *Server) guard(op *operation) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set(operationKey, op)
			done, err := s.admit(c, op)
			if err != nil {
				return err
			}
			defer done()
			params, err := pathParams(c)
			if err != nil {
				return err
			}
			if err := s.checkParameters(c, op, params); err != nil {
				return err
			}
			if op.named {
				if err := s.authorize(c, op, params["name"]); err != nil {
					return err
				}
			}
			if op.body == bodyJSON {
				consumed, err := s.takeJSON(c, op)
				if err != nil {
					return err
				}
				defer consumed()
			}
			if !op.unbounded {
				defer boundCall(c, callDeadline)()
			}
			err = s.callSafely(next, c)
			s.auditAct(c, op, err)
			return err
		}
	}
}

// admit lets a request in. What it returns is to be called when the request is answered.
func (s *Server) admit(c echo.Context, op *operation) (done func(), err error) {
	switch {
	case op.id == "GetHealth": // whether this process answers does not depend on who asks
		return func() {}, nil
	case op.access == accessPublic:
		return s.limits.enter(c, s.limits.addresses.of(s.limits.address(c)), op)
	}
	return s.authenticate(c, op)
}

// pathParams are the decoded path parameters by name.
func pathParams(c echo.Context) (map[string]string, error) {
	names := c.ParamNames()
	if len(names) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(names))
	for i, v := range c.ParamValues() {
		if i >= len(names) {
			break
		}
		decoded, err := url.PathUnescape(v)
		if err != nil {
			return nil, invalid(names[i], "%s: not percent-encoded correctly", names[i])
		}
		out[names[i]] = decoded
	}
	return out, nil
}

// checkParameters holds path and query against the document.
func (s *Server) checkParameters(c echo.Context, op *operation, params map[string]string) error {
	r := c.Request()
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("query", "query: not percent-encoded correctly")
	}
	if op.hot && r.URL.RawQuery == "" {
		return nil
	}
	// One by one: the library's whole check of a request reads the body into memory on its way.
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: op.route, Options: &openapi3filter.Options{SkipSettingDefaults: true},
	}
	for _, p := range op.parameters {
		if p.In == openapi3.ParameterInQuery && len(query[p.Name]) > 1 {
			return invalid(p.Name, "%s: it stands %d times in the query; once is enough", p.Name, len(query[p.Name]))
		}
		if err := openapi3filter.ValidateParameter(r.Context(), input, p); err != nil {
			return err
		}
	}
	return nil
}

// boundCall gives the handler a deadline, and the connection one for sending the answer. What it
// returns is to be called when the handler is done.
func boundCall(c echo.Context, d time.Duration) (done func()) {
	cancel := bindContext(c, d)
	// A connection that does not take deadlines (a test's recorder) goes without.
	_ = http.NewResponseController(c.Response().Writer).SetWriteDeadline(time.Now().Add(d + sendDeadline))
	return cancel
}
