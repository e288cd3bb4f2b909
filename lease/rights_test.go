package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/leasetest"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

func TestRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease", func(ctx context.Context, t *testing.T, client, admin redis.UniversalClient, namespace string, try func(error) error) {
		cfg := lease.Config{TTL: time.Minute, Namespace: namespace}
		i, err := lease.New(client, cfg)
		others, err2 := lease.New(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return
		}
		defer func() { try(i.Close(ctx)); try(others.Close(ctx)) }()

		_, err = i.Check(ctx)
		try(err)
		if l, err := i.Acquire(ctx, "a"); try(err) == nil {
			try(l.Extend(ctx))
			_, err = l.Verify(ctx)
			try(err)
			data := lease.Key{Namespace: namespace, Resource: "a", Field: "data"}.String() // where leases may write anyway
			try(set(ctx, l, data, "x"))
			try(l.Release(ctx))
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
			return
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
			leasetest.AwaitListener(ctx, admin, keys.Queue.(string), keys.Channel.(string),
				func() bool { return len(failed) > 0 })
			try(holder.Release(ctx))
			try(<-failed)
			return <-got
		}
		mine := passOn(i, held)
		if mine == nil {
			return
		}
		theirs := passOn(others, mine)
		if theirs == nil {
			return
		}
		if _, err = i.Acquire(ctx, "d", lease.NoWait()); err == nil {
			t.Error("it is held")
		}
		try(theirs.Release(ctx))

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
	})
}

// What is needed where somebody waits for longer, for an option, and while a slot is moved. A
// connection subscribes only once it is known that it may wake others: a waiter that listens can be
// handed the lease before it learns what it may not do.
func TestAWaiterThatMayNotWakeOthersDoesNotListen(t *testing.T) {
	t.Parallel()
	for _, right := range []string{"-publish", "-unsubscribe"} {
		server := testenv.OwnRedis(t)
		leasetest.SetUser(t, server.Client(), "waiter", append(leasetest.Documented(t, "lease", "one Redis"), right))
		try(t, as(t, server, "", "").issuer(t, lease.Config{TTL: time.Hour}), "held")
		_, err := as(t, server, "waiter", "password").issuer(t, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "held")
		require.ErrorIs(t, err, &lease.RefusedError{Code: "NOPERM"}, right)
		stats, err := server.Client().InfoMap(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		require.NotContains(t, stats["Commandstats"], "cmdstat_subscribe", right)
	}
}

func TestRightsThatFewNeed(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	rights := leasetest.Documented(t, "lease", "one Redis")
	user := func(name string, more ...string) *world {
		leasetest.SetUser(t, server.Client(), name, append(rights, more...))
		return as(t, server, name, "password")
	}
	replicas := lease.Config{TTL: time.Minute, Replicas: 1, ReplicaTimeout: 20 * ms}
	require.ErrorIs(t, acquireOn(t, user("without-wait"), replicas), &lease.RefusedError{Code: "NOPERM"})
	require.ErrorIs(t, acquireOn(t, user("with-wait", "+wait"), replicas), &lease.RefusedError{Code: "NOREPLICAS"})
	named := func(w *world) error {
		options := *w.client.(*redis.Client).Options()
		options.ClientName = "desk"
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		return acquireOn(t, &world{client: client}, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	}
	require.ErrorIs(t, named(user("without-name")), &lease.RefusedError{Code: "NOPERM"})
	require.NoError(t, named(user("with-name", "+client|setname")))

	try(t, as(t, server, "", "").issuer(t, lease.Config{TTL: time.Hour}), "held")
	waitFor := func(w *world) error { // until the subscription has asked for a sign of life
		_, err := w.issuer(t, lease.Config{TTL: time.Minute}).Acquire(t.Context(), "held", lease.WaitAtMost(20*time.Second))
		return err
	}
	require.ErrorIs(t, waitFor(user("without-ping", "-ping")), &lease.RefusedError{Code: "NOPERM"})

	cluster := testenv.Cluster(t)
	for name, more := range map[string]string{"without-asking": "-asking", "with-asking": "+asking"} {
		for _, node := range cluster.Nodes() {
			leasetest.SetUser(t, node.Client(), name, append(leasetest.Documented(t, "lease", "Cluster"), more))
		}
		options := cluster.Options()
		options.Username, options.Password = name, "password"
		client := redis.NewClusterClient(options)
		t.Cleanup(func() { _ = client.Close() })
		w := &world{client: client, namespace: name}
		slot := cluster.Slot(w.key("a", "owner"))
		cluster.BeginMove(slot)
		if more == "-asking" {
			require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: time.Minute}), &lease.RefusedError{Code: "NOPERM"})
			cluster.FinishMove(slot)
			continue
		}
		acquired := make(chan error, 1)
		go func() { acquired <- acquireOn(t, w, lease.Config{TTL: time.Minute}) }()
		cluster.FinishMove(slot)
		require.NoError(t, <-acquired)
	}
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
		require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: time.Minute}), &lease.RefusedError{Code: "NOPERM"}, name)
		require.Less(t, time.Since(start), 30*time.Second, "%s: asking again is of no use", name)
	}

	acl("default", "on", "resetpass", ">secret")
	require.ErrorIs(t, acquireOn(t, as(t, server, "", ""), lease.Config{TTL: time.Minute}), &lease.RefusedError{Code: "NOPERM"}, "no password")
}

