package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// table collects rows of text for a person.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table { return &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = printable(fmt.Sprint(c))
	}
	fmt.Fprintln(t.w, strings.Join(texts, "\t"))
}

// print writes v as JSON, or what rows puts into a table.
func (p *Program) print(v any, rows func(*table)) error {
	if p.format == "json" {
		enc := json.NewEncoder(p.Stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	t := newTable(p.Stdout)
	rows(t)
	return t.w.Flush()
}

// done says that something was done: to a person, or with -o json to a program.
func (p *Program) done(v any, format string, args ...any) error {
	if p.format == "json" {
		return p.print(v, nil)
	}
	p.note("artifactd: "+format, args...)
	return nil
}

// printable keeps text that strangers wrote (holders, paths, labels) from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return '\uFFFD'
		}
		return r
	}, s)
}

// legible is a text of somebody's for a message: as it is, or quoted where it would steer the terminal or
// break the line.
func legible(s string) string {
	if printable(s) == s {
		return s
	}
	return strconv.Quote(s)
}

// counted is how many there are of something, for a person.
func counted(n int64, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// period is a length of time for a person: to the second, and without parts that are zero.
func period(d time.Duration) string {
	if d < time.Second {
		return "1s"
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// size is a number of bytes for a person.
func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, name := float64(n), ""
	for _, name = range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value /= unit; value < unit {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, name)
}
