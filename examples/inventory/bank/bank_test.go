package bank_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/bank"
	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func atOnce() time.Duration { return 0 }

func TestAChargeIsMadeAndGivenBackOnce(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	b := bank.New(db, atOnce)
	require.NoError(t, b.Open(t.Context()))
	require.NoError(t, b.Open(t.Context()), "again")
	key := uuid.New()

	require.NoError(t, b.Charge(t.Context(), key, 995))
	require.NoError(t, b.Charge(t.Context(), key, 995))
	require.NoError(t, b.Refund(t.Context(), key))
	require.NoError(t, b.Refund(t.Context(), key))
	require.ErrorIs(t, b.Charge(t.Context(), key, 995), bank.ErrVoid)

	var state string
	var cents int64
	require.NoError(t, db.QueryRow(t.Context(), `SELECT state, cents FROM bank.charges`).Scan(&state, &cents))
	require.Equal(t, "REFUNDED", state)
	require.EqualValues(t, 995, cents)
}

func TestARefundStopsAChargeThatComesLater(t *testing.T) {
	t.Parallel()
	b := bank.New(testenv.Postgres(t), atOnce)
	require.NoError(t, b.Open(t.Context()))
	key := uuid.New()

	require.NoError(t, b.Refund(t.Context(), key))

	require.ErrorIs(t, b.Charge(t.Context(), key, 995), bank.ErrVoid)
}

func TestTheMoneyMayHaveMovedWhenTheAnswerWasNotAwaited(t *testing.T) {
	t.Parallel()
	db := testenv.Postgres(t)
	ctx, giveUp := context.WithCancel(t.Context())
	b := bank.New(db, func() time.Duration {
		giveUp()
		return time.Hour
	})
	require.NoError(t, b.Open(t.Context()))

	require.ErrorIs(t, b.Charge(ctx, uuid.New(), 995), context.Canceled)

	var charges int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM bank.charges WHERE state = 'CHARGED'`).Scan(&charges))
	require.Equal(t, 1, charges)
}
