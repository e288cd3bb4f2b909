package guard

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
)

// Outcome is what became of a call, for its caller. See [Answer].
type Outcome int

const (
	// Done: the work stands. HTTP status 200.
	Done Outcome = iota
	// Busy: another holder has the resource, or may have it by now, or another transaction was in
	// the way. The transaction that failed wrote nothing; those before it stand. The same call may
	// succeed later. 409.
	Busy
	// Unavailable: Redis or Postgres did not answer, refuses work for now, or did not finish before
	// the context ended. Nothing was acquired, or the transaction that failed wrote nothing; those
	// before it stand. The same call may succeed later. 503.
	Unavailable
	// Unknown: it is not known whether the work was done, such as after a COMMIT, or a call over
	// grant.Transport, whose answer was lost. Look before you repeat it, or let [fencedb.Once]
	// decide. 504.
	Unknown
	// Refused: the work itself returned an error, or the program or its configuration is wrong. The
	// same call fails again. Check for your own errors first. 500.
	Refused
)

// HTTPStatus returns the status of a response, as above.
func (o Outcome) HTTPStatus() int {
	return [...]int{http.StatusOK, http.StatusConflict, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
		http.StatusInternalServerError}[o]
}

func (o Outcome) String() string {
	return [...]string{"done", "busy", "unavailable", "unknown", "refused"}[o]
}

// Answer returns what err means to the caller of a service. It knows the errors of packages
// fencedb, lease, once and grant, and those of the drivers of Postgres, database/sql and the
// network, anywhere in the tree of err; any other error is [Refused]. A network error of the work
// itself, such as a bank that does not answer, is [Unavailable]; only http.Client.Timeout is
// [Unknown], since it hides whether the request was sent. A certificate that is not trusted is
// Refused.
//
// If several errors are joined, an unknown outcome counts first, then a mistake, then work that was
// done, then a loss, and last an outage. The error of a QueryRow without a row is Refused although
// its statement has committed: usually no row met its condition, and nothing was done.
func Answer(err error) Outcome {
	is := func(target error) bool { return errors.Is(err, target) }
	lost, notLost := protocol.LostIn(err)
	switch {
	case err == nil:
		return Done
	case is(fencedb.ErrCommitUnknown), is(fencedb.ErrTxEnded), is(protocol.ErrReceiverUnknown), timedOut(err):
		return Unknown
	case slices.ContainsFunc(mistakes, is), is(fencedb.ErrCommitted) && is(pgx.ErrNoRows),
		errors.As(err, new(*tls.CertificateVerificationError)):
		return Refused
	case is(lease.ErrWorkDone), is(fencedb.ErrCommitted), is(once.ErrNotRecorded):
		return Done
	case notLost: // by an error of another package
		return Unknown
	case lost:
		return Busy
	}
	if code, answered := sqlState(err); answered {
		return ofSQLState(code)
	}
	if slices.ContainsFunc(away, is) || errors.As(err, new(*pgconn.ConnectError)) || errors.As(err, new(net.Error)) {
		return Unavailable
	}
	return Refused
}

// sqlState returns the code of an answer of Postgres. Most drivers have a method for it; pgdriver
// returns fields by their letters in the protocol.
func sqlState(err error) (code string, answered bool) {
	var (
		known    interface{ SQLState() string }
		pgdriver interface{ Field(field byte) string }
	)
	switch {
	case errors.As(err, &known):
		return known.SQLState(), true
	case errors.As(err, &pgdriver):
		return pgdriver.Field('C'), true
	}
	return "", false
}

// timedOut reports whether http.Client.Timeout, or a transport that waited too long for an answer,
// has put an error of its own in the place of all others. Those of package net look alike, within
// an error of a connection or of a look-up.
func timedOut(err error) bool {
	late, is := errors.AsType[interface {
		net.Error
		Is(error) bool
	}](err)
	return is && late.Is(context.DeadlineExceeded) &&
		!errors.As(err, new(*net.OpError)) && !errors.As(err, new(*net.DNSError))
}

// RetryAfter returns how long to wait before the same call, for an err that is [Busy] or
// [Unavailable]: at most until the lease in the way expires, or one second if err does not say
// when. For other errors it is zero: the same call does not help.
func RetryAfter(err error) time.Duration {
	if o := Answer(err); o != Busy && o != Unavailable {
		return 0
	}
	if held, is := errors.AsType[*lease.HeldError](err); is && held.RetryAfter > 0 {
		return held.RetryAfter
	}
	if running, is := errors.AsType[*once.InFlightError](err); is && running.RetryAfter > 0 {
		return running.RetryAfter
	}
	return time.Second
}

// ofSQLState returns the outcome for an error of Postgres that package fencedb does not explain.
func ofSQLState(code string) Outcome {
	switch code {
	case "40001", "40P01", "55P03": // a conflict, a deadlock, a lock that did not come free
		return Busy
	case "25006", "57014": // a standby, after a fail-over; cancelled, or too slow
		return Unavailable
	case "57P04": // the database was dropped
		return Refused
	}
	if len(code) == len("57P01") {
		switch code[:2] { // the class
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return Unavailable
		}
	}
	return Refused
}

// mistakes are errors for which a retry does not help, whatever else went wrong.
var mistakes = []error{
	fencedb.ErrInvalidGrant, fencedb.ErrAlreadyWritten, fencedb.ErrUnsealed, fencedb.ErrNoToken,
	fencedb.ErrWrongResource, fencedb.ErrTooLong, fencedb.ErrKeyReused,
	lease.ErrInvalid, lease.ErrCorrupt, lease.ErrExhausted, lease.ErrUnfit, lease.ErrProtocol,
	&lease.RefusedError{Code: protocol.Denied}, once.ErrKeyReused,
}

// away are the errors of a server that does not answer, or not in time, and of a program that ends.
var away = []error{
	lease.ErrUnreachable, lease.ErrRefused, lease.ErrClosed, context.DeadlineExceeded, context.Canceled,
	io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed, driver.ErrBadConn, sql.ErrConnDone,
	protocol.ErrUnasked, puddle.ErrClosedPool, errDBClosed,
}

// errDBClosed is the error of a sql.DB that is closed. Package sql does not export it.
var errDBClosed = func() error {
	db := sql.OpenDB(nowhere{})
	_ = db.Close()
	return db.Ping()
}()

type nowhere struct{ driver.Connector }
