package lease_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// check tries again if it does not find what it should: it gives up after five seconds, which pass
// on a machine that stands still. A server that is unfit is so each time.
func check(t *testing.T, client redis.UniversalClient, want error) (lease.Health, error) {
	t.Helper()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	for tries := 1; ; tries++ {
		h, err := i.Check(t.Context())
		if errors.Is(err, want) || tries == 3 {
			return h, err
		}
	}
}

func codes(h lease.Health) (all []lease.WarningCode) {
	for _, s := range h.Servers {
		for _, w := range s.Warnings {
			all = append(all, w.Code)
		}
	}
	return all
}

func TestCheckOfAServerAsRecommended(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "noeviction")
	h, err := check(t, server.Client(), nil)
	require.NoError(t, err)
	require.Empty(t, h.Warnings())
	require.Len(t, h.Servers, 1)
	s := h.Servers[0]
	require.Equal(t, server.Addr(), s.Addr)
	require.Equal(t, "master", s.Role)
	require.Equal(t, "noeviction", s.Eviction)
	require.NotEmpty(t, s.Version)
	require.True(t, s.AOF)
	require.True(t, s.Limited)
	require.Less(t, s.Clock.Abs(), time.Second+s.RoundTrip/2)
	require.Positive(t, s.RoundTrip)
}

func TestCheckOfAServerThatMayForget(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--maxmemory-policy", "allkeys-lru")
	h, err := check(t, server.Client(), nil)
	require.NoError(t, err)
	require.Equal(t, []lease.WarningCode{lease.WarnUnlogged, lease.WarnEviction}, codes(h), "no log, and eviction once there is a limit")

	for _, policy := range []string{"allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"} {
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory", "100mb").Err())
		require.NoError(t, server.Client().ConfigSet(t.Context(), "maxmemory-policy", policy).Err())
		h, err = check(t, server.Client(), lease.ErrUnfit)
		require.ErrorIs(t, err, lease.ErrUnfit, policy)
		require.ErrorContains(t, err, policy)
		require.Equal(t, policy, h.Servers[0].Eviction, "what was found comes with the error")
	}
}

func TestCheckOfAReplica(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
	_, err := check(t, server.Client(), lease.ErrUnfit)
	require.ErrorIs(t, err, lease.ErrUnfit)
	require.ErrorIs(t, err, &lease.RefusedError{Code: "READONLY"})
}

func TestCheckWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	server.Kill()
	_, err := check(t, server.Client(), lease.ErrUnreachable)
	require.ErrorIs(t, err, lease.ErrUnreachable)

	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = i.Check(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestCheckWhereInfoIsForbidden(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())
	h, err := check(t, server.Client(), nil)
	require.NoError(t, err)
	require.Equal(t, []lease.WarningCode{lease.WarnHidden}, codes(h))
	require.Contains(t, h.Warnings()[0], server.Addr())
}

func TestCheckOfReplicasThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	sentinel := testenv.Sentinel(t)
	h, err := check(t, sentinel.Client(), nil)
	require.NoError(t, err)
	require.Equal(t, 2, h.Servers[0].Replicas)
	require.Contains(t, codes(h), lease.WarnReplicas)
	require.NoError(t, sentinel.Primary().Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	h, err = check(t, sentinel.Client(), nil)
	require.NoError(t, err)
	require.NotContains(t, codes(h), lease.WarnReplicas)
}

func TestCheckOfAClusterAsksEveryMaster(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t)
	h, err := check(t, cluster.Client(), nil)
	require.NoError(t, err)
	require.Len(t, h.Servers, 3)
	for _, node := range cluster.Nodes() {
		node.Kill()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
	defer cancel()
	i, err := lease.New(redis.NewClusterClient(cluster.Options()), lease.Config{TTL: time.Second})
	require.NoError(t, err)
	_, err = i.Check(ctx)
	require.ErrorIs(t, err, lease.ErrUnreachable)
}

