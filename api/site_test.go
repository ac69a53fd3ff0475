package api

import (
	"strings"
	"testing"

	"github.com/artifactd/artifactd/api/types"
)

// A stranger's page is shown only where the pointer says so, and then it cannot act.
func TestSite(t *testing.T) {
	t.Parallel()
	h := newHarness(t, setup{})
	h.admin.create("p")
	version := h.admin.publishFiles("p", map[string]string{"index.html": "<h1>top", "docs/index.html": "<h1>docs", "docs/a.css": "p{}", "empty/x": "x"})
	pinned := "/v1/pointers/p/versions/" + version + "/files/"
	browser := h.anonymous()

	get := func(path string) answer {
		t.Helper()
		a := h.admin.do("GET", path, nil).want(200)
		if a.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(a.header.Get("Content-Security-Policy"), "sandbox; default-src 'none'") {
			t.Errorf("%s: unsafe headers %v", path, a.header)
		}
		return a
	}
	// Off by default.
	a := get(pinned + "index.html")
	if !strings.HasPrefix(a.header.Get("Content-Disposition"), "attachment") || strings.Contains(a.header.Get("Content-Security-Policy"), "'self'") {
		t.Errorf("headers %v", a.header)
	}
	for _, path := range []string{pinned + "docs/", "/v1/pointers/p/files/docs/"} {
		h.admin.do("GET", path, nil).invalid("path")
	}

	settings := decoded[types.PointerSettings](h.admin.do("PUT", "/v1/pointers/p", map[string]any{"site": true}).want(200))
	if !settings.Site || settings.Public {
		t.Errorf("settings %+v", settings)
	}
	if again := decoded[types.PointerSettings](h.admin.do("PUT", "/v1/pointers/p", map[string]any{"keep_versions": 7}).want(200)); !again.Site {
		t.Error("another setting changed this one")
	}
	for path, want := range map[string]string{"docs/": "<h1>docs", "docs/a.css": "p{}", "index.html": "<h1>top"} {
		a := get(pinned + path)
		csp := a.header.Get("Content-Security-Policy")
		if string(a.body) != want || a.header.Get("Content-Disposition") != "" || a.header.Get("Set-Cookie") != "" {
			t.Errorf("%q: %s, headers %v", path, a.body, a.header)
		}
		if strings.Contains(csp, "allow-") || strings.Contains(csp, "script-src") || !strings.Contains(csp, "style-src 'self'") {
			t.Errorf("%q: policy %q", path, csp)
		}
		h.admin.do("HEAD", pinned+path, nil).want(200)
	}
	if a := h.admin.do("GET", "/v1/pointers/p/files/docs/", nil).want(307); a.header.Get("Location") != pinned+"docs/" {
		t.Errorf("leads to %s", a.header.Get("Location"))
	}
	h.admin.do("GET", pinned+"empty/", nil).problem(404, "file-not-found")
	h.admin.do("GET", pinned+"docs//", nil).invalid("path")
	h.admin.do("GET", pinned+"../", nil).invalid("path")
	// A site is not public by that.
	browser.do("GET", pinned+"docs/", nil).problem(401, "unauthenticated")
	h.admin.do("PUT", "/v1/pointers/p", map[string]any{"public": true}).want(200)
	browser.do("GET", pinned+"docs/", nil).want(200)
}
