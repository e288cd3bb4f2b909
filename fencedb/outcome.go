package fencedb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// askTime is how long we ask for the fate of a commit beyond the time at which the server has ended
// the transaction.
const askTime = 5 * time.Second

// settle asks for the true result of a transaction whose COMMIT may have been carried out, although
// err came instead of the answer: with the loss of the connection, or because a result before it
// could not be read. delivered says that the caller has got every result.
func (e *entry) settle(ctx context.Context, server asker, err error, lost, delivered bool) error {
	committed, askErr := e.ask(ctx, server)
	switch {
	case askErr != nil:
		return e.unknown(err, askErr)
	case committed && delivered:
		return nil
	case committed:
		return fmt.Errorf("%w: %w", ErrCommitted, err)
	case lost:
		err = fmt.Errorf("fencedb: rolled back: the connection was lost: %w", err)
	}
	return e.explain(ctx, nil, lost, err)
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
	if least := now.Add(askTime / 2); end.Before(least) {
		end = least
	}
	asking, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(askTime, cancel) })
	return asking, func() { stop(); cancel() }
}

// ask finds out whether the transaction committed. A transaction still in progress, because the
// server has not noticed that its client is gone, is waited for: until bounds it. Each try is
// bounded as well: of the connections in a pool some may be as lost as ours.
//
// A server that has crashed since, or was promoted, does not know (see fencedb.server_epoch); one
// that is in recovery fails to answer, and is asked again.
func (e *entry) ask(ctx context.Context, server asker) (committed bool, err error) {
	ctx, cancel := e.asking(ctx)
	defer cancel()

	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, askTime/2-askTime/10)
		status, err := server(try, e)
		cancel()
		switch {
		case status == "committed":
			return true, nil
		case status == "aborted":
			return false, nil
		case err == nil && status == "":
			return false, errForgotten
		case errors.Is(err, errNobodyLeft):
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, noted(fmt.Errorf("asked for its outcome, got %q", status), err)
		case <-time.After(pause):
		}
	}
}

// asker asks what became of the transaction of an entry: committed, aborted, in
// progress, or "" if that cannot be known.
type asker func(ctx context.Context, e *entry) (string, error)

const outcomeQuery = `SELECT coalesce(fencedb.outcome($1::text::xid8, $2::bigint), '')`

var errForgotten = errors.New("the server has crashed or failed over since, or has forgotten so old a transaction")

// errNobodyLeft: a single connection that was lost cannot be asked.
var errNobodyLeft = errors.New("fencedb: the only connection is lost")

// askOn asks on a connection of db.
func askOn(db DB) asker {
	return func(ctx context.Context, e *entry) (status string, err error) {
		conn, release, err := acquire(ctx, db)
		if err != nil {
			return "", err
		}
		defer release()
		defer func() { abandon(pgxConn(conn)) }()
		b := &pgx.Batch{}
		b.Queue(outcomeQuery, strconv.FormatUint(e.xid, 10), e.epoch)
		results := conn.SendBatch(ctx, b)
		err = results.QueryRow().Scan(&status)
		err = errors.Join(err, after(results.Close(), err))
		if own := pgxConn(db); own != nil && own.IsClosed() {
			err = noted(errNobodyLeft, err)
		}
		return status, err
	}
}

// refused reports whether Postgres itself answered that it did not commit. After a FATAL answer, as
// when it is being shut down, the transaction may have committed all the same. So may it after an
// answer of a connection pooler, which lost its own connection to Postgres: what poolers write has
// no severity in the field that Postgres always fills.
func refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}
