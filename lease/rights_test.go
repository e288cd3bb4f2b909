package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease", func(t *testing.T, client, admin redis.UniversalClient, namespace string) (errs []error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		try := func(err error) error {
			errs = append(errs, err)
			return err
		}
		cfg := lease.Config{TTL: 10 * time.Second, Namespace: namespace}
		i, err := lease.New(client, cfg)
		others, err2 := lease.New(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return errs
		}
		defer func() { try(i.Close(ctx)); try(others.Close(ctx)) }()

		_, err = i.Check(ctx)
		try(err)
		if l, err := i.Acquire(ctx, "a"); try(err) == nil {
			try(l.Extend(ctx))
			_, err = l.Verify(ctx)
			try(err)
			fresh, err := i.Heal(ctx, l, l.Token())
			if try(err) == nil {
				try(fresh.Release(ctx))
			}
		}
		_, err = i.Raise(ctx, "a", 1)
		try(err)
		_, err = i.Inspect(ctx, "a")
		try(err)
		_, err = i.Revoke(ctx, "a")
		try(err)
		if several, err := i.AcquireAll(ctx, []string{"b", "c"}); try(err) == nil {
			try(several.Release(ctx))
		}

		// One that waits, gets the lease from another, and hands it on to one that waits.
		held, err := others.Acquire(ctx, "d")
		if try(err) != nil {
			return errs
		}
		passOn := func(i *lease.Issuer, holder *lease.Lease) *lease.Lease {
			got := make(chan *lease.Lease, 1)
			failed := make(chan error, 1)
			go func() {
				l, err := i.Acquire(ctx, "d")
				failed <- err
				got <- l
			}()
			keys := protocol.KeysOf(protocol.LeaseKind, namespace, "d", false)
			leasetest.AwaitListener(ctx, admin, keys.Queue, keys.Channel, func() bool { return len(failed) > 0 })
			try(holder.Release(ctx))
			try(<-failed)
			return <-got
		}
		mine := passOn(i, held)
		if mine == nil {
			return errs
		}
		theirs := passOn(others, mine)
		_, err = i.TryAcquire(ctx, "d", lease.Barge())
		if err == nil {
			t.Error("it is held")
		}
		if theirs != nil {
			try(theirs.Release(ctx))
		}

		// After a lost reply a call leaves a note.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			if l, err := i.Acquire(ctx, "e"); try(err) == nil {
				try(l.Release(ctx))
			}
		}
		faults.Always(faulty.None)
		return errs
	})
}

func as(t *testing.T, server *testenv.RedisServer, user, password string) *world {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password})
	t.Cleanup(func() { _ = client.Close() })
	return &world{client: client}
}

func TestWhoIsNotLetInLearnsIt(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	admin := server.Client()
	acl := func(args ...any) {
		require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER"}, args...)...).Err())
	}
	acl("keyless", "on", ">secret", "+@all", "~other:*", "&*")
	acl("scriptless", "on", ">secret", "+@all", "-@scripting", "~*", "&*")
	for name, w := range map[string]*world{
		"a wrong password": as(t, server, "keyless", "x"),
		"another's keys":   as(t, server, "keyless", "secret"),
		"no scripts":       as(t, server, "scriptless", "secret"),
	} {
		start := time.Now()
		require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: time.Minute}), lease.ErrDenied, name)
		require.Less(t, time.Since(start), 30*time.Second, "%s: asking again is of no use", name)
	}

	acl("default", "on", "resetpass", ">secret")
	require.ErrorIs(t, acquireOn(t, as(t, server, "", ""), lease.Config{TTL: time.Minute}), lease.ErrDenied, "no password")
}

func TestAServerThatRunsAnEndlessScriptIsBusy(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	w := as(t, server, "", "")
	require.NoError(t, w.client.Ping(t.Context()).Err())
	ended := make(chan error, 1)
	go func() { ended <- server.Client().Eval(t.Context(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(w.client.Get(t.Context(), "a").Err(), "BUSY") }, 10*time.Second, ms)
	require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: 200 * ms}), lease.ErrBusy)
	require.NoError(t, w.client.ScriptKill(t.Context()).Err())
	require.Error(t, <-ended)
	require.NoError(t, acquireOn(t, w, lease.Config{TTL: time.Minute}))
}
