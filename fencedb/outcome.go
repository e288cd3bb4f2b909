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

// askTime is how long we ask for the fate of a commit beyond the time at which the server has ended
// the transaction.
const askTime = 5 * time.Second

// settle asks for the true result of a transaction whose COMMIT may have been carried out, although
// err came instead of the answer: with the loss of the connection, or because a result before it
// could not be read. delivered says that the caller has got every result.
func (e *entry) settle(ctx context.Context, server asker, err error, lost, delivered bool) error {
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

// asking is the time that there is for asking, in a context of its own: askTime after the lease is
// over, or after ctx is done if that is earlier. Without either it is askTime from now. Half of it
// in any case, since a process that was stopped meanwhile could not ask earlier.
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

// ask finds out what became of the transaction: "committed" or "aborted". A transaction still in
// progress, because the server has not noticed that its client is gone, is waited for: ctx, from
// asking, bounds it. Each try is bounded as well: of the connections in a pool some may be as lost
// as ours.
//
// A server that has crashed since, or was promoted, does not know (see fencedb.server_epoch); one
// that is in recovery fails to answer, and is asked again.
func (e *entry) ask(ctx context.Context, server asker) (outcome string, err error) {
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, askTime/2-askTime/10)
		answer, err := e.askOnce(try, server)
		cancel()
		if answer != "" { // and not the end of our time, which may come in the middle of a try
			outcome = answer
		}
		switch {
		case err == nil && (outcome == "committed" || outcome == "aborted"):
			return outcome, nil
		case errors.Is(err, errForgotten), errors.Is(err, errNobodyLeft):
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", noted(fmt.Errorf("asked for its outcome, got %q", outcome), err)
		case <-time.After(pause):
		}
	}
}

// The setting keeps notices away that say nothing of the COMMIT of the question.
const outcomeQuery = `SELECT coalesce(fencedb.outcome($1::pg_catalog.text::pg_catalog.xid8, $2::bigint), '') FROM pg_catalog.set_config('client_min_messages', 'warning', true)`

var errForgotten = errors.New("the server has crashed or failed over since, or has forgotten so old a transaction")

// askOnce answers "in progress" as well. "committed" with an error is visible, and may be so on
// this server alone: the answer comes before the COMMIT of the question, which waits for the
// standby that the other has waited for (fencedb.outcome).
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

// A COMMIT that has succeeded with a notice may be known to this server alone: somebody has
// cancelled its wait for a standby (pg_cancel_backend, a pooler, a late request to cancel), and
// Postgres says so in a WARNING and commits. pgx shows notices to whoever has made the connection.
// Tracing shows that there was one, and not which; so whatever it was, the server is asked.
var errNoticed = errors.New("fencedb: COMMIT has succeeded with a notice, as when its wait for a standby was cancelled")

// noticed is true once a notice has come since listen.
type noticed bool

// listen replaces a trace of pgproto3 that the application may have set. Of a DB that does not show
// its connection it hears nothing. stop ends it. Neither touches a connection that is closed: pgx
// may still be saying goodbye to the server, in a goroutine of its own.
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

// Write gets a line for each message.
func (n *noticed) Write(message []byte) (int, error) {
	if bytes.HasPrefix(message, []byte("B\tNoticeResponse")) {
		*n = true
	}
	return len(message), nil
}

// refused reports whether Postgres itself answered that it did not commit. After a FATAL answer, as
// when it is being shut down, the transaction may have committed all the same. So may it after an
// answer of a connection pooler, which lost its own connection to Postgres: what poolers write has
// no severity in the field that Postgres always fills.
func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}

// brokenConn reports whether err is what drivers say of a connection that broke, where the
// connection itself cannot be asked. It says nothing of what became of a transaction.
func brokenConn(err error) bool {
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, new(*net.OpError)) || pgconn.Timeout(err) || pgconn.SafeToRetry(err)
}
