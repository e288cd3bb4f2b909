package faulty_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
)

var count = redis.NewScript("-- count.lua: counts.\nreturn redis.call('INCR', KEYS[1])")

func TestAProxyDoesToARequestWhatItIsTold(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		verdict faulty.Verdict
		answer  string // or what the error contains; the client does not ask again
		after   int    // how often the server has counted, once held requests were delivered
	}{
		"pass":    {faulty.Verdict{}, "1", 1},
		"cut":     {faulty.Verdict{Fate: faulty.Cut}, "EOF", 0},
		"reset":   {faulty.Verdict{Fate: faulty.Reset}, "EOF", 0}, // the client meets the reset where it looks for notifications
		"after":   {faulty.Verdict{Fate: faulty.CutAfter}, "EOF", 1},
		"half":    {faulty.Verdict{Fate: faulty.HalfReply}, "EOF", 1},
		"silence": {faulty.Verdict{Fate: faulty.Silence}, "timeout", 0},
		"hold":    {faulty.Verdict{Fate: faulty.Hold}, "EOF", 1},
		"answer":  {faulty.Verdict{Fate: faulty.Answer, Text: "-OOM no\r\n"}, "OOM no", 0},
		"garble":  {faulty.Verdict{Fate: faulty.Garble, Text: ":7\r\n"}, "7", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, key := testenv.Redis(t), testenv.Namespace(t)
			proxy := new(faulty.RedisProxy)
			options := *direct.Options()
			options.Dialer, options.MaxRetries, options.ReadTimeout = proxy.Dial, -1, 3*time.Second
			client := redis.NewClient(&options)
			defer client.Close()
			require.NoError(t, count.Run(t.Context(), client, []string{key + ":taught"}).Err())

			proxy.OnScript(func(c faulty.Call) faulty.Verdict {
				require.Equal(t, "count", c.Script)
				return want.verdict
			})
			n, err := count.EvalSha(t.Context(), client, []string{key}).Int()
			answer := strconv.Itoa(n)
			if err != nil {
				answer = err.Error()
			}
			require.Contains(t, answer, want.answer)
			require.NoError(t, proxy.Deliver())
			counted, _ := direct.Get(t.Context(), key).Int()
			require.Equal(t, want.after, counted)
		})
	}
}

func TestAProxyThatIsStoppedDeliversBehindItsClients(t *testing.T) {
	t.Parallel()
	direct, key := testenv.Redis(t), testenv.Namespace(t)
	proxy := new(faulty.RedisProxy)
	options := *direct.Options()
	options.Dialer, options.MaxRetries, options.ReadTimeout = proxy.Dial, -1, 3*time.Second
	client := redis.NewClient(&options)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())

	proxy.Stop()
	require.Error(t, client.Set(t.Context(), key, "late", 0).Err())
	require.Empty(t, direct.Get(t.Context(), key).Val())
	proxy.Go()
	require.Equal(t, "late", direct.Get(t.Context(), key).Val())
	require.NoError(t, client.Ping(t.Context()).Err())
}

var grant = redis.NewScript("-- acquire.lua: grants.\nreturn redis.call('INCR', KEYS[1])")

// Whatever else is sent meanwhile, in whatever order, and whether the server knows the scripts.
func TestAFaultStrikesTheRequestThatItNames(t *testing.T) {
	t.Parallel()
	namespace := testenv.Namespace(t)
	named := func(resource string) []string {
		return []string{protocol.KeyOf(protocol.LeaseKind, namespace, resource, false).For("owner")}
	}
	for name, c := range map[string]struct {
		fault faulty.Fault
		after int // how often the server has counted
	}{"request": {faulty.LoseRequest, 1}, "reply": {faulty.LoseReply, 2}} {
		options := *testenv.Redis(t).Options()
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		faults := new(faulty.Redis)
		client.AddHook(faults)
		a, b := named(name+":a"), named(name+":b")

		faults.Next("acquire", name+":a", 1, c.fault)
		require.NoError(t, count.Run(t.Context(), client, a).Err(), "another script")
		require.NoError(t, grant.Run(t.Context(), client, b).Err(), "another resource")
		pipe := client.Pipeline()
		other, struck := count.Eval(t.Context(), pipe, b), grant.Eval(t.Context(), pipe, a)
		_, err := pipe.Exec(t.Context())
		require.ErrorIs(t, err, faulty.ErrBroken)
		require.ErrorIs(t, struck.Err(), faulty.ErrBroken)
		require.ErrorIs(t, other.Err(), faulty.ErrBroken, "it shares the connection")
		require.Equal(t, strconv.Itoa(c.after), client.Get(t.Context(), a[0]).Val())
		require.NoError(t, grant.Run(t.Context(), client, a).Err(), "once")

		faults.Next("acquire", name+":a", 1, c.fault)
		unknown := redis.NewScript("-- acquire.lua: grants.\n-- " + a[0] + "\nreturn 1")
		require.ErrorIs(t, unknown.Run(t.Context(), client, a).Err(), faulty.ErrBroken)
		faults.Always(faulty.None)
	}
}
