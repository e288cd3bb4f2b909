package lease_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestTokensRiseOverTenThousandAcquisitionsAndALoss(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	i := w.issuer(t, lease.Config{TTL: 10 * time.Second, RenewEvery: lease.Never})
	var last int64
	for n := range 10_000 {
		if n == 5_000 {
			require.NoError(t, w.client.FlushAll(t.Context()).Err())
		}
		l, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
		require.NoError(t, err)
		require.Greater(t, l.Token(), last)
		last = l.Token()
		require.NoError(t, l.Release(t.Context()))
	}
}

// One request for each call. TestWhatEachCallCostsRedis has the commands of the others.
func TestWhatALeaseCostsRedis(t *testing.T) {
	t.Parallel()
	w := worldOn(t, testenv.OwnRedis(t).Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	commands := func(do func()) map[string]int {
		require.NoError(t, w.client.ConfigResetStat(t.Context()).Err())
		do()
		stats := w.client.Info(t.Context(), "commandstats").Val()
		made := make(map[string]int)
		for _, name := range regexp.MustCompile(`cmdstat_([a-z]+):`).FindAllStringSubmatch(stats, -1) {
			made[name[1]] = calls(t, stats, name[1])
		}
		return made
	}
	l := try(t, i, "a")
	require.NoError(t, l.Extend(t.Context()))
	require.NoError(t, l.Release(t.Context())) // now the scripts are there, and the last token
	require.Equal(t, map[string]int{"evalsha": 1, "exists": 1, "get": 1, "time": 1, "set": 2}, commands(func() { l = try(t, i, "a") }))
	require.Equal(t, map[string]int{"evalsha": 1, "get": 1, "pexpire": 2}, commands(func() { require.NoError(t, l.Extend(t.Context())) }))
	require.Equal(t, map[string]int{"evalsha": 1, "zrange": 1, "get": 1, "del": 1}, commands(func() { require.NoError(t, l.Release(t.Context())) }))
}

// calls is how often INFO commandstats says that a command was called.
func calls(t *testing.T, stats, command string) int {
	t.Helper()
	var n int
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(stats)
	if found != nil {
		_, err := fmt.Sscan(found[1], &n)
		require.NoError(t, err)
	}
	return n
}

func TestTokensRiseWhenTheClockStandsStill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: 10 * time.Second})
	future := time.Now().Add(time.Hour).UnixMicro()
	require.NoError(t, w.client.Set(t.Context(), w.key("a", "fence"), future, 0).Err())
	require.Equal(t, future+1, try(t, i, "a").Token())
}

func TestAFailedAcquireChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	l := try(t, i, "a")
	before := w.snapshot(t, "a")
	for range 10 {
		_, err := i.Acquire(t.Context(), "a", lease.NoWait())
		require.ErrorIs(t, err, lease.ErrHeld)
	}
	require.Equal(t, before, w.snapshot(t, "a"))
	require.NoError(t, l.Release(t.Context()))
	require.Equal(t, before.fence, w.snapshot(t, "a").fence)
}

// snapshot is what Redis holds of a resource. Expiries are points in time, so they stand still
// while nobody moves them.
type snapshot struct {
	owner, fence               string
	ownerExpires, fenceExpires time.Duration // since the epoch; -2ns: no such key
	waiters                    int64
}

func (w *world) snapshot(t *testing.T, resource string) snapshot {
	t.Helper()
	ctx, c := t.Context(), w.client
	owner, fence := w.key(resource, "owner"), w.key(resource, "fence")
	return snapshot{
		owner:        c.Get(ctx, owner).Val(),
		fence:        c.Get(ctx, fence).Val(),
		ownerExpires: c.PExpireTime(ctx, owner).Val(),
		fenceExpires: c.PExpireTime(ctx, fence).Val(),
		waiters:      c.HLen(ctx, w.key(resource, "alive")).Val(),
	}
}

func TestTheFenceOutlivesTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	fence := w.key("a", "fence")
	requireRefreshed := func(what string, do func()) {
		t.Helper()
		w.client.PExpire(t.Context(), fence, time.Hour)
		do()
		require.Greater(t, w.client.PTTL(t.Context(), fence).Val(), 23*time.Hour, what)
	}
	var l *lease.Lease
	requireRefreshed("at issue", func() { l = try(t, i, "a") })
	requireRefreshed("at renewal", func() { require.NoError(t, l.Extend(t.Context())) })
	require.NoError(t, l.Release(t.Context()))
	require.NotEmpty(t, w.snapshot(t, "a").fence)

	short := w.issuer(t, lease.Config{TTL: time.Second, RenewEvery: lease.Never, FenceRetention: 2 * time.Second})
	try(t, short, "b")
	require.LessOrEqual(t, w.client.PTTL(t.Context(), w.key("b", "fence")).Val(), 2*time.Second)
}

