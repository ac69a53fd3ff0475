package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactd/artifactd/internal/doctor"
)

// TestDoctorAndStandardInput share an instance.
func TestDoctorAndStandardInput(t *testing.T) {
	t.Parallel()
	d := startDev(t, filepath.Join(t.TempDir(), "data"))
	t.Run("doctor", func(t *testing.T) { examined(t, d) })
	t.Run("standard input", func(t *testing.T) { standardInput(t, d) })
}

func examined(t *testing.T, d *instance) {
	r := d.run(exitDone, "doctor")
	for _, row := range []string{"PROBE", "signed PUT, other bytes", "multipart abort", "clock of the database"} {
		if !strings.Contains(r.stdout, row) {
			t.Errorf("no row %q in\n%s", row, r.stdout)
		}
	}
	if strings.Contains(r.stdout, string(doctor.Missing)) || r.stderr != "" {
		t.Errorf("printed %s and %s", r.stdout, r.stderr)
	}
	report := decode[doctor.Report](t, d.run(exitDone, "doctor", "-o", "json", "--s3-driver", "minio"))
	if report.Count(doctor.OK) < 18 {
		t.Errorf("%+v", report)
	}
	// A store whose way loses the ranges lacks something.
	lossy := rangeless(t, d.env()["ARTIFACTD_S3_ENDPOINT"])
	r = d.run(exitFailed, "doctor", "-o", "json", "--s3-endpoint", lossy)
	for _, f := range decode[doctor.Report](t, r).Findings {
		if (f.Verdict == doctor.Missing) != (f.Probe == "range reads") {
			t.Errorf("%+v", f)
		}
	}
	if !strings.Contains(r.stderr, "1 of 20 probes") {
		t.Errorf("stderr %q", r.stderr)
	}
	d.run(exitUsage, "doctor", "--s3-prefix", "no-slash")
	d.run(exitFailed, "doctor", "--s3-bucket", "no-such-bucket")
	if r := d.run(exitFailed, "doctor", "--s3-secret-access-key", "wrong"); !strings.Contains(r.stderr, "access key") {
		t.Errorf("stderr %q", r.stderr)
	}
	d.run(exitUnavailable, "doctor", "--database-url", "postgres://127.0.0.1:1/x?connect_timeout=1")
}

// rangeless is a proxy before a store that has every object read whole.
func rangeless(t *testing.T, store string) string {
	t.Helper()
	target, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // the signature's
		},
		ModifyResponse: func(resp *http.Response) error {
			if resp.StatusCode == http.StatusPartialContent {
				resp.StatusCode = http.StatusOK
				resp.Header.Del("Content-Range")
			}
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

func standardInput(t *testing.T, d *instance) {
	content := bytes.Repeat([]byte("piped "), 1<<20)
	publish := func(want int, args ...string) result {
		t.Helper()
		var stdout, stderr buffer
		p := Program{
			Args: append([]string{"publish", "--data", d.data}, args...), Stdin: bytes.NewReader(content), Stdout: &stdout, Stderr: &stderr,
		}
		if code := p.Run(t.Context()); code != want {
			t.Fatalf("publish %v: exit code %d, want %d: %s", args, code, want, stderr.String())
		}
		return result{want, stdout.String(), stderr.String()}
	}
	d.run(exitDone, "pointer", "create", "a.piped")
	file := writeFile(t, filepath.Join(t.TempDir(), "beside.txt"), []byte("beside"))
	publish(exitDone, "a.piped", "-", file, "--name", "dumps/app.sql")
	if r := d.run(exitDone, "get", "a.piped", "dumps/app.sql", "-O", "-"); r.stdout != string(content) {
		t.Errorf("%d other bytes came back", len(r.stdout))
	}
	if r := d.run(exitDone, "get", "a.piped", "beside.txt", "-O", "-"); r.stdout != "beside" {
		t.Errorf("the file beside it: %q", r.stdout)
	}
	for said, args := range map[string][]string{
		"say with --name":     {"a.piped", "-"},
		`give "-" once`:       {"a.piped", "-", "-", "--name", "x"},
		"for standard input":  {"a.piped", file, "--name", "x"},
		"both be named":       {"a.piped", "-", file, "--name", "beside.txt"},
		"cannot be a path of": {"a.piped", "-", "--name", "../x"},
	} {
		if r := publish(exitUsage, args...); !strings.Contains(r.stderr, said) {
			t.Errorf("%v: %s", args, r.stderr)
		}
	}
	if r := publish(exitNotFound, "a.nowhere", "-", "--name", "x"); r.stdout != "" {
		t.Errorf("printed %q", r.stdout)
	}
}