func TestAServerThatRunsAnEndlessScriptIsBusy(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t)
	require.NoError(t, server.Client().ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	w := as(t, server, "", "")
	require.NoError(t, w.client.Ping(t.Context()).Err())
	ended := make(chan error, 1)
	go func() { ended <- server.Client().Eval(t.Context(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return redis.HasErrorPrefix(w.client.Get(t.Context(), "a").Err(), "BUSY") }, time.Minute, ms)
	require.ErrorIs(t, acquireOn(t, w, lease.Config{TTL: 2 * time.Second}), &lease.RefusedError{Code: "BUSY"})
	require.NoError(t, w.client.ScriptKill(t.Context()).Err())
	require.Error(t, <-ended)
	require.NoError(t, acquireOn(t, w, lease.Config{TTL: time.Minute}))
}

func TestSemaphoreRights(t *testing.T) {
	t.Parallel()
	leasetest.RunRights(t, "lease.Semaphore", func(ctx context.Context, t *testing.T, client, admin redis.UniversalClient, namespace string, try func(error) error) {
		cfg := lease.SemaphoreConfig{Limit: 1, Lease: lease.Config{TTL: time.Minute, Namespace: namespace}}
		s, err := lease.NewSemaphore(client, cfg)
		others, err2 := lease.NewSemaphore(admin, cfg)
		if try(err) != nil || try(err2) != nil {
			return
		}
		defer func() { try(s.Close(ctx)); try(others.Close(ctx)) }()

		if l, err := s.Acquire(ctx, "a"); try(err) == nil {
			try(l.Extend(ctx))
			_, err = l.Verify(ctx)
			try(err)
			try(l.Release(ctx))
		}
		_, err = s.Inspect(ctx, "a")
		try(err)
		_, err = s.Revoke(ctx, "a", uuid.New())
		try(err)
		if l, err := others.Acquire(ctx, "a"); try(err) == nil {
			_, err = s.Revoke(ctx, "a", l.LeaseID())
			try(err)
		}
		// A place that its holder has left behind, beside another.
		cfg.Limit = 2
		two, err := lease.NewSemaphore(client, cfg)
		if try(err) != nil {
			return
		}
		defer func() { try(two.Close(ctx)) }()
		_, err = others.Acquire(ctx, "b")
		try(err)
		try(admin.ZAdd(ctx, protocol.KeysOf(protocol.SemaphoreKind, namespace, "b", false).Owner.(string), redis.Z{Score: 1, Member: "a place whose end has passed"}).Err())
		if l, err := two.Acquire(ctx, "b"); try(err) == nil {
			try(l.Release(ctx))
		}

		// One that waits, gets the place from another, and hands it on to one that waits.
		passOn := func(s *lease.Semaphore, holder *lease.Lease) *lease.Lease {
			got, failed := make(chan *lease.Lease, 1), make(chan error, 1)
			go func() {
				l, err := s.Acquire(ctx, "d")
				failed <- err
				got <- l
			}()
			keys := protocol.KeysOf(protocol.SemaphoreKind, namespace, "d", false)
			leasetest.AwaitListener(ctx, admin, keys.Queue.(string), keys.Channel.(string),
				func() bool { return len(failed) > 0 })
			try(holder.Release(ctx))
			try(<-failed)
			return <-got
		}
		held, err := others.Acquire(ctx, "d")
		if try(err) != nil {
			return
		}
		mine := passOn(s, held)
		if mine == nil {
			return
		}
		if theirs := passOn(others, mine); theirs != nil {
			try(theirs.Release(ctx))
		}

		// After a lost reply a call leaves a note.
		faults := new(faulty.Redis)
		client.AddHook(faults)
		faults.First(faulty.LoseReply)
		for range 2 {
			if l, err := s.Acquire(ctx, "e"); try(err) == nil {
				try(l.Release(ctx))
			}
		}
		faults.Always(faulty.None)
	})
}

func TestSemaphoreRefusalsHaveOneErrorEach(t *testing.T) {
	t.Parallel()
	places := func(t *testing.T, client *redis.Client) *lease.Semaphore {
		s, err := lease.NewSemaphore(client, lease.SemaphoreConfig{Limit: 3,
			Lease: lease.Config{TTL: time.Minute, RenewEvery: lease.Never}})
		require.NoError(t, err)
		return s
	}
	leasetest.Refusals(t, map[string]leasetest.Request{
		"acquire": {Effect: leasetest.Writes, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			return func() error { _, err := s.Acquire(t.Context(), "acquire", lease.NoWait()); return err }
		}},
		"extend": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := places(t, client).Acquire(t.Context(), "extend", lease.NoWait())
			require.NoError(t, err)
			return func() error { return l.Extend(t.Context()) }
		}},
		"release": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			l, err := places(t, client).Acquire(t.Context(), "release", lease.NoWait())
			require.NoError(t, err)
			return func() error { return l.Release(t.Context()) }
		}},
		"revoke": {Effect: leasetest.Frees, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			l, err := s.Acquire(t.Context(), "revoke", lease.NoWait())
			require.NoError(t, err)
			return func() error { _, err := s.Revoke(t.Context(), "revoke", l.LeaseID()); return err }
		}},
		"inspect": {Effect: leasetest.Reads, Prepare: func(t *testing.T, client *redis.Client) func() error {
			s := places(t, client)
			return func() error { _, err := s.Inspect(t.Context(), "inspect"); return err }
		}},
	})
}
