package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencedb/fencedb/lease"
)

// ttl of all locks, far longer than the work: nobody has to renew, nothing runs out.
const ttl = 10 * time.Second

// acquire waits for the lock on resource, for as long as ctx allows, and returns what gives it
// back.
type acquire func(ctx context.Context, resource string) (release func() error, err error)

// The names of the lock that is measured, and of the control, which does no more than it has to and
// cannot wait.
const (
	ours  = "fencedb/lease"
	noEnd = ", no cancel" // with a context that cannot end, so the goroutine of the caller sends
	setNX = "SET NX and DEL"
)

// locks are the libraries, some with several settings. A process opens one once, and all its
// waiters share that.
var locks = map[string]func(addr string) (acquire, error){
	ours:                openLease(func(ctx context.Context) context.Context { return ctx }),
	ours + noEnd:        openLease(context.WithoutCancel),
	setNX:               openSetNX,
	"rueidislock":       openRueidislock,
	"redislock":         openRedislock(time.Second),
	"redislock, 10 ms":  openRedislock(10 * time.Millisecond),
	"redislock, 100 ms": openRedislock(100 * time.Millisecond),
	"redsync":           openRedsync,
}

// contender is a lock that can be waited for, and what it does not do of what ours does.
type contender struct{ name, not string }

var contenders = []contender{
	{ours, ""},
	{"rueidislock", "no fencing token, no order: whichever process is faster, and within it whichever goroutine"},
	{"redislock, 10 ms", "no fencing token, no order, no wake-up: it asks every 10 ms"},
	{"redislock, 100 ms", "the same, with the interval of its example"},
	{"redsync", "no fencing token, no order, no wake-up: it asks every 50 to 250 ms, its default, and deletes after each refusal"},
}

func openLease(as func(context.Context) context.Context) func(addr string) (acquire, error) {
	return func(addr string) (acquire, error) {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		issuer, err := lease.New(client, lease.Config{TTL: ttl})
		return func(ctx context.Context, resource string) (func() error, error) {
			l, err := issuer.Acquire(as(ctx), resource)
			return func() error { return l.Release(as(ctx)) }, err // which a caller that can be cancelled has too
		}, err
	}
}

func openSetNX(addr string) (acquire, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	return func(ctx context.Context, resource string) (func() error, error) {
		ok, err := client.SetNX(ctx, resource, leaseID.String(), ttl).Result()
		if err == nil && !ok {
			err = errors.New("it is taken")
		}
		return func() error { return client.Del(context.Background(), resource).Err() }, err
	}, nil
}

func openRueidislock(addr string) (acquire, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:    ttl,
		KeyMajority:    1,    // one server; its default of two keys would double the commands
		NoLoopTracking: true, // which its documentation recommends where Redis can do it
	})
	return func(ctx context.Context, resource string) (func() error, error) {
		_, cancel, err := locker.WithContext(ctx, resource)
		return func() error { cancel(); return nil }, err
	}, err
}

// never is a deadline no run reaches. Without one, redislock gives up after the TTL.
const never = time.Hour

func openRedislock(every time.Duration) func(addr string) (acquire, error) {
	return func(addr string) (acquire, error) {
		client := redislock.New(redis.NewClient(&redis.Options{Addr: addr}))
		retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(every)}
		return func(ctx context.Context, resource string) (func() error, error) {
			ctx, cancel := context.WithTimeout(ctx, never)
			defer cancel()
			l, err := client.Obtain(ctx, resource, ttl, retry)
			return func() error { return l.Release(context.Background()) }, err
		}, nil
	}
}

func openRedsync(addr string) (acquire, error) {
	sync := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: addr})))
	return func(ctx context.Context, resource string) (func() error, error) {
		m := sync.NewMutex(resource, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt))
		return func() error { _, err := m.Unlock(); return err }, m.LockContext(ctx)
	}, nil
}
