package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactd/artifactd/internal/devstack"
)

func TestMain(m *testing.M) {
	if devstack.RunChild() || ranChild() {
		return
	}
	os.Exit(m.Run())
}

func TestEveryBenchmarkGivesNumbers(t *testing.T) {
	dir := t.TempDir()
	o := options{
		duration: 200 * time.Millisecond, rounds: 1, dir: dir, size: 70 * mebibyte, files: 300, slow: 100,
		live: 1_000, dead: 200, listed: 300,
		json: filepath.Join(dir, "report.json"), cpuProfile: filepath.Join(dir, "profiles"),
	}
	var table, progress bytes.Buffer
	if err := run(t.Context(), o, &table, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	r := readReport(t, o.json)
	got := make([]string, 0, len(r.Results))
	for _, one := range r.Results {
		got = append(got, one.Name)
		t.Logf("%s: %.0f against %.0f ops/s", one.Name, one.Ours.OpsPerSecond, one.Peer.OpsPerSecond)
		for what, v := range map[string]float64{
			"ops/s": one.Ours.OpsPerSecond, "p50": one.Ours.P50, "p99": one.Ours.P99,
			"peer's ops/s": one.Peer.OpsPerSecond, "peer's p50": one.Peer.P50, "peer's p99": one.Peer.P99, "ratio": one.Ratio,
		} {
			if v <= 0 {
				t.Errorf("%s: %s is %v", one.Name, what, v)
			}
		}
		if !strings.Contains(table.String(), one.Name+" ") {
			t.Errorf("the table has no row for %s:\n%s", one.Name, table.String())
		}
		if strings.HasPrefix(one.Name, "records") && !strings.Contains(strings.Join(one.Notes, " "), "records waited") {
			t.Errorf("records does not say how far it was behind: %v", one.Notes)
		}
		profile, err := os.ReadFile(filepath.Join(o.cpuProfile, one.Name+".1.pprof"))
		if err != nil || len(profile) == 0 {
			t.Errorf("%s: a profile of %d bytes: %v", one.Name, len(profile), err)
		}
	}
	if !slices.Equal(got, names()) {
		t.Errorf("benchmarks %v, want %v", got, names())
	}
	checkCalls(t, r)
	left, err := filepath.Glob(filepath.Join(dir, "artifactd-bench-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// checkCalls holds the counted requests against what one operation is said to be.
func checkCalls(t *testing.T, r report) {
	t.Helper()
	want := map[string]float64{"resolve": 1, "commit": 3, "records": 3, "checks": 3, "contend": 3, "upload": 5, "flip": 1, "token": 1, "hostile": 1}
	for _, one := range r.Results {
		if one.Ours.CallsPerOp != want[one.Name] {
			t.Errorf("%s: %v calls an operation, want %v", one.Name, one.Ours.CallsPerOp, want[one.Name])
		}
	}
}

func readReport(t *testing.T, name string) (r report) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLoadEndsWithTheFirstError(t *testing.T) {
	broken := errors.New("broken")
	start := time.Now()
	_, err := load(t.Context(), 4, time.Minute, func(ctx context.Context, worker int) error {
		if worker == 2 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 40*time.Second {
		t.Errorf("the other workers went on for %s", took)
	}
}

func TestResultIsTheMedianOfPairs(t *testing.T) {
	samples := func(rates ...int64) (list []sample) {
		for _, rate := range rates {
			s := sample{operations: rate, elapsed: time.Second, latency: newHistogram(), calls: 2 * rate}
			for range rate {
				if err := s.latency.RecordValue(1500); err != nil {
					t.Fatal(err)
				}
			}
			list = append(list, s)
		}
		return list
	}
	r := newResult(benchmark{name: "x", goal: 0.5}, samples(50, 90, 100), samples(100, 100, 200))
	if r.Ratio != 0.5 || r.verdict() != " met" {
		t.Errorf("ratio %v of %v, %q", r.Ratio, r.Ratios, r.verdict())
	}
	if r.Ours.OpsPerSecond != 90 || r.Ours.CallsPerOp != 2 || r.Ours.P99 < 1.49 || r.Ours.P99 > 1.51 {
		t.Errorf("figures %+v", r.Ours)
	}
	if got := median([]float64{4, 1, 3, 2}); got != 2.5 {
		t.Errorf("median of an even number = %v", got)
	}
}

func TestPgbenchRoundIsRead(t *testing.T) {
	logs := t.TempDir()
	for name, lines := range map[string]string{
		"log.71":   "0 1 2000 0 1500000000 1\n1 1 4000 0 1500000000 2\n",
		"log.71.1": "2 1 6000 0 1500000000 3\n",
	} {
		if err := os.WriteFile(filepath.Join(logs, name), []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := readRound("latency average = 4 ms\ntps = 1.500000 (without initial connection time)\n", logs)
	if err != nil || s.operations != 3 || s.elapsed != 2*time.Second {
		t.Errorf("%d operations in %s: %v", s.operations, s.elapsed, err)
	}
	if p50 := s.latency.ValueAtPercentile(50); p50 < 3990 || p50 > 4010 {
		t.Errorf("p50 = %d", p50)
	}
	if _, err := readRound("no rate", logs); err == nil {
		t.Error("a round without a rate was accepted")
	}
	if _, err := readRound("tps = 1.5 (without initial connection time)\n", t.TempDir()); err == nil {
		t.Error("a round without a log was accepted")
	}
}

func TestBadOptions(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-duration", "1ms"}, {"-only", "nothing"}, {"extra"}, {"-unknown"}, {"-size", "0"}, {"-files", "1"}, {"-slow", "0"}, {"-live", "0"}, {"-dead", "0"}, {"-objects", "0"}, {"-only", "commit,nothing"}} {
		var said bytes.Buffer
		if _, err := parseOptions(args, &said); err == nil || said.Len() == 0 {
			t.Errorf("%v: %v, said %q", args, err, said.String())
		}
	}
	o, err := parseOptions([]string{"-only", "commit"}, &bytes.Buffer{})
	if err != nil || o.duration != 3*time.Second || o.rounds != 3 || o.only != "commit" || o.size != 1<<30 || o.files != 20_000 {
		t.Errorf("%+v %v", o, err)
	}
}
