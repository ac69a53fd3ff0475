package pointer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errUnknown marks a call whose commit may or may not have happened.
var errUnknown = errors.New("the database did not tell whether it committed")

// errConflict marks a transaction that the server aborted for the sake of another one.
var errConflict = errors.New("conflict with another transaction")

// decisionTries bounds how often one decision is sent when the server certainly did not carry it
// out: the connection was dead before the request left, or it lost a deadlock.
const decisionTries = 4

// decide calls one deciding function, which is one transaction, and scans its one row. The
// caller's context may end while the database works, but what was sent is waited for within
// DecisionTimeout: hanging up must not make an outcome unknown that is a moment away.
//
// The error is nil once the commit is durable as far as this server makes anything durable. It
// wraps errUnknown when it cannot be known whether the transaction committed.
func (c *Catalogue) decide(ctx context.Context, sql string, args []any, dest ...any) error {
	return c.decideRows(ctx, oneRow(sql, args, dest))
}

// decideUnconfirmed is decide for what concerns no history: it goes on while writes do not.
func (c *Catalogue) decideUnconfirmed(ctx context.Context, sql string, args []any, dest ...any) error {
	return c.repeat(ctx, func(context.Context, *pgxpool.Conn) error { return nil }, oneRow(sql, args, dest))
}

func oneRow(sql string, args, dest []any) func(context.Context, *pgxpool.Conn) error {
	return func(ctx context.Context, conn *pgxpool.Conn) error {
		// Scan closes the rows, which reads on to the end of the transaction: a row that
		// arrives before a failing commit is not taken for its success.
		return conn.QueryRow(ctx, sql, args...).Scan(dest...)
	}
}

// decideRows is decide for a call that reads its rows itself.
func (c *Catalogue) decideRows(ctx context.Context, call func(context.Context, *pgxpool.Conn) error) error {
	return c.repeat(ctx, c.confirmedOn, call)
}

func (c *Catalogue) repeat(ctx context.Context, confirm, call func(context.Context, *pgxpool.Conn) error) error {
	var err error
	for range decisionTries {
		err = c.decideOnce(ctx, confirm, call)
		if !errors.Is(err, errConflict) && !pgconn.SafeToRetry(err) {
			return err
		}
		if ctx.Err() != nil {
			return readFault(ctx.Err())
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func (c *Catalogue) decideOnce(ctx context.Context, confirm, call func(context.Context, *pgxpool.Conn) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return readFault(ctx.Err())
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer conn.Release()
	data := conn.Conn().PgConn().CustomData()
	delete(data, unreplicatedKey)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.opts.DecisionTimeout)
	defer cancel()
	if err := confirm(ctx, conn); err != nil {
		return err
	}
	err = call(ctx, conn)
	if warning, ok := data[unreplicatedKey]; ok && err == nil {
		return fmt.Errorf("%w: %v", errUnknown, warning)
	}
	if err != nil {
		return commitFault(err)
	}
	// Another history may have begun while this was decided: then it counts for nothing.
	if err := confirm(ctx, conn); err != nil {
		return fmt.Errorf("%w: the epoch is not confirmed any more: %v", errUnknown, err)
	}
	return nil
}

// commitFault sorts the error of a call that is one whole transaction. Only an ERROR from the
// server says for certain that it was rolled back: a FATAL can arrive after the commit (while it
// waited for a standby), and a broken connection says nothing.
func commitFault(err error) error {
	var pgErr *pgconn.PgError
	switch {
	case err == nil, pgconn.SafeToRetry(err), errors.Is(err, pgx.ErrNoRows):
		return err
	case errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR":
		switch pgErr.Code {
		case "40P01", "40001", "23503": // deadlock, serialisation, a foreign key that refereed a race
			return fmt.Errorf("%w: %w", errConflict, err)
		case "AD001", "AD002": // begin_decision, begin_collection
			return &HistoryChangedError{Seen: pgErr.Message, Operator: pgErr.Code == "AD002"}
		case "57014", "55P03", "25006", "53100", "53200", "53300": // timeouts, read-only, out of room
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err
	default:
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
}

// definite is for calls that may simply be repeated: not knowing whether one was carried out is
// no more than the database being unavailable.
func definite(err error) error {
	if errors.Is(err, errUnknown) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// readFault sorts the error of a statement that only reads.
func readFault(err error) error {
	var pgErr *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR" && pgErr.Code != "57014" && pgErr.Code != "25006":
		return err
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}