func TestCheckNoticesAWrongClock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.memory.SetTime(time.Now().Add(-time.Hour))
		h, err := check(t, w.client, nil)
		require.NoError(t, err)
		require.Equal(t, -time.Hour, h.Servers[0].Clock.Round(time.Minute))
		require.Contains(t, codes(h), lease.WarnClock)
	})
}

// What Check says must be what an acquisition would meet with.
func TestCheckOfAServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]struct {
		setting, value string
		want           error
	}{
		"memory":   {"maxmemory", "1", &lease.RefusedError{Code: "OOM"}},
		"replicas": {"min-replicas-to-write", "1", &lease.RefusedError{Code: "NOREPLICAS"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testenv.OwnRedis(t).Client()
			_, err := check(t, client, nil)
			require.NoError(t, err)
			require.NoError(t, client.ConfigSet(t.Context(), refusal.setting, refusal.value).Err())
			_, err = check(t, client, refusal.want)
			require.ErrorIs(t, err, refusal.want)
			require.ErrorIs(t, acquireOn(t, &world{client: client}, lease.Config{TTL: time.Second}), refusal.want)
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-info", "-config").Err())
			_, err = check(t, client, refusal.want)
			require.ErrorIs(t, err, refusal.want, "no setting has to be read")
		})
	}
}

func TestCheckOfAServerThatCannotSave(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--save", "3600 1", "--dbfilename", "taken")
	require.NoError(t, os.Mkdir(filepath.Join(server.Dir(), "taken"), 0o700))
	_, err := check(t, server.Client(), nil)
	require.NoError(t, err, "it has not tried yet")
	require.NoError(t, server.Client().BgSave(t.Context()).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(server.Client().Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	}, time.Minute, 10*ms)

	_, err = check(t, server.Client(), lease.ErrUnfit)
	require.ErrorIs(t, err, lease.ErrUnfit)
	require.ErrorIs(t, err, &lease.RefusedError{Code: "MISCONF"})
	require.ErrorIs(t, acquireOn(t, &world{client: server.Client()}, lease.Config{TTL: time.Second}), &lease.RefusedError{Code: "MISCONF"})
}

// Whatever keeps leases from working, or waiters from being woken, is met by Check.
func TestCheckMeetsWhatLeasesWould(t *testing.T) {
	t.Parallel()
	acl := func(rules ...any) func(t *testing.T) *redis.Client {
		return func(t *testing.T) *redis.Client {
			server := testenv.OwnRedis(t)
			require.NoError(t, server.Client().Do(t.Context(), append([]any{"ACL", "SETUSER", "default"}, rules...)...).Err())
			return server.Client()
		}
	}
	renamed := func(command string) func(t *testing.T) *redis.Client {
		return func(t *testing.T) *redis.Client {
			return testenv.OwnRedis(t, "--rename-command", command, "RENAMED").Client()
		}
	}
	for name, c := range map[string]struct {
		client func(t *testing.T) *redis.Client
		want   error // nil: one without a name
	}{
		"no SET":            {acl("-set"), &lease.RefusedError{Code: "NOPERM"}},
		"no DEL":            {acl("-del"), &lease.RefusedError{Code: "NOPERM"}},
		"no EVALSHA":        {acl("-evalsha"), &lease.RefusedError{Code: "NOPERM"}},
		"no PUBLISH":        {acl("-publish"), &lease.RefusedError{Code: "NOPERM"}},
		"no SUBSCRIBE":      {acl("-subscribe"), &lease.RefusedError{Code: "NOPERM"}},
		"no keys":           {acl("resetkeys", "~other:*"), &lease.RefusedError{Code: "NOPERM"}},
		"no channels":       {acl("resetchannels"), &lease.RefusedError{Code: "NOPERM"}},
		"renamed EVALSHA":   {renamed("EVALSHA"), nil},
		"renamed PUBLISH":   {renamed("PUBLISH"), lease.ErrUnfit},
		"renamed SUBSCRIBE": {renamed("SUBSCRIBE"), lease.ErrUnfit},
		"of a Cluster": {func(t *testing.T) *redis.Client {
			return testenv.Cluster(t).Nodes()[0].Client()
		}, lease.ErrUnfit},
		"all as it should be": {acl(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := c.client(t)
			_, err := check(t, client, c.want)
			if name == "all as it should be" {
				require.NoError(t, err)
				for _, key := range client.Keys(t.Context(), "*").Val() {
					require.Positive(t, client.PTTL(t.Context(), key).Val(), key)
					require.LessOrEqual(t, client.PTTL(t.Context(), key).Val(), time.Minute, key)
				}
				require.Empty(t, client.Keys(t.Context(), "*owner").Val())
				return
			}
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
		})
	}
}

