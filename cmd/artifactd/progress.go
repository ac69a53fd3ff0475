package main

import (
	"os"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// bar shows on a terminal how far the bytes are. Anywhere else, and for nil, it does nothing.
type bar struct {
	container *mpb.Progress
	current   *mpb.Bar
	mu        sync.Mutex
}

// progress starts a bar if Stderr is a terminal.
func (p *Program) progress(what string, total int64) *bar {
	f, ok := p.Stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || total == 0 {
		return &bar{}
	}
	b := &bar{container: mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))}
	b.next(what, total)
	return b
}

// next replaces the bar by one for the next part of the work.
func (b *bar) next(what string, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.container == nil {
		return
	}
	if b.current != nil {
		b.current.Abort(true)
	}
	b.current = b.container.AddBar(total,
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(what, decor.WC{W: 10, C: decor.DindentRight}), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 6}), decor.AverageSpeed(decor.SizeB1024(0), "  % .1f")),
	)
}

// add moves the bar by n bytes; a negative number moves it back.
func (b *bar) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil {
		b.current.SetCurrent(max(0, b.current.Current()+n))
	}
}

// stop takes the bar away and waits until the terminal is clean. It may be called twice.
func (b *bar) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.container == nil {
		return
	}
	b.current.Abort(true)
	b.container.Wait()
	b.container, b.current = nil, nil
}
