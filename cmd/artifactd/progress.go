package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/artifactd/artifactd/client"
)

const (
	// progressEvery is how often a line tells how far the work is where there is no terminal.
	progressEvery = 10 * time.Second
	// ownBar is the size in bytes from which a file has a bar of its own while it moves.
	ownBar = 8 << 20
)

// bar shows how far the bytes are: on a terminal as bars, of everything and of each large file;
// anywhere else as a line now and then; nothing with --quiet. Its zero value shows nothing.
type bar struct {
	filesDone atomic.Int64 // read while the terminal is drawn

	mu    sync.Mutex
	what  string
	total int64
	done  int64
	files int
	began time.Time
	held  bool // nothing moves, and nothing is shown

	container *mpb.Progress // nil unless there is a terminal
	current   *mpb.Bar
	own       []*mpb.Bar

	lines io.Writer // nil unless lines are written
	over  chan struct{}
	ended sync.WaitGroup
}

// progress shows a first part of some work on so many bytes and files.
func (p *Program) progress(what string, total int64, files int) *bar {
	if p.quiet || total == 0 {
		return &bar{}
	}
	b := &bar{}
	if f, ok := p.Stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		b.container = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	} else {
		every := p.progressEvery
		if every == 0 {
			every = progressEvery
		}
		over := make(chan struct{})
		b.lines, b.over = p.Stderr, over
		b.ended.Go(func() { b.tell(every, over) })
	}
	b.next(what, total, files)
	p.shown.Store(b)
	return b
}

// above writes a line above the bars, and reports whether there are any.
func (b *bar) above(line string) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.container == nil {
		return false
	}
	_, _ = io.WriteString(b.container, line) // to the terminal, as the bars
	return true
}

// hold shows nothing until more bytes have moved: the work waits for something else.
func (b *bar) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = true
	if b.current != nil {
		b.current.Abort(true)
		b.current = nil
	}
}

// next replaces the bar by one for the next part of the work.
func (b *bar) next(what string, total int64, files int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.what, b.total, b.files, b.done = what, total, files, 0
	b.filesDone.Store(0)
	b.begin()
}

// begin shows the part of the work that is next.
func (b *bar) begin() {
	b.held, b.began = false, time.Now()
	if b.container == nil {
		return
	}
	if b.current != nil {
		b.current.Abort(true)
	}
	files := b.files // the terminal is drawn without the lock
	counted := func(decor.Statistics) string {
		if files == 1 {
			return ""
		}
		return fmt.Sprintf("  %d of %d files", b.filesDone.Load(), files)
	}
	b.current = b.container.AddBar(b.total,
		mpb.BarPriority(1<<20), // below those of single files
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(b.what, decor.WC{W: 10, C: decor.DindentRight}), decor.CountersKibiByte("% .1f / % .1f"), decor.Any(counted)),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 6}), decor.AverageSpeed(decor.SizeB1024(0), "  % .1f"),
			decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 8}), ""), decor.Name(" left")),
	)
}

// add moves the bar by n bytes; a negative number moves it back.
func (b *bar) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held {
		b.begin()
	}
	b.done = max(0, b.done+n)
	if b.current != nil {
		b.current.SetCurrent(b.done)
	}
}

// file is add for the bytes of one file.
func (b *bar) file(path string, size int64) func(int64) {
	var mu sync.Mutex // parts of a file move side by side
	var own *mpb.Bar
	var done int64
	whole := false
	return func(n int64) {
		b.add(n)
		mu.Lock()
		defer mu.Unlock()
		if done += n; whole != (done == size) {
			whole = !whole
			if whole {
				b.filesDone.Add(1)
			} else {
				b.filesDone.Add(-1)
			}
		}
		if own == nil && size >= ownBar && !whole {
			own = b.ownBar(path, size)
		}
		if own != nil {
			own.SetCurrent(max(0, done))
		}
	}
}

// follow has every source tell the bar of its bytes.
func (b *bar) follow(sources []client.Source) []client.Source {
	out := slices.Clone(sources)
	for i := range out {
		out[i].Progress = b.file(out[i].Path, out[i].Size)
	}
	return out
}

// ownBar is a bar of one file, or nil where there is no terminal or no other file.
func (b *bar) ownBar(path string, size int64) *mpb.Bar {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.container == nil || b.files < 2 {
		return nil
	}
	one := b.container.AddBar(size, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name("  "+shortened(printable(path), 40)+"  "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 6})))
	b.own = append(b.own, one)
	return one
}

// shortened keeps the end of a path, which says most.
func shortened(path string, most int) string {
	if r := []rune(path); len(r) > most {
		return "…" + string(r[len(r)-most+1:])
	}
	return path
}

// tell writes a line every so often until the work is over.
func (b *bar) tell(every time.Duration, over <-chan struct{}) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-over:
			return
		case now := <-ticks.C:
			if line := b.line(now); line != "" {
				fmt.Fprintln(b.lines, line)
			}
		}
	}
}

// line says how far the work is, how fast, and how long it takes from here at that rate; nothing while
// it waits for something else.
func (b *bar) line(now time.Time) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held {
		return ""
	}
	line := fmt.Sprintf("artifactd: %s: %s of %s (%d %%)", b.what, size(b.done), size(b.total), b.done*100/max(1, b.total))
	if b.files > 1 {
		line += fmt.Sprintf(", %d of %d files", b.filesDone.Load(), b.files)
	}
	rate := float64(b.done) / max(now.Sub(b.began).Seconds(), 1e-3)
	line += fmt.Sprintf(", %s/s", size(int64(rate)))
	if rate >= 1 {
		left := time.Duration(float64(b.total-b.done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	return line
}

// stop takes the bars away and waits until the terminal is clean. It may be called twice.
func (b *bar) stop() {
	b.mu.Lock()
	container, over := b.container, b.over
	b.container, b.over = nil, nil
	for _, one := range b.own {
		one.Abort(true)
	}
	if b.current != nil {
		b.current.Abort(true)
		b.current = nil
	}
	b.mu.Unlock()
	if over != nil {
		close(over)
		b.ended.Wait()
	}
	if container != nil {
		container.Wait()
	}
}