// Whatever stands in a key of the protocol that the protocol did not write: an error that names the
// key, and not a byte changed.
func TestCorruptKeysAreRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	ctx := t.Context()
	id := uuid.NewString()
	for n, test := range []struct {
		key   string
		value func(key string) error
	}{
		{"owner", func(k string) error { return w.client.RPush(ctx, k, "x").Err() }},
		{"owner", func(k string) error { return w.client.HSet(ctx, k, "x", "y").Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, "", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id, time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id+":", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id+":0:ca11", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id+":-1:ca11", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id+":12345678901234567:ca11", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, "abc:1:ca11", time.Hour).Err() }},
		{"owner", func(k string) error { return w.client.Set(ctx, k, id+":1:ca11", 0).Err() }}, // never expires
		{"fence", func(k string) error { return w.client.RPush(ctx, k, "x").Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "", 0).Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "many", 0).Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "-1", 0).Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "1.79e+15", 0).Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "0x10", 0).Err() }},
		{"fence", func(k string) error { return w.client.Set(ctx, k, "9007199254740992", 0).Err() }},
		{"queue", func(k string) error { return w.client.Set(ctx, k, "x", 0).Err() }},
		{"alive", func(k string) error { // somebody waits
			queue := strings.TrimSuffix(k, "alive") + "queue"
			return errors.Join(w.client.Set(ctx, k, "x", 0).Err(), w.client.ZAdd(ctx, queue, redis.Z{Score: 1, Member: "x"}).Err())
		}},
	} {
		resource := fmt.Sprint("r", n)
		key := w.key(resource, test.key)
		require.NoError(t, test.value(key))
		before := w.dump(t, resource)

		_, err := i.Acquire(ctx, resource, lease.NoWait())
		require.ErrorIs(t, err, lease.ErrCorrupt, "%v: %s", n, test.key)
		require.ErrorContains(t, err, strconv.Quote(key))
		require.Equal(t, before, w.dump(t, resource), "%v: %s", n, test.key)
	}
}

func TestCorruptKeysDoNotEndALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	ctx := t.Context()

	for _, name := range []string{"queue", "alive", "ended"} {
		for n := range 2 {
			l := try(t, i, name)
			require.NoError(t, w.client.Del(ctx, w.key(name, name)).Err())
			require.NoError(t, w.client.RPush(ctx, w.key(name, name), "x").Err())
			require.NoError(t, l.Extend(ctx), name)
			if n == 0 {
				require.NoError(t, l.Release(ctx), "%s does not keep a holder from leaving", name)
			} else {
				require.NoError(t, w.client.Del(ctx, w.key(name, "owner")).Err())
				require.ErrorIs(t, l.Extend(ctx), lease.ErrLost, name)
			}
			require.NoError(t, w.client.Del(ctx, w.key(name, name)).Err())
		}
	}

	fence := try(t, i, "fence")
	require.NoError(t, w.client.Set(ctx, w.key("fence", "fence"), "x", 0).Err())
	_, err := fence.Verify(ctx)
	require.ErrorIs(t, err, lease.ErrCorrupt)
	require.NoError(t, fence.Err())
	require.NoError(t, fence.Release(ctx))

	owner := try(t, i, "owner")
	require.NoError(t, w.client.Set(ctx, w.key("owner", "owner"), "x", 0).Err())
	_, err = owner.Verify(ctx)
	require.ErrorIs(t, err, lease.ErrCorrupt)
	require.ErrorIs(t, owner.Extend(ctx), lease.ErrCorrupt)
	require.ErrorIs(t, owner.Release(ctx), lease.ErrCorrupt)
}

// dump is every key of the resource, as Redis serialises it, with its expiry.
func (w *world) dump(t *testing.T, resource string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, name := range []string{"owner", "fence", "queue", "alive", "ended"} {
		key := w.key(resource, name)
		value, err := w.client.Dump(t.Context(), key).Result()
		if err != redis.Nil {
			require.NoError(t, err)
			all[name] = fmt.Sprintf("%x expires %v", value, w.client.PExpireTime(t.Context(), key).Val())
		}
	}
	return all
}

func TestTokensEndBeforeLuaMiscounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	fence := w.key("a", "fence")
	require.NoError(t, w.client.Set(t.Context(), fence, "9007199254740990", 0).Err())
	l := try(t, i, "a")
	require.EqualValues(t, 9007199254740991, l.Token())
	require.Equal(t, "9007199254740991", w.snapshot(t, "a").fence)
	standing, err := l.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, lease.Current, standing)
	require.NoError(t, l.Release(t.Context()))

	before := w.dump(t, "a")
	_, err = i.Acquire(t.Context(), "a", lease.NoWait())
	require.ErrorIs(t, err, lease.ErrExhausted)
	require.Equal(t, before, w.dump(t, "a"))
}

func TestVerifyTellsThreeThingsApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	standing := func(l *lease.Lease) lease.Standing {
		t.Helper()
		v, err := l.Verify(t.Context())
		require.NoError(t, err)
		return v
	}
	l := try(t, i, "a")
	require.Equal(t, lease.Current, standing(l))

	require.NoError(t, w.client.Set(t.Context(), w.key("a", "fence"), l.Token()+1, 0).Err())
	require.Equal(t, lease.FenceStale, standing(l))
	require.NoError(t, l.Err(), "it still holds")

	require.NoError(t, w.client.Set(t.Context(), w.key("a", "owner"),
		fmt.Sprintf("%s:%d:ca11", l.LeaseID(), l.Token()+1), time.Minute).Err())
	require.Equal(t, lease.LeaseLost, standing(l), "another token of the same lease id is another lease")
	require.ErrorIs(t, l.Err(), lease.ErrLost)
	require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)

	other := try(t, i, "b")
	require.NoError(t, w.client.Del(t.Context(), w.key("b", "owner")).Err())
	require.Equal(t, lease.LeaseLost, standing(other))
	require.Equal(t, lease.LeaseLost, standing(other), "asking again")

	require.Equal(t, "current lease lost fence stale Standing(9)",
		fmt.Sprint(lease.Current, " ", lease.LeaseLost, " ", lease.FenceStale, " ", lease.Standing(9)))
}

func TestOperationsOfAnOldLeaseTouchNoNewerOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	take := func(resource string, id uuid.UUID, token int64) {
		t.Helper()
		require.NoError(t, w.client.Set(t.Context(), w.key(resource, "owner"), fmt.Sprintf("%s:%d:ca11", id, token), time.Minute).Err())
	}
	for name, op := range map[string]func(*lease.Lease) error{
		"extend":  func(l *lease.Lease) error { return l.Extend(t.Context()) },
		"release": func(l *lease.Lease) error { return l.Release(t.Context()) },
	} {
		l := try(t, i, name+"-other-id")
		take(l.Resource(), uuid.New(), l.Token())
		before := w.dump(t, l.Resource())
		require.ErrorIs(t, op(l), lease.ErrLost)
		require.Equal(t, before, w.dump(t, l.Resource()))

		l = try(t, i, name+"-other-token")
		take(l.Resource(), l.LeaseID(), l.Token()+1)
		before = w.dump(t, l.Resource())
		require.ErrorIs(t, op(l), lease.ErrLost)
		require.Equal(t, before, w.dump(t, l.Resource()))

		l = try(t, i, name+"-gone")
		w.client.Del(t.Context(), w.key(l.Resource(), "owner"))
		require.ErrorIs(t, op(l), lease.ErrLost)
		require.Empty(t, w.snapshot(t, l.Resource()).owner, "never creates")
	}
}

func TestUnknownScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	w := worldOn(t, server.Client())
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	flush := func() { require.NoError(t, w.client.ScriptFlush(t.Context()).Err()) }
	flush()
	l := try(t, i, "a")
	flush()
	require.NoError(t, l.Extend(t.Context()))
	flush()
	require.NoError(t, l.Release(t.Context()))

	server.Restart()
	require.NoError(t, try(t, i, "b").Release(t.Context()))
}

// The client library repeats a request after a broken connection, and would then report the second
// answer: a release that was carried out as one that failed.
func TestAReplyLostOnTheWire(t *testing.T) {
	t.Parallel()
	wire := new(faulty.RedisProxy)
	options := *testenv.Redis(t).Options()
	options.Dialer = wire.Dial
	client := redis.NewClient(&options)
	defer client.Close()
	w := &world{client: client, namespace: testenv.Namespace(t)}
	i := w.issuer(t, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	require.NoError(t, try(t, i, "a").Release(t.Context())) // the server knows the scripts

	wire.OnScript(faulty.Once("acquire", "a", faulty.CutAfter))
	l := try(t, i, "a")
	require.Equal(t, itoa(l.Token()), w.snapshot(t, "a").fence)
	wire.OnScript(faulty.Once("extend", "a", faulty.CutAfter))
	require.NoError(t, l.Extend(t.Context()))
	wire.OnScript(faulty.Once("release", "a", faulty.CutAfter))
	require.NoError(t, l.Release(t.Context()))
	require.Empty(t, w.snapshot(t, "a").owner)
}

// The last token was raised above the clock and then evicted: the token of the holder counts.
func TestARevocationIsAboveItsHolderWhoseLastTokenWasEvicted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	_, err := i.Raise(t.Context(), "a", 1<<52)
	require.NoError(t, err)
	l := try(t, i, "a")
	require.NoError(t, w.client.Del(t.Context(), w.key("a", "fence")).Err())

	r, err := i.Revoke(t.Context(), "a")

	require.NoError(t, err)
	require.Greater(t, r.Token(), l.Token())
}

func TestARenewalRestoresALastTokenThatWasEvicted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := w.issuer(t, lease.Config{TTL: time.Minute})
	_, err := i.Raise(t.Context(), "a", 1<<52)
	require.NoError(t, err)
	l := try(t, i, "a")
	require.NoError(t, w.client.Del(t.Context(), w.key("a", "fence")).Err())

	require.NoError(t, l.Extend(t.Context()))

	require.Positive(t, w.client.PTTL(t.Context(), w.key("a", "fence")).Val())
	require.NoError(t, l.Release(t.Context()))
	require.Greater(t, try(t, i, "a").Token(), l.Token())
}
