package api

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// The generated files are what the document and the pinned generator give.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	t.Parallel()
	for _, g := range []struct{ folder, config, document, file string }{
		{".", "oapi-codegen.yaml", "openapi.yaml", "server.gen.go"},
		{"types", "oapi-codegen.yaml", "../openapi.yaml", "types.gen.go"},
	} {
		tools, err := filepath.Abs(filepath.Join("..", "tools", "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		fresh := filepath.Join(t.TempDir(), g.file)
		config, err := os.ReadFile(filepath.Join(g.folder, g.config))
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := strings.Replace(string(config), "output: "+g.file, "output: "+fresh, 1)
		if elsewhere == string(config) {
			t.Fatalf("%s does not write %s", g.config, g.file)
		}
		if err := os.WriteFile(fresh+".yaml", []byte(elsewhere), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+tools, "oapi-codegen", "-config", fresh+".yaml", g.document)
		cmd.Dir = g.folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		want, err := os.ReadFile(fresh)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(g.folder, g.file))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what the document gives: run go generate ./api/...", filepath.Join("api", g.folder, g.file))
		}
	}
}

// Every operation of the document is routed to a handler, says what it needs, and is in the access
// tests; and nothing else is routed.
func TestEveryOperationHasAHandler(t *testing.T) {
	t.Parallel()
	operations, err := loadOperations(document)
	if err != nil {
		t.Fatal(err)
	}
	e := echo.New()
	RegisterHandlers(e, (*Server)(nil))
	routed := map[string]bool{}
	for _, r := range e.Routes() {
		routed[r.Method+" "+r.Path] = true
	}
	handlers := reflect.TypeFor[ServerInterface]()
	for id, op := range operations {
		if _, ok := handlers.MethodByName(id); !ok {
			t.Errorf("%s has no handler", id)
		}
		path := strings.NewReplacer("{", ":", "}", "").Replace(op.route.Path)
		if !routed[op.route.Method+" "+path] {
			t.Errorf("%s is not routed", id)
		}
		if calls[id] == nil {
			t.Errorf("%s is not in the access tests", id)
		}
		delete(routed, op.route.Method+" "+path)
	}
	if len(routed) > 0 || handlers.NumMethod() != len(operations) {
		t.Errorf("routed without being in the document: %v", routed)
	}
	for _, names := range []map[string]bool{hotOperations, unboundedOperations} {
		for id := range names {
			if operations[id] == nil {
				t.Errorf("there is no operation %s", id)
			}
		}
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string][2]string{
		"no access level":      {"      x-access: publish\n", ""},
		"unknown access level": {"      x-access: publish\n", "      x-access: root\n"},
		"not a document":       {"openapi: 3.0.3\n", ""},
	} {
		text := strings.Replace(string(document), broken[0], broken[1], 1)
		if text == string(document) {
			t.Fatalf("%s: nothing to break", what)
		}
		if _, err := loadOperations([]byte(text)); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}
