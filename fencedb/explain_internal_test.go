package fencedb

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// The deadline may pass, and end the connection, just after the server has answered. What the
// server has said counts, and its values stay.
func TestAnAnswerCountsAlsoWhenTheDeadlineEndedTheConnection(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for code, want := range map[string]error{
		codeLockNotAvailable:     ErrBusy,
		codeSerializationFailure: ErrUnsealed,
		codeInvalidParameter:     ErrInvalidGrant,
		codeStale:                ErrStale,
		codeLeaseOver:            ErrLeaseOver,
	} {
		e, err := newEntry(nil, NewGrant("table:12", 42, uuid.New(), time.Now().Add(time.Hour)), nil)
		require.NoError(t, err)
		_, err = e.remaining()
		require.NoError(t, err)

		err = e.explain(ctx, nil, true, &pgconn.PgError{Code: code, Detail: `{"blockers": [{"pid": 4711}]}`})

		require.ErrorIs(t, err, want, code)
		if busy, ok := err.(*BusyError); ok {
			require.Equal(t, 4711, busy.Blockers[0].PID)
		}
	}
}

// A limit of the role, and a request to cancel, end any wait. That another holder has the resource
// is said only if a session was seen to hold the fence.
func TestALimitOfTheRoleIsBusyOnlyBehindAHolder(t *testing.T) {
	t.Parallel()
	for _, code := range []string{codeLockNotAvailable, codeQueryCanceled, codeTransactionTimeout} {
		for _, held := range []string{`[]`, `[{"pid": 4711}]`} {
			e, err := newEntry(nil, NewGrant("table:12", 42, uuid.New(), time.Now().Add(time.Hour)), nil)
			require.NoError(t, err)
			server := func(_ context.Context, dest any, _ string, _ ...any) (bool, error) {
				*dest.(*[]byte) = []byte(held)
				return false, nil
			}

			err = e.explain(t.Context(), server, false, &pgconn.PgError{Code: code, Severity: "ERROR"})

			require.Equal(t, held != `[]`, errors.Is(err, ErrBusy), "%s, %s: %v", code, held, err)
			require.Equal(t, code, answered(err).code)
			var lost interface{ LeaseLost() bool } // lease.IsLost
			require.Equal(t, held != `[]`, errors.As(err, &lost) && lost.LeaseLost(), "%s, %s: %v", code, held, err)
		}
	}
}

// fencedb.admitted sets the limits of the server one part in 256 short, and whole milliseconds are
// rounded down three times on the way.
func TestWhatTheServerEndsALittleEarlyHasEndedByItsLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		validity time.Duration
		opts     []Option
		early    time.Duration // after which somebody else has ended it
		late     time.Duration // after which it was the limit
		want     error
	}{
		"of the lease": {time.Minute, nil, 59 * time.Second, 59900 * time.Millisecond, ErrLeaseOver},
		"of a Timeout": {time.Hour, []Option{Timeout(500 * time.Millisecond)}, 495 * time.Millisecond, 496 * time.Millisecond, ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, err := newEntry(nil, NewGrant("table:12", 42, uuid.New(), time.Now().Add(c.validity)), c.opts)
				require.NoError(t, err)
				_, err = e.remaining()
				require.NoError(t, err)
				e.xid = 1
				cancelled := &pgconn.PgError{Code: codeQueryCanceled}

				time.Sleep(c.early)
				require.NotErrorIs(t, e.explain(t.Context(), nil, false, cancelled), c.want)
				time.Sleep(c.late - c.early)
				require.ErrorIs(t, e.explain(t.Context(), nil, false, cancelled), c.want)
			})
		})
	}
}

// The server ends a Timeout of an hour 14 seconds early. A short lease may have less than that
// left.
func TestATimeoutThatTheServerEndsALittleEarlyHasNotEndedWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &renewable{NewGrant("table:12", 42, uuid.New(), NoEnd), time.Now().Add(time.Second)}
		e, err := newEntry(nil, l, []Option{Timeout(time.Hour)})
		require.NoError(t, err)
		_, err = e.remaining()
		require.NoError(t, err)
		e.xid = 1
		time.Sleep(time.Hour - 14*time.Second)
		cancelled := &pgconn.PgError{Code: codeTransactionTimeout}

		l.until = time.Now().Add(time.Second)
		require.ErrorIs(t, e.explain(t.Context(), nil, false, cancelled), ErrTooLong)
		l.until = time.Now().Add(-time.Nanosecond)
		require.ErrorIs(t, e.explain(t.Context(), nil, false, cancelled), ErrLeaseOver)
	})
}

// renewable is a grant whose validity the test moves.
type renewable struct {
	Grant
	until time.Time
}

func (r *renewable) ValidUntil() time.Time { return r.until }

// Whoever stands between us and Postgres may answer without a row. Then nobody knows that a fence
// was taken.
func TestAnAnswerWithoutARowAdmitsToNothing(t *testing.T) {
	t.Parallel()
	e := &entry{}
	require.ErrorIs(t, e.admission(nil, nil), pgx.ErrNoRows)
	require.Zero(t, e.xid)
}

func TestABlockerWithoutATimeIsNotVisible(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		`[{"pid":7,"application":"shop","state":"not visible: grant pg_read_all_stats to app","open_ms":null}]`: "pid 7 (shop, not visible: grant pg_read_all_stats to app)",
		`[{"pid":7,"application":"shop","state":"idle in transaction","open_ms":12}]`:                           "pid 7 (shop, idle in transaction, open for 12ms)",
	} {
		found := named([]byte(list))
		require.Len(t, found, 1)
		require.Equal(t, want, found[0].String())
	}
}