// A server between that answers for Redis, say.
func TestCheckLooksAtEachAnswer(t *testing.T) {
	t.Parallel()
	held := []any{"held", "500", "1", ""}
	for name, answer := range map[string]struct {
		to    int // the nth request for the resource
		reply []any
	}{
		"nobody gets it":                   {1, held},
		"two get it":                       {2, []any{"granted", "1786000000123456"}},
		"the waiter is called for nothing": {3, held},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := testenv.OwnRedis(t).Client()
			asked := 0
			client.AddHook(answers(func(cmd redis.Cmder) {
				if !slices.Contains(cmd.Args(), any("try")) && !slices.Contains(cmd.Args(), any("wait")) {
					return
				}
				if asked++; asked == answer.to {
					cmd.(interface{ SetVal(any) }).SetVal(answer.reply)
				}
			}))
			_, err := check(t, client, lease.ErrUnfit)
			require.ErrorIs(t, err, lease.ErrUnfit)
		})
	}
}

// answers is a hook that changes answers which are no errors.
type answers func(cmd redis.Cmder)

func (answers) DialHook(next redis.DialHook) redis.DialHook { return next }

func (change answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil {
			change(cmd)
		}
		return err
	}
}

func (answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// However short the time, an error says what it was about, and has the end of the context in its
// chain.
func TestCheckInLittleTime(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	i, err := lease.New(client, lease.Config{TTL: time.Second})
	require.NoError(t, err)
	for most := time.Microsecond; most < 20*ms; most += most/20 + 1 {
		ctx, cancel := context.WithTimeout(t.Context(), most)
		_, err := i.Check(ctx)
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded, most)
			require.NotContains(t, err.Error(), "<nil>", most)
		}
		cancel()
	}
}

func TestCheckWhereScriptsAreForbidden(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "default", "-eval").Err())
	_, err := check(t, client, &lease.RefusedError{Code: "NOPERM"})
	require.True(t, redis.IsPermissionError(err), "%v", err)
}

func TestCheckWarnsOfLeasesWithoutAnEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, test := range map[string]struct {
		cfg  lease.Config
		want []lease.WarningCode
	}{
		"seconds":   {lease.Config{TTL: time.Second}, nil},
		"hours":     {lease.Config{TTL: 2 * time.Hour}, []lease.WarningCode{lease.WarnTTL}},
		"unbounded": {lease.Config{TTL: time.Second, MaxHold: lease.Unlimited}, []lease.WarningCode{lease.WarnUnbounded}},
		"both":      {lease.Config{TTL: time.Hour, MaxHold: lease.Unlimited}, []lease.WarningCode{lease.WarnTTL, lease.WarnUnbounded}},
	} {
		h, err := w.issuer(t, test.cfg).Check(t.Context())
		require.NoError(t, err, name)
		var found []lease.WarningCode
		for _, warning := range h.Config {
			found = append(found, warning.Code)
			require.Contains(t, h.Warnings(), warning.Text)
		}
		require.Equal(t, test.want, found, name)
	}
}
