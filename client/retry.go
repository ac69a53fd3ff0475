package client

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Bounds of the retries: half a minute of trying is long enough for a restart of the service, and short
// enough for whoever was told that it goes on. Time alone bounds them: by their number they would end
// sooner where the answers are quick, or ask for a short pause.
const (
	retryFirst   = 100 * time.Millisecond
	retryLongest = 5 * time.Second
	retryElapsed = 30 * time.Second
	// A service that never answered this client is more likely misnamed than restarting.
	retryUnmet = 2 * time.Second
)

// retry repeats an idempotent call while its error says that trying again may help.
func retry[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	return retryWhile(ctx, worthRetrying, call)
}

// askRefused repeats a call that is not idempotent, while its error says that nothing was done and
// that trying again may help. held is as in ask.
func askRefused[T any](ctx context.Context, c *Client, held time.Duration, call func(context.Context) (T, error)) (T, error) {
	return askWhile(ctx, c, held, func(err error) bool {
		return (errors.Is(err, ErrHistoryChanged) || errors.Is(err, ErrTooManyRequests)) && worthRetrying(err)
	}, call)
}

func retryWhile[T any](ctx context.Context, worth func(error) bool, call func(context.Context) (T, error)) (T, error) {
	var last error
	began := time.Now()
	res, err := backoff.Retry(ctx, func() (T, error) {
		v, err := call(ctx)
		switch {
		case err == nil:
			return v, nil
		case !worth(err) || ctx.Err() != nil || unmet(err) && time.Since(began) > retryUnmet:
			return v, backoff.Permanent(err)
		}
		last = err
		if p, ok := asProblem(err); ok && p.RetryAfter > 0 {
			return v, &askedToWait{problem: p, after: backoff.RetryAfterError{Duration: min(p.RetryAfter, retryLongest)}}
		}
		return v, err
	}, backoff.WithBackOff(newBackOff()), backoff.WithMaxElapsedTime(retryElapsed))
	// When the context ends during a pause, the last answer says more than "context canceled".
	if err != nil && last != nil && ctx.Err() != nil && !errors.Is(err, last) {
		err = errors.Join(context.Cause(ctx), last)
	}
	return res, err
}

func newBackOff() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = retryFirst
	b.MaxInterval = retryLongest
	b.Multiplier = 2
	return b
}

// askedToWait carries a problem and the pause its Retry-After asked for.
type askedToWait struct {
	problem *Problem
	after   backoff.RetryAfterError
}

func (e *askedToWait) Error() string   { return e.problem.Error() }
func (e *askedToWait) Unwrap() []error { return []error{e.problem, &e.after} }

// worthRetrying reports whether an idempotent call that failed like this may succeed later: the
// connection broke, or the service or the store said that it cannot now. A history-changed answer is
// mostly a database that was restarted or failed over, which settles itself within seconds; one that
// waits for an operator says so.
func worthRetrying(err error) bool {
	var unknown *unknownError
	if errors.As(err, &unknown) {
		return true
	}
	if p, ok := asProblem(err); ok {
		return p.temporary() && p.Code != ErrOutcomeUnknown && !p.OperatorRequired
	}
	var s *StoreError
	if errors.As(err, &s) {
		return s.temporary()
	}
	var t *TransportError
	return errors.As(err, &t)
}

// unknownError marks an attempt of a call that is safe to repeat, since every attempt carries the
// same operation id, but whose outcome the attempt did not tell.
type unknownError struct{ err error }

func (e *unknownError) Error() string { return e.err.Error() }
func (e *unknownError) Unwrap() error { return e.err }

// TransportError says that a request got no whole answer: whether it took effect is not known from
// it. Err is the cause.
type TransportError struct {
	Host string
	Err  error
	// Store: it is the object store that gave no answer, not the service.
	Store bool
	// unmet: the service never answered this client before.
	unmet bool
}

func unmet(err error) bool {
	var t *TransportError
	return errors.As(err, &t) && t.unmet
}

func (e *TransportError) Error() string {
	from := e.Host
	if e.Store {
		from = "the object store at " + e.Host
	}
	return "no answer from " + from + ": " + e.Err.Error()
}
func (e *TransportError) Unwrap() error { return e.Err }
