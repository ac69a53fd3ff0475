package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report is what one run found.
type report struct {
	GoVersion       string   `json:"go_version"`
	CPUs            int      `json:"cpus"`
	PostgresMajor   int      `json:"postgres_major"`
	DurationSeconds float64  `json:"duration_seconds"`
	Rounds          int      `json:"rounds"`
	Results         []result `json:"results"`
}

// result is one benchmark's row.
type result struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`
	PeerWhat string  `json:"peer_what"`
	Ours     figures `json:"artifactd"`
	Peer     figures `json:"peer"`
	// Ratio is the median of Ratios, which are ours to the peer's rate, round by round.
	Ratio  float64   `json:"ratio"`
	Ratios []float64 `json:"ratios"`
	Goal   float64   `json:"goal"`
	Notes  []string  `json:"notes,omitempty"`
}

// figures are one side's rounds together.
type figures struct {
	OpsPerSecond float64   `json:"ops_per_second"` // the rounds' median
	Rounds       []float64 `json:"rounds_ops_per_second"`
	P50          float64   `json:"p50_ms"`
	P99          float64   `json:"p99_ms"`
	// CallsPerOp is how many HTTP requests one operation took; 0 for a peer that speaks no HTTP.
	CallsPerOp float64 `json:"http_calls_per_op"`
}

func newReport(o options, s *stack) *report {
	return &report{
		GoVersion: runtime.Version(), CPUs: runtime.NumCPU(), PostgresMajor: s.postgres.Major(),
		DurationSeconds: o.duration.Seconds(), Rounds: o.rounds,
	}
}

func newResult(b benchmark, ours, peer []sample) result {
	r := result{
		Name: b.name, What: b.what, PeerWhat: b.peer, Goal: b.goal, Ours: newFigures(ours), Peer: newFigures(peer),
	}
	for i := range ours {
		r.Ratios = append(r.Ratios, r.Ours.Rounds[i]/r.Peer.Rounds[i])
	}
	r.Ratio = median(r.Ratios)
	return r
}

func newFigures(rounds []sample) figures {
	all := newHistogram()
	var f figures
	var calls int64
	for _, s := range rounds {
		all.Merge(s.latency)
		calls += s.calls
		f.Rounds = append(f.Rounds, s.rate())
	}
	f.OpsPerSecond = median(f.Rounds)
	f.P50, f.P99 = millis(all, 50), millis(all, 99)
	f.CallsPerOp = float64(calls) / float64(max(all.TotalCount(), 1))
	return f
}

func millis(h *hdrhistogram.Histogram, percentile float64) float64 {
	return float64(h.ValueAtPercentile(percentile)) / 1000
}

// median of a list that is not empty.
func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

func (r *report) writeFile(name string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}

// print writes the table and, below it, what its rows are.
func (r *report) print(w io.Writer) error {
	fmt.Fprintf(w, "%d CPUs shared by load, service, Postgres %d (fsync on) and store; %s; %d rounds of %gs a side\n\n",
		r.CPUs, r.PostgresMajor, r.GoVersion, r.Rounds, r.DurationSeconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "benchmark\tops/s\tp50 ms\tp99 ms\tcalls/op\tpeer ops/s\tp50 ms\tp99 ms\tratio (min–max)\t[goal]\t")
	for _, one := range r.Results {
		o, p := one.Ours, one.Peer
		fmt.Fprintf(t, "%s\t%.0f\t%.2f\t%.2f\t%.1f\t%.0f\t%.2f\t%.2f\t%.2f (%.2f–%.2f)\t[≥ %.2f]%s\t\n",
			one.Name, o.OpsPerSecond, o.P50, o.P99, o.CallsPerOp, p.OpsPerSecond, p.P50, p.P99,
			one.Ratio, slices.Min(one.Ratios), slices.Max(one.Ratios), one.Goal, one.verdict())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, one := range r.Results {
		if _, err := fmt.Fprintf(w, "%s: %s, against %s\n", one.Name, one.What, one.PeerWhat); err != nil {
			return err
		}
		for _, note := range one.Notes {
			if _, err := fmt.Fprintf(w, "  %s\n", note); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r result) verdict() string {
	if r.Ratio >= r.Goal {
		return " met"
	}
	return " missed"
}
