package lease_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// dataKey is a key of the application in the slot of the resource.
func (w *world) dataKey(resource string) string {
	return lease.Key{Kind: "cache", Namespace: w.namespace, Resource: resource, Field: "value"}.String()
}

func (w *world) stored(t *testing.T, key string) string {
	t.Helper()
	value, err := w.client.Get(t.Context(), key).Result()
	require.NoError(t, err)
	return value
}

// set writes a value under the lease.
func set(ctx context.Context, l *lease.Lease, key string, value any) error {
	_, err := l.Eval(ctx, `return redis.call('SET', KEYS[1], ARGV[1])`, []string{key}, value)
	return err
}

func TestOnlyTheHolderWritesToRedis(t *testing.T) {
	t.Parallel()
	memory := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: memory.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	for name, w := range map[string]*world{
		"one Redis": newWorld(t),
		"miniredis": {client: client, namespace: "eval"},
		"Sentinel":  {client: testenv.Sentinel(t).Client(), namespace: "eval"},
		"Cluster":   {client: testenv.Cluster(t).Client(), namespace: "eval"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onlyTheHolderWrites(t, w)
		})
	}
}

func onlyTheHolderWrites(t *testing.T, w *world) {
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	for name, test := range map[string]struct {
		overtake func(l *lease.Lease) error // makes l a former holder, or its token stale
		want     error
		over     error // why the lease is over then
	}{
		"released": {func(l *lease.Lease) error { return l.Release(t.Context()) }, lease.ErrReleased, lease.ErrReleased},
		"revoked": {func(l *lease.Lease) error {
			_, err := i.Revoke(t.Context(), l.Resource())
			return err
		}, lease.ErrRevoked, lease.ErrRevoked},
		"expired": {func(l *lease.Lease) error { return w.client.Del(t.Context(), w.key(l.Resource(), "owner")).Err() }, lease.ErrLost, lease.ErrLost},
		"taken": {func(l *lease.Lease) error {
			err := w.client.Del(t.Context(), w.key(l.Resource(), "owner")).Err()
			if err == nil {
				err = set(t.Context(), try(t, i, l.Resource()), w.dataKey(l.Resource()), "newer")
			}
			return err
		}, lease.ErrLost, lease.ErrLost},
		"passed": {func(l *lease.Lease) error {
			_, err := i.Raise(t.Context(), l.Resource(), l.Token()+1)
			return err
		}, lease.ErrStale, nil},
	} {
		resource := "page-" + name
		key := w.dataKey(resource)
		l := try(t, i, resource)
		require.NoError(t, set(t.Context(), l, key, "newer"), name)
		require.NoError(t, test.overtake(l), name)

		require.ErrorIs(t, set(t.Context(), l, key, "late"), test.want, name)
		require.Equal(t, "newer", w.stored(t, key), name)
		if test.over != nil {
			require.ErrorIs(t, l.Err(), test.over, name)
			require.ErrorIs(t, context.Cause(l.Context()), test.over, name)
		} else {
			require.NoError(t, l.Err(), name)
		}
		require.True(t, lease.IsLost(set(t.Context(), l, key, "late")), name)
	}
}

func TestWhatAScriptAnswersComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "page")
	key := w.dataKey("page")
	require.NoError(t, w.client.HSet(t.Context(), key, "step", 2).Err())
	for script, want := range map[string]any{
		`return`:                                     nil,
		`return false`:                               nil,
		`return 7`:                                   int64(7),
		`return ARGV[2] -- the second`:               "b",
		`return {KEYS[1], {1, 'x'}}`:                 []any{key, []any{int64(1), "x"}},
		`return #KEYS + #ARGV`:                       int64(3),
		`return redis.call('TYPE', KEYS[1])`:         "hash",
		`return redis.call('HGET', KEYS[1], 'none')`: nil,
		"local n = redis.call('HINCRBY', KEYS[1], 'step', 3)\nif n > 4 then return {'many', n} end": []any{"many", int64(5)},
	} {
		got, err := l.Eval(t.Context(), script, []string{key}, "a", "b")
		require.NoError(t, err, script)
		require.Equal(t, want, got, script)
	}
	for _, script := range []string{`return (`, `error('no')`, `return redis.call('GET', KEYS[1])`, `return redis.error_reply('no')`, `return token`, `x = 1`} {
		_, err := l.Eval(t.Context(), script, []string{key})
		require.Error(t, err, script)
		require.False(t, lease.IsLost(err), script)
	}
	for _, script := range []string{`redis.call('XGROUP', 'CREATE', KEYS[1], 'g', '$', 'MKSTREAM')`, `return redis.pcall('XGROUP', 'CREATE', KEYS[1], 'g', '$')`} {
		_, err := l.Eval(t.Context(), "redis.call('INCR', KEYS[2])\nredis.call('XGROUP', 'CREATE', KEYS[1], 'g', '$', 'MKSTREAM')\n"+script, []string{w.dataKey("page") + ":stream", w.dataKey("page") + ":n"})
		require.True(t, redis.HasErrorPrefix(err, "BUSYGROUP"), "%v", err)
		require.NotErrorIs(t, err, &lease.RefusedError{Code: "BUSY"}, "it has written")
		require.NoError(t, w.client.Del(t.Context(), w.dataKey("page")+":stream").Err())
	}
	require.NoError(t, l.Err(), "a script that fails is no reason to end the lease")
}

// Redis looks at each command of a script when it comes to it.
func TestAScriptIsDeniedAtTheCommandThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "writer", "on", ">secret", "~*", "&*", "+@all", "-incr").Err())
	w := as(t, server, "writer", "secret")
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "page")
	key := w.dataKey("page")

	_, err := l.Eval(t.Context(), `redis.call('SET', KEYS[1], 'first') return redis.call('INCR', KEYS[2])`, []string{key, key + ":n"})
	require.ErrorIs(t, err, &lease.RefusedError{Code: "NOPERM"})
	require.Equal(t, "first", w.stored(t, key))
}

// The data may still be there when the lease and its last token are not.
func TestAHolderThatRedisHasForgottenDoesNotWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "page")
	require.NoError(t, w.client.Del(t.Context(), w.key("page", "owner"), w.key("page", "fence")).Err())

	require.ErrorIs(t, set(t.Context(), l, w.dataKey("page"), "late"), lease.ErrLost)
	require.Zero(t, w.client.Exists(t.Context(), w.dataKey("page")).Val())
}

// It could be carried out twice, if it were sent again.
func TestAScriptWithoutAnAnswerIsSentOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}), "page")
	count := func() error {
		_, err := l.Eval(t.Context(), `return redis.call('INCR', KEYS[1])`, []string{w.dataKey("page")})
		return err
	}
	require.NoError(t, count())
	w.faults.First(faulty.LoseReply)

	err := count()

	require.ErrorIs(t, err, lease.ErrUnreachable)
	require.False(t, lease.IsLost(err), "it may have been done")
	require.Equal(t, "2", w.stored(t, w.dataKey("page")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = l.Eval(ctx, `return redis.call('INCR', KEYS[1])`, []string{w.dataKey("page")})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "2", w.stored(t, w.dataKey("page")))
}

func TestWritesToRedisThatCannotBeFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	places, err := lease.NewSemaphore(w.client, lease.SemaphoreConfig{Limit: 2,
		Lease: lease.Config{TTL: time.Minute, Namespace: w.namespace}})
	require.NoError(t, err)
	place, err := places.Acquire(t.Context(), "page", lease.NoWait())
	require.NoError(t, err)
	key := w.dataKey("page")
	for name, err := range map[string]error{
		"no lease": set(t.Context(), new(lease.Lease), key, "x"),
		"a permit": set(t.Context(), place, key, "x"),
	} {
		require.ErrorIs(t, err, lease.ErrInvalid, name)
	}
	require.Zero(t, w.client.Exists(t.Context(), key).Val())
}

