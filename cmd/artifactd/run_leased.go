package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactd/artifactd/client"
	"github.com/artifactd/artifactd/internal/supervise"
)

// endedError is an end that has an exit code of its own.
type endedError struct {
	code int
	text string
}

func (e *endedError) Error() string { return e.text }

// leased is a command that runs under a lease.
type leased struct {
	group   *supervise.Group
	keeper  *client.Keeper
	file    *leaseFile
	grace   time.Duration
	signals *signals

	killBy time.Time // as the supervisor was told last
	lost   error
}

// await waits for the command's end, and sees to it that it ends before its lease can. It returns nil
// when the command succeeded and the lease is still held.
func (l *leased) await() error {
	interrupted, killed, lost := l.signals.ctx.Done(), l.signals.again, l.keeper.Context().Done()
	for {
		stopBy := l.follow()
		select {
		case <-l.group.Done():
			return l.verdict()
		case <-lost:
			lost = nil
			l.stop(context.Cause(l.keeper.Context()))
		case <-time.After(min(time.Until(stopBy), l.glance())):
			if !time.Now().Before(stopBy) {
				l.stop(client.ErrLeaseEnding)
			}
		case <-interrupted:
			interrupted = nil
			l.group.Signal(l.signals.first())
		case <-killed:
			killed = nil
			l.group.Kill()
		}
	}
}

// follow tells the supervisor, and the lease file, about a renewal. It returns when the command must
// be asked to end if nothing is renewed until then: early enough for its grace to fit in before the
// lease could end.
func (l *leased) follow() (stopBy time.Time) {
	if l.lost != nil {
		return time.Now().Add(time.Hour) // it was asked
	}
	lease, killBy := l.keeper.Lease(), l.keeper.Deadline()
	if !killBy.Equal(l.killBy) {
		l.killBy = killBy
		l.group.KillBy(killBy)
		l.file.update(lease)
	}
	ttl := time.Duration(lease.TtlSeconds * float64(time.Second))
	return killBy.Add(-min(l.grace, ttl/4))
}

// glance is how often to look for a renewal: ten times in the pause between two.
func (l *leased) glance() time.Duration {
	return min(time.Second, time.Duration(l.keeper.Lease().TtlSeconds*float64(time.Second))/30)
}

// stop ends the command because its lease is lost, or about to be.
func (l *leased) stop(why error) {
	if l.lost != nil {
		return
	}
	l.lost = why
	l.group.Stop(max(0, min(l.grace, time.Until(l.killBy))))
}

// verdict is what the command's end means.
func (l *leased) verdict() error {
	status, err := l.group.Wait()
	if l.lost == nil && !time.Now().Before(l.keeper.Deadline()) {
		l.lost = client.ErrLeaseEnding // this process was frozen, and its supervisor acted
	}
	if l.lost != nil && !errors.Is(l.lost, client.ErrLeaseLost) {
		l.lost = fmt.Errorf("%w: %v", client.ErrLeaseLost, l.lost)
	}
	survivors := fmt.Errorf("nothing was published: processes %v of the command could not be ended, and may still write; end them by hand", status.Survivors)
	switch {
	case len(status.Survivors) > 0 && l.lost != nil:
		return fmt.Errorf("%w: %w", survivors, l.lost)
	case len(status.Survivors) > 0:
		return survivors
	case l.lost != nil:
		return fmt.Errorf("the command was ended, and nothing was published: %w", l.lost)
	case err != nil:
		return fmt.Errorf("nothing was published: %w", err)
	case status.WantedTerminal:
		return errors.New("nothing was published: the command was ended because it wanted to use the terminal, which another job has; run it in the foreground, or with its standard input from somewhere else")
	case l.signals.ctx.Err() != nil && status.Code == 0:
		return &endedError{code: l.signals.code(), text: "interrupted; nothing was published"}
	case status.Signal != 0:
		return &endedError{code: status.Code, text: fmt.Sprintf("the command was ended by signal %d (%v); nothing was published", status.Signal, status.Signal)}
	case status.Code != 0:
		return &endedError{code: status.Code, text: fmt.Sprintf("the command ended with exit code %d; nothing was published", status.Code)}
	}
	return nil
}
