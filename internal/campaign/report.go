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

	"github.com/artifactd/artifactd/pointer"
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
	Files        filesReport    `json:"files"`
	Losses       *lossReport    `json:"losses,omitempty"`
	Violations   []string       `json:"violations"`
}

// filesReport is what became of the shelves and their files.
type filesReport struct {
	Shelves    int            `json:"shelves"`
	Uploaded   int64          `json:"uploaded"`
	Adopted    int64          `json:"adopted"`
	Late       int64          `json:"stored_too_late"`
	Read       int64          `json:"read_back_meanwhile"`
	Gone       int64          `json:"gone_after_retention"`
	Buried     map[string]int `json:"keys_to_be_deleted_by_reason"`
	Unknown    int            `json:"strays_to_be_deleted"`
	Staying    int            `json:"strays_to_stay"`
	Versions   int            `json:"versions_read_back_at_the_end"`
	Verified   int64          `json:"artifacts_verified_at_the_end"`
	Objects    int            `json:"objects_at_the_end"`
	UntilClean float64        `json:"seconds_until_nothing_was_left_over"`
}

func (c *campaign) filesReport() filesReport {
	r := filesReport{
		Shelves: len(c.shelves), Uploaded: c.uploaded.Load(), Adopted: c.adopted.Load(), Late: c.landed.Load(), Read: c.fetched.Load(),
		Gone: c.displaced.Load(), Buried: c.collection.buried, Versions: c.collection.kept, Verified: c.collection.verified,
		Objects: c.collection.objects, UntilClean: c.collection.took.Seconds(),
	}
	r.Unknown, r.Staying = c.strays.count()
	return r
}

// rows are the report's lines.
func (r filesReport) rows(row func(name, format string, v any)) {
	row("files uploaded", "%d", r.Uploaded)
	row("files adopted", "%d", r.Adopted)
	row("files stored after their lease had ended", "%d", r.Late)
	row("files read back meanwhile", "%d", r.Read)
	row("files of versions gone after their retention", "%d", r.Gone)
	for _, reason := range slices.Sorted(maps.Keys(r.Buried)) {
		row("keys to be deleted: "+reason, "%d", r.Buried[reason])
	}
	row("strays that had to be deleted", "%d", r.Unknown)
	row("strays that had to stay", "%d", r.Staying)
	row("objects in the bucket at the end", "%d", r.Objects)
	row("artifacts verified at the end", "%d", r.Verified)
	row("versions of shelves read back at the end", "%d", r.Versions)
	row("until nothing was left over, seconds", "%.1f", r.UntilClean)
}

// report sums the campaign up.
func (c *campaign) report() report {
	r := report{
		Seed: c.options.seed, Seconds: c.lasted.Seconds(), Workers: c.options.workers, Readers: c.options.readers,
		Pointers: c.options.pointers, Replicas: replicas, Operations: c.total, PerSecond: float64(c.total) / c.lasted.Seconds(),
		Answers: c.answers.n, FaultsByKind: c.faults.n, Unknown: c.unknowns.Load(), Settled: c.settled.Load(),
		Histories: int(c.checked.Load()), SlowestCheck: c.slowest.Seconds(), Files: c.filesReport(), Violations: c.violations,
	}
	for _, n := range r.FaultsByKind {
		r.Faults += n
	}
	for _, t := range c.tracks {
		r.Generations += len(t.fates)
	}
	r.Versions = c.versionsPublished()
	return r
}

// versionsPublished is how many versions of the fenced pointers the last barrier found.
func (c *campaign) versionsPublished() (n int) {
	for _, t := range c.tracks {
		for _, fate := range t.fates {
			if fate == pointer.StatePublished {
				n++
			}
		}
	}
	return n
}

// markdown is the report for people.
func (r report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Campaign, seed %d: %d violations\n", r.Seed, len(r.Violations))
	if r.Replicas > 0 {
		r.fence(&b)
	}
	if r.Losses != nil {
		b.WriteString(r.Losses.text())
	}
	for i, v := range r.Violations {
		fmt.Fprintf(&b, "\n## Violation %d\n\n```\n%s\n```\n", i+1, v)
	}
	return b.String()
}

// fence is the report on the fence and on collection.
func (r report) fence(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Linearizability and collection\n\n")
	fmt.Fprintf(b, "Seed %d, %s, %d workers and %d readers on %d pointers through %d services.\n\n", r.Seed,
		time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Workers, r.Readers, r.Pointers, r.Replicas)
	fmt.Fprintf(b, "| | |\n|---|---:|\n")
	row := func(name, format string, v any) { fmt.Fprintf(b, "| %s | "+format+" |\n", name, v) }
	row("operations", "%d", r.Operations)
	row("operations a second", "%.0f", r.PerSecond)
	row("faults", "%d", r.Faults)
	row("outcomes left unknown", "%d", r.Unknown)
	row("of these settled", "%d", r.Settled)
	row("generations", "%d", r.Generations)
	row("versions published", "%d", r.Versions)
	row("histories checked and linearizable", "%d", r.Histories)
	row("slowest check, seconds", "%.2f", r.SlowestCheck)
	if r.Files.Shelves > 0 {
		r.Files.rows(row)
	}
	row("violations", "**%d**", len(r.Violations))
	section := func(title string, counts map[string]int) {
		fmt.Fprintf(b, "\n| %s | |\n|---|---:|\n", title)
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			row(name, "%d", counts[name])
		}
	}
	section("fault", r.FaultsByKind)
	section("answer", r.Answers)
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
