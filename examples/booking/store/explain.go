package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// explain adds [booking.ErrUnavailable] to the errors that come of a Postgres that does not answer, or not now.
func explain(err error) error {
	if err == nil || !unavailable(err) {
		return err
	}
	return fmt.Errorf("%w: %w", booking.ErrUnavailable, err)
}

func unavailable(err error) bool {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		switch answer.Code[:2] { // the class of the SQLSTATE
		case "08", "53", "57": // connection, resources, shutting down or starting up
			return true
		}
	}
	var dial *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &dial) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, context.Canceled)
}
