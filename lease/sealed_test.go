package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// One set of leases, of which those for work are sealed.
func ExampleIssuer_Sealed() {
	client, disconnect := connect()
	defer disconnect()
	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	sealed := issuer.Sealed(func(_ context.Context, grants ...lease.Grant) error { // such as fencedb.Sealer(pool)
		fmt.Println("Postgres learns the token for", grants[0].Resource())
		return nil
	})

	l, err := sealed.Acquire(context.Background(), "table:12")
	fmt.Println(err)
	_, err = issuer.Acquire(context.Background(), "table:12", lease.NoWait())
	fmt.Println(errors.Is(err, lease.ErrHeld))
	fmt.Println(l.Release(context.Background()))
	// Output:
	// Postgres learns the token for table:12
	// <nil>
	// true
	// <nil>
}

// Options, waiters, leases and Close are those of the issuer. Only the seal is its own.
func TestASealedIssuerIsTheSameIssuer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		seals := 0
		seal := func(context.Context, ...lease.Grant) error { seals++; return nil }
		issuer := w.issuer(t, lease.Config{TTL: 9 * time.Second})
		sealed := issuer.With(lease.NoWait()).Sealed(seal)

		held := try(t, issuer, "a")
		require.Zero(t, seals)
		_, err := sealed.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrHeld, "the option came along")
		require.NoError(t, held.Release(t.Context()))

		held, err = sealed.Acquire(t.Context(), "a")
		require.NoError(t, err)
		require.NoError(t, sealed.DoAll(t.Context(), []string{"b", "c"}, func(context.Context, lease.Leases) error { return nil }))
		ctx, stop := context.WithCancel(t.Context())
		require.ErrorIs(t, sealed.Lead(ctx, "d", func(context.Context, *lease.Lease) error { stop(); return nil }), context.Canceled)
		require.Equal(t, 3, seals)
		time.Sleep(time.Minute)
		require.NoError(t, held.Err(), "it is renewed")

		require.NoError(t, issuer.Close(t.Context()))
		require.ErrorIs(t, held.Err(), lease.ErrClosed)
		_, err = sealed.Acquire(t.Context(), "a")
		require.ErrorIs(t, err, lease.ErrClosed)
	})
}

// They may be of two data stores.
func TestTheSealOfAConfigRunsBeforeAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var by []string
		var failing string
		failed := errors.New("refused")
		seal := func(who string) func(context.Context, ...lease.Grant) error {
			return func(context.Context, ...lease.Grant) error {
				by = append(by, who)
				if who == failing {
					return failed
				}
				return nil
			}
		}
		issuer := w.issuer(t, lease.Config{TTL: 9 * time.Second, Seal: seal("its own")})
		for _, c := range []struct {
			issuer  *lease.Issuer
			failing string
			by      []string
		}{
			{issuer, "", []string{"its own"}},
			{issuer.Sealed(nil), "", []string{"its own"}},
			{issuer.Sealed(seal("another")), "", []string{"its own", "another"}},
			{issuer.Sealed(seal("another")), "its own", []string{"its own"}},
			{issuer.Sealed(seal("another")), "another", []string{"its own", "another"}},
			{issuer.Sealed(seal("another")).Sealed(seal("a third")), "", []string{"its own", "another", "a third"}},
		} {
			by, failing = nil, c.failing
			err := c.issuer.Do(t.Context(), "a", func(context.Context, *lease.Lease) error { return nil })
			if failing == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, failed)
			}
			require.Equal(t, c.by, by)
		}
	})
	require.Nil(t, (*lease.Issuer)(nil).Sealed(nil))
	_, err := new(lease.Issuer).Sealed(nil).Acquire(t.Context(), "a")
	require.ErrorIs(t, err, lease.ErrInvalid)
}
