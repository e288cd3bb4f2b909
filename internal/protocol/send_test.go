package protocol_test

import (
	"context"
	_ "embed"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) { testenv.Main(m) }

//go:embed common.lua
var common string

func scriptOf(name, source string) protocol.Script { return protocol.NewScript(name, common+source) }

var count = scriptOf("count", `return {'counted', digits(redis.call('INCR', KEYS[1]))}`)

func counted(r protocol.Reply) (string, error) { return r.Args[0], nil }

// The client library would send it again on a new connection, and the second answer would hide what
// became of the first.
func TestAScriptWhoseReplyIsLostIsNotSentAgain(t *testing.T) {
	t.Parallel()
	key := testenv.Namespace(t)
	wire := new(faulty.RedisProxy)
	options := *testenv.Redis(t).Options()
	options.Dialer = wire.Dial
	options.MaxRetries = 3
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	_, err := count.Call(1, key).Run(t.Context(), protocol.Over(client))
	require.NoError(t, err)

	call := count.Call(1, key)
	wire.OnScript(faulty.Once("", key, faulty.CutAfter))
	_, err = call.Run(t.Context(), protocol.Over(client))
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.Equal(t, "2", client.Get(t.Context(), key).Val())
}

// refusing is a hook that sends nothing, such as a circuit breaker that is open.
type refusing struct{ err error }

func (refusing) DialHook(next redis.DialHook) redis.DialHook { return next }
func (r refusing) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { return r.err }
}
func (r refusing) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { return r.err }
}

func TestWhatAHookKeepsBackIsNoAnswer(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
	t.Cleanup(func() { _ = client.Close() })
	open := errors.New("the circuit is open")
	client.AddHook(refusing{open})
	for n := 1; n <= 2; n++ {
		for _, r := range protocol.QueryAll(t.Context(), protocol.Over(client), protocol.Attempt{}, slices.Repeat([]protocol.Call{count.Call(1, "key")}, n), counted) {
			require.ErrorIs(t, r.Err, lease.ErrUnreachable, n)
			require.ErrorIs(t, r.Err, open, n)
		}
	}
}

// sizes is a hook that counts the commands of every round trip.
type sizes chan int

func (sizes) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s sizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { s <- 1; return next(ctx, cmd) }
}
func (s sizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { s <- len(cmds); return next(ctx, cmds) }
}

// TestAMasterThatHangsEndsOnlyItsOwnLeases says why they do not travel in one.
func TestCallsToOneMasterOfAClusterTravelTogether(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	client := cluster.Client()
	var calls []protocol.Call
	owned := map[*testenv.RedisServer]int{}
	for n := range 100 {
		key := strconv.Itoa(n)
		calls = append(calls, count.Call(1, key))
		owned[cluster.Owner(cluster.Slot(key))]++
	}
	over := protocol.Over(client)
	protocol.QueryAll(t.Context(), over, protocol.Attempt{}, calls, counted) // from here on, all masters have the script
	sent := make(sizes, len(calls))
	client.AddHook(sent)
	for _, r := range protocol.QueryAll(t.Context(), over, protocol.Attempt{}, calls, counted) {
		require.NoError(t, r.Err)
	}
	close(sent)
	var together []int
	for n := range sent {
		together = append(together, n)
	}
	require.ElementsMatch(t, slices.Collect(maps.Values(owned)), together)
}

func TestAServerThatHasForgottenTheScriptLearnsIt(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	for _, want := range []string{"1", "2"} {
		r, err := count.Call(1, "key").Run(t.Context(), protocol.Over(client))
		require.NoError(t, err)
		r.Sent = time.Time{}
		require.Equal(t, protocol.Reply{Script: "count", Word: "counted", Args: []string{want}}, r)
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
		_, err := scriptOf(name, source).Call(1, "key", "x").Run(t.Context(), protocol.Over(client))
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
		_, err := scriptOf("odd", source).Call(1, "key").Run(t.Context(), protocol.Over(client))
		require.ErrorIs(t, err, want, source)
	}
}

func TestNumbers(t *testing.T) {
	r := protocol.Reply{Script: "test", Word: "counted", Args: []string{"0", "9007199254740991", "9007199254740992", "1.79e+15", "-1", ""}}
	for i, want := range []error{nil, nil, lease.ErrProtocol, lease.ErrProtocol, lease.ErrProtocol, lease.ErrProtocol} {
		read := r
		_ = read.Number(i, 0)
		require.ErrorIs(t, read.Err(), want, r.Args[i])
	}
	_ = r.Number(0, 1)
	require.ErrorIs(t, r.Err(), lease.ErrProtocol)
	_ = r.Number(0, 0)
	require.ErrorIs(t, r.Err(), lease.ErrProtocol, "what is read later does not make it good")
}

func TestOneWordOnly(t *testing.T) {
	set := protocol.Only("set")
	_, err := set(protocol.Reply{Word: "set"})
	require.NoError(t, err)
	for _, r := range []protocol.Reply{{Word: "gone"}, {Word: "set", Args: []string{"x"}}} {
		_, err = set(r)
		require.ErrorIs(t, err, lease.ErrProtocol)
	}
}

