package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// report is what a campaign came to.
type report struct {
	Seed         uint64         `json:"seed"`
	Seconds      float64        `json:"seconds"`
	Workers      int            `json:"workers"`
	Readers      int            `json:"readers"`
	Pointers     int            `json:"pointers"`
	Replicas     int            `json:"replicas"`
	Operations   int64          `json:"operations"`
	PerSecond    float64        `json:"operations_per_second"`
	Answers      map[string]int `json:"answers"`
	Faults       int            `json:"faults"`
	FaultsByKind map[string]int `json:"faults_by_kind"`
	Unknown      int64          `json:"unknown"`
	Settled      int64          `json:"unknown_settled"`
	Versions     int            `json:"versions_published"`
	Generations  int            `json:"generations"`
	Histories    int            `json:"histories_checked"`
	SlowestCheck float64        `json:"slowest_check_seconds"`
	Violations   []string       `json:"violations"`
}

// report sums the campaign up.
func (c *campaign) report() report {
	r := report{
		Seed: c.options.seed, Seconds: c.options.duration.Seconds(), Workers: c.options.workers, Readers: c.options.readers,
		Pointers: c.options.pointers, Replicas: replicas, Operations: c.total, PerSecond: float64(c.total) / c.options.duration.Seconds(),
		Answers: c.answers.n, FaultsByKind: c.faults.n, Unknown: c.unknowns.Load(), Settled: c.settled.Load(),
		Histories: c.checked, SlowestCheck: c.slowest.Seconds(), Violations: c.violations,
	}
	for _, n := range r.FaultsByKind {
		r.Faults += n
	}
	for _, t := range c.tracks {
		r.Generations += len(t.fates)
		for _, fate := range t.fates {
			if fate == "published" {
				r.Versions++
			}
		}
	}
	return r
}

// markdown is the report for people.
func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Linearizability campaign\n\n")
	fmt.Fprintf(&b, "Seed %d, %s, %d workers and %d readers on %d pointers through %d services.\n\n", r.Seed,
		time.Duration(r.Seconds*float64(time.Second)), r.Workers, r.Readers, r.Pointers, r.Replicas)
	fmt.Fprintf(&b, "| | |\n|---|---:|\n")
	row := func(name, format string, v any) { fmt.Fprintf(&b, "| %s | "+format+" |\n", name, v) }
	row("operations", "%d", r.Operations)
	row("operations a second", "%.0f", r.PerSecond)
	row("faults", "%d", r.Faults)
	row("outcomes left unknown", "%d", r.Unknown)
	row("of these settled", "%d", r.Settled)
	row("generations", "%d", r.Generations)
	row("versions published", "%d", r.Versions)
	row("histories checked and linearizable", "%d", r.Histories)
	row("slowest check, seconds", "%.2f", r.SlowestCheck)
	row("violations", "**%d**", len(r.Violations))
	section := func(title string, counts map[string]int) {
		fmt.Fprintf(&b, "\n| %s | |\n|---|---:|\n", title)
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			row(name, "%d", counts[name])
		}
	}
	section("fault", r.FaultsByKind)
	section("answer", r.Answers)
	for i, v := range r.Violations {
		fmt.Fprintf(&b, "\n## Violation %d\n\n```\n%s\n```\n", i+1, v)
	}
	return b.String()
}

// write writes the report as Markdown to a file and as JSON beside it.
func (r report) write(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(r.markdown()), 0o644); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(file, filepath.Ext(file))+".json", append(b, '\n'), 0o644)
}
