package guard

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// IsUnavailable reports whether err says that Redis or Postgres did not answer, refuses work for
// now, or was not done before the context ended: the answer to a caller is "not available, try
// again". Nothing was acquired, or the transaction that failed wrote nothing; those before it
// stand.
//
// It is false for what [lease.IsLost] answers, and if err also says what makes that false: that the
// work was done or may have been, such as [lease.ErrWorkDone], [fencedb.ErrCommitUnknown] or
// once.ErrNotRecorded, or that the caller made a mistake, [fencedb.ErrInvalidGrant]. An error of
// the work itself that looks like a network's, such as that of a bank that does not answer, is
// judged in the same way.
func IsUnavailable(err error) bool {
	is := func(target error) bool { return errors.Is(err, target) }
	if lost, settled := protocol.LostIn(err); lost || settled {
		return false
	}
	if answer, answered := errors.AsType[*pgconn.PgError](err); answered && len(answer.Code) == len("57P01") {
		switch answer.Code[:2] { // the class of the SQLSTATE
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return true
		}
	}
	return slices.ContainsFunc(away, is) || errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error))
}

// away are the errors of a server that does not answer, or not in time.
var away = []error{
	lease.ErrUnreachable, lease.ErrRefused, fencedb.ErrTooLong, context.DeadlineExceeded, context.Canceled,
	io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
}