func TestAnAnswerThatAKeyIsCorruptNamesIt(t *testing.T) {
	t.Parallel()
	odd := scriptOf("odd", `return corrupt('the key', 'is a list, not a string')`)
	_, err := odd.Call(0).Run(t.Context(), protocol.Over(testenv.Redis(t)))
	require.ErrorIs(t, err, lease.ErrCorrupt)
	require.ErrorContains(t, err, `"the key" is a list, not a string`)
}

// refusal is an error that a Redis server answers.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

func TestAnswersAndSilenceAreToldApart(t *testing.T) {
	err := protocol.Failed(t.Context(), "test", refusal("OOM command not allowed"))
	require.NotErrorIs(t, err, lease.ErrUnreachable)
	require.ErrorIs(t, err, &lease.RefusedError{Code: "OOM"})
	require.ErrorIs(t, err, refusal("OOM command not allowed"))

	broken := errors.New("broken pipe")
	err = protocol.Failed(t.Context(), "test", broken)
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.ErrorIs(t, err, broken)

	gone := errors.New("the guest left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	err = protocol.Failed(ctx, "test", broken)
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.ErrorIs(t, err, gone)
}

// Also where nothing was sent: a process that was stopped for so long has not heard from Redis.
func TestTheEndOfABoundOfOurOwnIsSilence(t *testing.T) {
	ctx, cancel := protocol.Within(t.Context(), 0)
	defer cancel()
	_, err := count.Call(0).Run(ctx, nil)
	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.NotErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, protocol.Failed(ctx, "test", ctx.Err()), lease.ErrUnreachable)
}

func TestABoundedRequestReturnsWhenTheBoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := protocol.Within(t.Context(), time.Second)
		defer cancel()
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}) // never dialled
		defer client.Close()
		stuck := make(chan struct{})
		defer close(stuck)
		_, err := protocol.Bounded(ctx, protocol.Over(client), "test", "", func() (int, error) { <-stuck; return 1, nil })
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.EqualError(t, err, "lease: redis unreachable: no answer from 127.0.0.1:6379 within 1s")
	})
}

// The last attempt has only what is left of the time, and says little.
func TestAnErrorTellsTheWholeTimeThatWasTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}) // never dialled
		defer client.Close()
		stuck := make(chan struct{})
		defer close(stuck)
		var attempts atomic.Int32
		client.AddHook(answers(func(redis.Cmder) error {
			if attempts.Add(1) == 1 {
				time.Sleep(100 * time.Millisecond)
				return errors.New("connection refused")
			}
			<-stuck
			return nil
		}))
		_, err := protocol.Ask(t.Context(), protocol.Over(client), time.Second, count.Call(1, "key"), counted)
		require.EqualValues(t, 3, attempts.Load())
		require.EqualError(t, err, "lease: redis unreachable: no answer from 127.0.0.1:6379 within 1s; an earlier attempt: connection refused")
	})
}

func TestADeadContextSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	_, err := count.Call(0).Run(ctx, nil)
	require.ErrorIs(t, err, gone)
}

// answers is a client whose server answers as the function does.
type answers func(redis.Cmder) error

func (answers) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a answers) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		err := a(cmd)
		cmd.SetErr(err)
		return err
	}
}
func (a answers) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(a(cmd))
		}
		return nil
	}
}

func TestAskMakesThreeAttempts(t *testing.T) {
	const (
		counts  = refusal("")
		corrupt = refusal("corrupt")
	)
	broken := errors.New("broken pipe")
	synctest.Test(t, func(t *testing.T) {
		ask := func(ctx context.Context, server ...error) (again bool, made int, err error) {
			client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never dialled
			defer client.Close()
			client.AddHook(answers(func(cmd redis.Cmder) error {
				made++
				switch answer := server[made-1]; answer {
				case counts:
					cmd.(interface{ SetVal(any) }).SetVal([]any{"counted", "1"})
				case corrupt:
					cmd.(interface{ SetVal(any) }).SetVal([]any{"corrupt", "key", "is odd"})
				default:
					return answer
				}
				return nil
			}))
			_, err = protocol.Ask(ctx, protocol.Over(client), time.Minute, count.Call(1, "key"), func(r protocol.Reply) (string, error) {
				again = r.Again
				return counted(r)
			})
			return again, made, err
		}
		for _, test := range []struct {
			answers []error
			want    error
		}{
			{[]error{counts}, nil},
			{[]error{broken, counts}, nil},
			{[]error{refusal("READONLY You can't write"), refusal("LOADING Redis is loading"), counts}, nil},
			{[]error{refusal("CLUSTERDOWN Hash slot not served"), refusal("BUSY Redis is busy"), refusal("NOPERM this user")}, &lease.RefusedError{Code: "NOPERM"}},
			{[]error{refusal("OOM command not allowed")}, &lease.RefusedError{Code: "OOM"}},
			{[]error{refusal("MISCONF Redis is")}, &lease.RefusedError{Code: "MISCONF"}},
			{[]error{broken, corrupt}, lease.ErrCorrupt},
			{[]error{broken, broken, broken}, lease.ErrUnreachable},
		} {
			again, made, err := ask(t.Context(), test.answers...)
			require.ErrorIs(t, err, test.want)
			require.Equal(t, len(test.answers), made)
			require.Equal(t, err == nil && made > 1, again, "a reply says that a request before may come later")
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, made, err := ask(ctx, broken)
		require.ErrorIs(t, err, lease.ErrUnreachable)
		require.Equal(t, 1, made, "no time for another attempt")
	})
}
