package script

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var count = New("count", `return {'counted', digits(redis.call('INCR', KEYS[1]))}`)

// The client library would send it again on a new connection, and the second answer would hide what became of the first.
func TestAScriptWhoseReplyIsLostIsNotSentAgain(t *testing.T) {
	t.Parallel()
	key := testenv.Namespace(t)
	wire := new(faulty.Wire)
	options := *testenv.Redis(t).Options()
	options.Dialer = wire.Dial
	options.MaxRetries = 3
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	_, err := count.Run(t.Context(), client, []string{key})
	require.NoError(t, err)

	for n, run := range []func(context.Context, redis.UniversalClient, []string, ...any) (Reply, error){count.Run, count.RunDirect} {
		wire.CutAfter(key)
		_, err = run(t.Context(), client, []string{key})
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.Equal(t, []string{"2", "3"}[n], client.Get(t.Context(), key).Val())
	}
}

func TestAServerThatHasForgottenTheScriptLearnsIt(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	for _, want := range []string{"1", "2"} {
		r, err := count.Run(t.Context(), client, []string{"key"})
		require.NoError(t, err)
		require.Equal(t, Reply{Script: "count", Word: "counted", Args: []string{want}}, r)
		require.NoError(t, client.ScriptFlush(t.Context()).Err())
	}
}

func TestWhatRedisRefusesIsNoSilence(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t)
	for name, source := range map[string]string{
		"an error":           `return redis.error_reply('OOM on purpose')`,
		"a client's mistake": `return {whole(ARGV[1], 1, 'ttl')}`,
	} {
		_, err := New(name, source).Run(t.Context(), client, []string{"key"}, "x")
		var refused redis.Error
		require.ErrorAs(t, err, &refused, name)
		require.NotErrorIs(t, err, lease.ErrUnreachable, name)
	}
}

func TestOddAnswers(t *testing.T) {
	t.Parallel()
	client := testenv.Redis(t)
	for source, want := range map[string]error{
		`return 1`:                            lease.ErrProtocol,
		`return {}`:                           lease.ErrProtocol,
		`return {{'counted'}}`:                lease.ErrProtocol,
		`return corrupt('the key', 'is odd')`: lease.ErrCorrupt,
		`return {'counted', digits(1786000000123456)}`: nil,
	} {
		_, err := New("odd", source).Run(t.Context(), client, []string{"key"})
		require.ErrorIs(t, err, want, source)
	}
}

func TestNumbers(t *testing.T) {
	r := Reply{Script: "test", Word: "counted", Args: []string{"0", "9007199254740991", "9007199254740992", "1.79e+15", "-1", ""}}
	for i, want := range []error{nil, nil, lease.ErrProtocol, lease.ErrProtocol, lease.ErrProtocol, lease.ErrProtocol} {
		_, err := r.Number(i, 0)
		require.ErrorIs(t, err, want, r.Args[i])
	}
	_, err := r.Number(0, 1)
	require.ErrorIs(t, err, lease.ErrProtocol)
}

func TestADeadContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	_, err := count.Run(ctx, nil, nil)
	require.ErrorIs(t, err, gone)
	_, err = count.RunDirect(ctx, nil, nil)
	require.ErrorIs(t, err, gone)
}

func TestPersist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			answers []error
			want    error
		}{
			{[]error{nil}, nil},
			{[]error{lease.ErrUnreachable, nil}, nil},
			{[]error{lease.ErrUnreachable, lease.ErrCorrupt}, lease.ErrCorrupt},
			{[]error{lease.ErrUnreachable, lease.ErrUnreachable, lease.ErrUnreachable}, lease.ErrUnreachable},
		} {
			n := 0
			err := Persist(t.Context(), func() error { n++; return test.answers[n-1] })
			require.ErrorIs(t, err, test.want)
			require.Equal(t, len(test.answers), n)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		n := 0
		require.ErrorIs(t, Persist(ctx, func() error { n++; return lease.ErrUnreachable }), lease.ErrUnreachable)
		require.Equal(t, 1, n, "no time for another attempt")
	})
}

func TestTagsDoNotMeet(t *testing.T) {
	seen := make(map[string]string)
	for _, names := range [][2]string{{"", "a/b"}, {"a", "b"}, {"", "a"}, {"a/b", "c"}, {"a", "b/c"}, {"", "%7B"}, {"", "{"}, {"", "}"}, {"%", ""}} {
		tag := Tag(names[0], names[1], false)
		require.Empty(t, seen[tag], "%q", names)
		seen[tag] = "taken"
		require.Regexp(t, `^\{[^{}]+\}$`, tag)
	}
}