// dish marshals itself, in its own way.
type dish func() ([]byte, error)

func (d dish) MarshalBinary() ([]byte, error) { return d() }

// A value is marshalled before the request is on its way with those of others.
func TestAValueThatCannotBeMarshalledHarmsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	l, another := try(t, i, "page"), try(t, i, "another")
	burnt := dish(func() ([]byte, error) { return nil, errWork })
	for range 100 {
		var strangers sync.WaitGroup
		for range 10 {
			strangers.Go(func() { assert.NoError(t, set(t.Context(), another, w.dataKey("another"), "x")) })
		}
		require.ErrorIs(t, set(t.Context(), l, w.dataKey("page"), burnt), lease.ErrInvalid)
		strangers.Wait()
	}
	_, err := l.Eval(t.Context(), `return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])`, []string{w.dataKey("page")}, "soup", burnt)
	require.ErrorIs(t, err, lease.ErrInvalid)
	require.ErrorIs(t, err, errWork)
	for _, value := range []any{struct{}{}, []string{"a"}, map[string]int{}, errWork} {
		_, err := l.Eval(t.Context(), `return ARGV[1]`, nil, value)
		require.ErrorIs(t, err, lease.ErrInvalid, "%T", value)
	}
	require.PanicsWithValue(t, "soup", func() {
		_ = set(t.Context(), l, w.dataKey("page"), dish(func() ([]byte, error) { panic("soup") }))
	})
	require.Zero(t, w.client.Exists(t.Context(), w.dataKey("page")).Val())

	seven, text, at, took := 7, "x", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), 3*time.Nanosecond
	for _, value := range []any{
		nil, text, &text, []byte(text), seven, &seven,
		int8(7), int16(7), int32(7), int64(7), uint(7), uint8(7), uint16(7), uint32(7), uint64(7),
		uintptr(7), float32(0.5), 0.5, true, new(bool), at, &at, took, &took, net.IP("ip"), (*string)(nil), (*time.Time)(nil),
		dish(func() ([]byte, error) { return []byte("done"), nil }),
	} {
		want, err := w.client.Do(t.Context(), "echo", value).Result()
		require.NoError(t, err)
		got, err := l.Eval(t.Context(), `return ARGV[1]`, nil, value)
		require.NoError(t, err)
		require.Equal(t, want, got, "%T: as the client library writes it", value)
	}
}

// A call that is over leaves its request behind, and its values are the caller's again.
func TestAWriteThatIsUnderWayHasTheValuesOfItsCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hook := new(deaf)
	w.client.AddHook(hook)
	t.Cleanup(hook.end)
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never}), "page")

	text, address, bytes := "x", net.IP("x"), []byte("x")
	hook.hang()
	for name, value := range map[string]any{"text": &text, "address": address, "bytes": bytes} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // it has been sent by then
		require.ErrorIs(t, set(ctx, l, w.dataKey("page")+name, value), lease.ErrUnreachable)
		cancel()
	}
	text, address[0], bytes[0] = "y", 'y', 'y'
	hook.end()
	for _, name := range []string{"text", "address", "bytes"} {
		require.Eventually(t, func() bool { return w.client.Exists(t.Context(), w.dataKey("page")+name).Val() == 1 }, time.Minute, ms)
		require.Equal(t, "x", w.stored(t, w.dataKey("page")+name), name)
	}
}

func TestOnAClusterTheDataAreInTheSlotOfTheLease(t *testing.T) {
	t.Parallel()
	w := &world{client: testenv.Cluster(t).Client(), namespace: "slot"}
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "page")

	for _, key := range []string{"elsewhere", "data:{page}"} {
		err := set(t.Context(), l, key, "x")
		require.ErrorIs(t, err, lease.ErrInvalid)
		require.ErrorContains(t, err, `"data:{slot/page}"`, "what to do")
		require.Zero(t, w.client.Exists(t.Context(), key).Val())
	}
	require.NoError(t, set(t.Context(), l, "data:{slot/page}", "x"))
	require.NoError(t, l.Err())
}
