package api

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/artifactd/artifactd/pointer"
)

const (
	// proofLinger is how long a proof goes on when nobody waits for it any more. Reading a large
	// object back takes longer than many a proxy lets a connection be silent; who asks again within
	// this time joins what is running.
	proofLinger = 2 * time.Minute
	// maxReadBacks is how many objects are read back at once. Each takes about half a mebibyte.
	maxReadBacks = 16
)

// proofs runs at most one proof of an artifact at a time, which everybody who asks for it shares.
type proofs struct {
	linger time.Duration

	mu       sync.Mutex
	running  map[uuid.UUID]*proof
	draining bool
}

// proof is one that runs. Its result is written before done is closed.
type proof struct {
	done   chan struct{}
	result pointer.Artifact
	err    error

	cancel  context.CancelFunc
	waiting int         // callers
	abandon *time.Timer // cancels it; nil while somebody waits
}

func newProofs(linger time.Duration) *proofs {
	return &proofs{linger: linger, running: make(map[uuid.UUID]*proof)}
}

// join waits for the running proof of an artifact, or for a new one made by prove, whose context
// is not the caller's: it ends when nobody has waited for a while.
func (p *proofs) join(ctx context.Context, id uuid.UUID, prove func(context.Context) (pointer.Artifact, error)) (pointer.Artifact, error) {
	one := p.enter(ctx, id, prove)
	defer p.leave(one)
	select {
	case <-one.done:
		return one.result, one.err
	case <-ctx.Done():
		return pointer.Artifact{}, ctx.Err()
	}
}

func (p *proofs) enter(ctx context.Context, id uuid.UUID, prove func(context.Context) (pointer.Artifact, error)) *proof {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one := p.running[id]; one != nil {
		one.waiting++
		if one.abandon != nil {
			one.abandon.Stop()
			one.abandon = nil
		}
		return one
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one := &proof{done: make(chan struct{}), cancel: cancel, waiting: 1}
	p.running[id] = one
	go func() {
		defer cancel()
		one.result, one.err = prove(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.running, id)
		close(one.done)
	}()
	return one
}

func (p *proofs) leave(one *proof) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.waiting--; one.waiting > 0 {
		return
	}
	if p.draining {
		one.cancel()
		return
	}
	select {
	case <-one.done:
	default:
		one.abandon = time.AfterFunc(p.linger, one.cancel)
	}
}

// drain ends the proofs that nobody waits for.
func (p *proofs) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	for _, one := range p.running {
		if one.waiting == 0 {
			one.cancel()
		}
	}
}
