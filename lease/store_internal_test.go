package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

// A withdrawal may come more than once, and late: it ends what its own acquisition was granted, and
// nothing of the next.
func TestAWithdrawalEndsWhatItsOwnCallGotAndNothingElse(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for name, s := range map[string]*store{
		protocol.LeaseKind:     newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour, Holder: "me"}),
		protocol.SemaphoreKind: newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour, Holder: "me", permits: 1}),
	} {
		for n, order := range []string{"1w2", "1w2w", "11ww2w", "21w", "2w", "w2w1w", "w1w2"} {
			k := protocol.KeysOf(name, "", fmt.Sprint(n), false)
			first, second := uuid.New(), uuid.New()
			var token int64
			for _, step := range order {
				switch step {
				case 'w':
					endsWhatMayBe(t, s, k, first)
				case '1':
					asks(t, s, k, first, modeTry)
				case '2':
					token = asks(t, s, k, second, modeTry)
				}
			}
			standing, err := protocol.Query(t.Context(), s.redis, protocol.Patience, s.inspect(k),
				func(r protocol.Reply) (Standing, error) {
					return s.standing(term{keys: k, id: second.String(), token: token}, r)
				})
			require.NoError(t, err)
			require.Equal(t, Current, standing, "%s %s", name, order)
			endsWhatMayBe(t, s, k, second)
			require.Positive(t, asks(t, s, k, uuid.New(), modeTry), "%s %s: nobody has it", name, order)
		}
	}
}

// asks returns the token that it was granted, 0 if another holds.
func asks(t *testing.T, s *store, k *protocol.Keys, id uuid.UUID, how mode) (token int64) {
	t.Helper()
	answer, err := protocol.Query(t.Context(), s.redis, protocol.Patience,
		s.acquire([]*protocol.Keys{k}, id.String(), how),
		func(r protocol.Reply) (acquired, error) { return s.decodeAcquire(r, 1) })
	require.NoError(t, err)
	for _, token = range answer.tokens {
	}
	return token
}

func endsWhatMayBe(t *testing.T, s *store, k *protocol.Keys, id uuid.UUID) {
	t.Helper()
	_, err := protocol.Query(t.Context(), s.redis, protocol.Patience, s.withdraw(k, id.String()), protocol.Only("withdrawn"))
	require.NoError(t, err)
}

// A waiter that was woken and then gives up has used up the wake-up. Its turn must pass on.
func TestAWithdrawalPassesTheTurnOn(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	s := newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour, Holder: "me"})
	k := protocol.KeysOf(protocol.LeaseKind, "", "a", false)
	withdraw := func(id uuid.UUID) { t.Helper(); endsWhatMayBe(t, s, k, id) }
	ask := func(id uuid.UUID, how mode) int64 { t.Helper(); return asks(t, s, k, id, how) }
	holder, first, second := uuid.New(), uuid.New(), uuid.New()
	granted := ask(holder, modeTry)
	require.Positive(t, granted)
	require.Zero(t, ask(first, modeWait))
	require.Zero(t, ask(second, modeWait))

	messages := client.Subscribe(context.Background(), fmt.Sprintf("%s:%s", k.Channel, s.listener))
	defer messages.Close()
	_, err := messages.Receive(t.Context())
	require.NoError(t, err)
	next := func() string {
		t.Helper()
		message, err := messages.ReceiveTimeout(t.Context(), 10*time.Second) // or a test that has to fail would hang
		require.NoError(t, err, "nobody was called")
		return message.(*redis.Message).Payload
	}

	withdraw(second)
	require.Zero(t, ask(second, modeWait), "it comes back, to the end")
	result, err := protocol.Query(t.Context(), s.redis, protocol.Patience,
		s.release(term{keys: k, id: holder.String(), token: granted}), decodeGivenBack)
	require.NoError(t, err)
	require.Equal(t, done, result)
	require.Equal(t, "free "+first.String(), next(), "the withdrawal of a waiter while the resource is held wakes nobody")

	withdraw(first)
	require.Equal(t, "free "+second.String(), next())
	require.Positive(t, ask(second, modeWait))
	withdraw(second)
	require.Positive(t, ask(first, modeTry), "a grant whose reply was lost is given back")
}

// A process that is stopped between deciding to ask and asking has not heard from Redis, and may
// ask again.
func TestATimeThatIsOverBeforeTheRequestIsSentIsNoAnswer(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer client.Close()
	i, err := New(client, Config{TTL: time.Minute})
	require.NoError(t, err)
	a, err := newAcquisition(t.Context(), i.core, []string{"table:12"}, nil)
	require.NoError(t, err)

	_, err = a.newStep(0, 1).ask(t.Context(), modeTry, 0) // over at once

	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, protocol.Transient(err))
}
