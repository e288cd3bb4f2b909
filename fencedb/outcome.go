package fencedb

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// askTime is how long the outcome of a COMMIT is asked for, after the time at which the server has
// ended the transaction.
const askTime = 5 * time.Second

// findOutcome asks whether a transaction has committed whose COMMIT returned err instead of an
// answer: the connection was lost, or an earlier result could not be read. delivered: the caller
// has every result.
func (e *entry) findOutcome(ctx context.Context, server asker, err error, lost, delivered bool) error {
	asking, cancel := e.asking(ctx)
	defer cancel()
	switch outcome, askErr := e.ask(asking, server); {
	case askErr != nil:
		return e.unknown(err, askErr)
	case outcome == "aborted":
		return e.explain(ctx, nil, lost, fmt.Errorf("fencedb: rolled back: %w", err))
	case delivered:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrCommitted, err)
}

func (e *entry) unknown(err, askErr error) error {
	return &CommitUnknownError{XID: e.xid, Epoch: e.epoch, cause: fmt.Errorf("%w; asking failed: %w", err, askErr)}
}

// asking returns the context in which findOutcome asks. It ends askTime after the end of the lease,
// or after the end of ctx if that is earlier; without either, askTime from now. It lasts at least
// half of askTime, for a process that was stopped and could not ask earlier.
func (e *entry) asking(ctx context.Context) (context.Context, context.CancelFunc) {
	now := time.Now()
	end := now.Add(askTime)
	if !e.until.IsZero() {
		end = e.until.Add(askTime)
	}
	if deadline, ok := ctx.Deadline(); ok && deadline.Add(askTime).Before(end) {
		end = deadline.Add(askTime)
	}
	if least := now.Add(askTime / 2); end.Before(least) {
		end = least
	}
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(askTime, cancel) })
	return asking, func() { stop(); cancel() }
}

// ask returns the outcome of the transaction: "committed" or "aborted". If the transaction is still
// in progress, because the server has not noticed that its client is gone, ask waits for it until
// ctx ends. Each try has a limit of its own: other connections of the pool may be lost, too.
//
// A server that has crashed since, or was promoted, does not know the outcome (see
// fencedb.server_epoch). A server in recovery is asked again.
func (e *entry) ask(ctx context.Context, server asker) (outcome string, err error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, askTime/2-askTime/10)
		answer, err := e.askOnce(try, server)
		cancel()
		if answer != "" { // otherwise ctx has ended during the try
			outcome = answer
		}
		switch {
		case err == nil && (outcome == "committed" || outcome == "aborted"):
			return outcome, nil
		case errors.Is(err, errForgotten), errors.Is(err, errOnlyConnLost):
			return "", err
		}
		select {
		case <-ctx.Done():
			if outcome == "" { // not even that it is in progress
				return "", err
			}
			return "", noted(fmt.Errorf("asked for its outcome, got %q", outcome), err)
		case <-time.After(pause):
		}
	}
}

// The setting suppresses notices that are not about the COMMIT of this query.
const outcomeQuery = `SELECT coalesce(fencedb.outcome($1::pg_catalog.text::pg_catalog.xid8, $2::bigint), '') FROM pg_catalog.set_config('client_min_messages', 'warning', true)`

var errForgotten = errors.New("the server has crashed or failed over since, or has forgotten so old a transaction")

// askOnce asks once; "in progress" is an answer, too. "committed" with an error means that the
// commit is visible, perhaps on this server only: the answer comes before the COMMIT of the query,
// which waits for the same standby (fencedb.outcome).
func (e *entry) askOnce(ctx context.Context, server asker) (outcome string, err error) {
	noticed, err := server(ctx, &outcome, outcomeQuery, strconv.FormatUint(e.xid, 10), e.epoch)
	switch {
	case err == nil && outcome == "":
		err = errForgotten
	case err == nil && noticed && outcome == "committed":
		err = errNoticed
	}
	return outcome, err
}

// errNoticed: a COMMIT that has succeeded with a notice may be known to this server only. If
// somebody cancels its wait for a standby (pg_cancel_backend, a pooler, a late cancel request),
// Postgres says so in a WARNING and commits. pgx passes notices only to whoever configured the
// connection. A trace shows that there was a notice, but not which, so the server is asked after
// any.
var errNoticed = errors.New("fencedb: COMMIT has succeeded with a notice, as when its wait for a standby was cancelled")

// noticed is true once a notice has come since listen.
type noticed bool

// listen traces conn for notices until stop. It replaces a trace of pgproto3 that the application
// may have set. If a DB does not show its connection (nil), no notice is seen. Neither listen nor
// stop touches a closed connection: pgx may still be sending its goodbye from a goroutine of its
// own.
func listen(conn *pgx.Conn) *noticed {
	n := new(noticed)
	if conn == nil || conn.IsClosed() {
		return n
	}
	conn.PgConn().Frontend().Trace(n, pgproto3.TracerOptions{SuppressTimestamps: true, RegressMode: true})
	return n
}

func (n *noticed) stop(conn *pgx.Conn) {
	if conn != nil && !conn.IsClosed() {
		conn.PgConn().Frontend().Untrace()
	}
}

// Write is called by pgproto3 with a line for each message.
func (n *noticed) Write(message []byte) (int, error) {
	if bytes.HasPrefix(message, []byte("B\tNoticeResponse")) {
		*n = true
	}
	return len(message), nil
}

// refused reports whether Postgres itself answered that it did not commit. After a FATAL answer, as
// at a shutdown, the transaction may have committed all the same. The same holds after an answer of
// a connection pooler that lost its own connection to Postgres; such answers lack the severity
// field that Postgres always fills.
func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}

// brokenConn reports whether err is a driver's error for a broken connection. It is used where the
// connection itself cannot be asked, and says nothing about the outcome of a transaction.
func brokenConn(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, new(*net.OpError)) || pgconn.Timeout(err) || pgconn.SafeToRetry(err)
}
