package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Two calls ask under one lease id; the first is given up. Whatever order the network makes of its
// requests, the second keeps its lease, and when both are given up nobody has it.
func TestAWithdrawalEndsWhatItsOwnCallGotAndNothingElse(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	for name, s := range map[string]*store{
		protocol.LeaseKind:     newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour}),
		protocol.SemaphoreKind: newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour, permits: 1}),
	} {
		n := 0
		for order := range slices.Values([]string{"1w2", "12w", "21w", "2w1", "w12", "w21", "112w", "12w1", "121w", "w212", "2w12"}) {
			n++
			k := protocol.KeysOf(name, "", fmt.Sprint(n), false)
			id := uuid.New()
			var token int64
			for _, step := range order {
				if step == 'w' {
					require.NoError(t, s.withdraw(t.Context(), k, id, "1111"))
					continue
				}
				call := strings.Repeat(string(step), 4)
				answer, err := s.acquire(t.Context(), request{[]*protocol.Keys{k}, id.String(), call, modeTry, nil})
				require.NoError(t, err)
				if call == "2222" {
					token = answer.tokens[0]
				}
			}
			verdict, err := s.verify(t.Context(), term{keys: k, id: id.String(), token: token})
			require.NoError(t, err)
			require.Equal(t, Current, verdict, "%s %s", name, order)
			require.NoError(t, s.withdraw(t.Context(), k, id, "2222"))
			require.NoError(t, s.withdraw(t.Context(), k, id, "1111"), "once more, as it is sent when all requests have ended")
			other, err := s.acquire(t.Context(), request{[]*protocol.Keys{k}, uuid.NewString(), "3333", modeTry, nil})
			require.NoError(t, err)
			require.NotNil(t, other.tokens, "%s %s: nobody has it", name, order)
		}
	}
}

func (s *store) withdraw(ctx context.Context, k *protocol.Keys, id uuid.UUID, call string) error {
	_, err := protocol.Query(ctx, s.redis, s.withdrawal(k, id.String(), call), protocol.Only("withdrawn"))
	return err
}

// A waiter that was woken and then gives up has used up the wake-up. Its turn must pass on.
func TestAWithdrawalPassesTheTurnOn(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	s := newStore(client, Config{TTL: time.Minute, FenceRetention: time.Hour})
	k := protocol.KeysOf(protocol.LeaseKind, "", "a", false)
	withdraw := func(id uuid.UUID) { t.Helper(); require.NoError(t, s.withdraw(t.Context(), k, id, id.String()[:8])) }
	ask := func(id uuid.UUID, how mode) (token int64) {
		t.Helper()
		answer, err := s.acquire(t.Context(), request{[]*protocol.Keys{k}, id.String(), id.String()[:8], how, nil})
		require.NoError(t, err)
		for _, token = range answer.tokens {
		}
		return token
	}
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
		message, err := messages.ReceiveMessage(t.Context())
		require.NoError(t, err)
		return message.Payload
	}

	withdraw(second)
	require.Zero(t, ask(second, modeWait), "it comes back, to the end")
	result, err := s.release(t.Context(), term{keys: k, id: holder.String(), token: granted})
	require.NoError(t, err)
	require.Equal(t, done, result)
	require.Equal(t, "free "+first.String()[:8], next(), "the withdrawal of a waiter while the resource is held wakes nobody")

	withdraw(first)
	require.Equal(t, "free "+second.String()[:8], next())
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

	_, err = a.all().ask(t.Context(), modeTry, 0) // over at once

	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, protocol.Transient(err))
}
