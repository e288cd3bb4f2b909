package sale

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func atOnce() time.Duration { return 0 }

func newBooks(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db := testenv.Postgres(t)
	execute(t, db, bankSchema)
	return db
}

func TestAChargeIsMadeAndGivenBackOnce(t *testing.T) {
	t.Parallel()
	db := newBooks(t)
	b := &pretendBank{db, atOnce}
	key := uuid.New()

	require.NoError(t, b.Charge(t.Context(), key, 995))
	require.NoError(t, b.Charge(t.Context(), key, 995))
	require.NoError(t, b.Refund(t.Context(), key))
	require.NoError(t, b.Refund(t.Context(), key))
	require.ErrorIs(t, b.Charge(t.Context(), key, 995), errVoid)

	var state string
	var cents int64
	require.NoError(t, db.QueryRow(t.Context(), `SELECT state, cents FROM bank.charges`).Scan(&state, &cents))
	require.Equal(t, "REFUNDED", state)
	require.EqualValues(t, 995, cents)
}

func TestARefundStopsAChargeThatComesLater(t *testing.T) {
	t.Parallel()
	b := &pretendBank{newBooks(t), atOnce}
	key := uuid.New()

	require.NoError(t, b.Refund(t.Context(), key))

	require.ErrorIs(t, b.Charge(t.Context(), key, 995), errVoid)
}

func TestTheMoneyMayHaveMovedWhenTheAnswerWasNotAwaited(t *testing.T) {
	t.Parallel()
	db := newBooks(t)
	ctx, giveUp := context.WithCancel(t.Context())
	b := &pretendBank{db, func() time.Duration {
		giveUp()
		return time.Hour
	}}

	require.ErrorIs(t, b.Charge(ctx, uuid.New(), 995), context.Canceled)

	var charges int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FROM bank.charges WHERE state = 'CHARGED'`).Scan(&charges))
	require.Equal(t, 1, charges)
}
