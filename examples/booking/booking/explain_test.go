package booking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestExplainTellsADatabaseThatIsAwayFromOneThatRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err  error
		away bool
	}{
		"shutting down":    {&pgconn.PgError{Code: "57P01"}, true},
		"too many clients": {&pgconn.PgError{Code: "53300"}, true},
		"hung up":          {fmt.Errorf("read: %w", io.ErrUnexpectedEOF), true},
		"closed":           {net.ErrClosed, true},
		"too slow":         {context.DeadlineExceeded, true},
		"given up":         {context.Canceled, true},
		"a constraint":     {&pgconn.PgError{Code: "23514"}, false},
		"without a code":   {&pgconn.PgError{}, false},
		"no fence":         {fencedb.ErrNoToken, false},
		"a bug":            {errors.New("a bug"), false},
		"nothing":          {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := explain(tc.err)
			require.ErrorIs(t, got, tc.err)
			require.Equal(t, tc.away, errors.Is(got, ErrUnavailable))
		})
	}
}

func TestEveryMethodExplains(t *testing.T) {
	t.Parallel()
	nowhere, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/nothing")
	require.NoError(t, err)
	t.Cleanup(nowhere.Close)
	s, b := NewPostgres(nowhere), Booking{Table: 12}
	holder := fencedb.NewGrant(Resource(12), 41, uuid.New(), fencedb.NoEnd)
	for name, call := range map[string]func(context.Context) error{
		"Seal":     func(ctx context.Context) error { return s.Seal(ctx, holder) },
		"Find":     func(ctx context.Context) error { _, _, err := s.Find(ctx, b.Table, b.Slot); return err },
		"Get":      func(ctx context.Context) error { _, _, err := s.Get(ctx, b.ID); return err },
		"List":     func(ctx context.Context) error { _, err := s.List(ctx, b.Table, b.Slot); return err },
		"Answered": func(ctx context.Context) error { _, _, err := s.Answered(ctx, holder, "0b6f", b); return err },
		"Save":     func(ctx context.Context) error { _, err := s.Save(ctx, holder, "", b); return err },
		"Remove":   func(ctx context.Context) error { _, err := s.Remove(ctx, holder, b.ID); return err },
	} {
		require.ErrorIs(t, call(t.Context()), ErrUnavailable, name)
	}
}
