package main

import (
	"context"
	"fmt"
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

// acquire waits for the lock on resource, for as long as ctx allows, and returns what gives it back.
type acquire func(ctx context.Context, resource string) (release func() error, err error)

// contender is one library with one setting. A process opens it once, and all its waiters share that.
type contender struct {
	name string
	open func(addr string) (acquire, error)
	not  string // what it does not do, of what ours does
}

const ours = "fencedb/lease"

var contenders = []contender{
	{ours, openLease, ""},
	{"rueidislock", openRueidislock, "no fencing token, no order: whichever process is faster, and within it whichever goroutine"},
	{"redislock, 10 ms", openRedislock(10 * time.Millisecond), "no fencing token, no order, no wake-up: it asks every 10 ms"},
	{"redislock, 100 ms", openRedislock(100 * time.Millisecond), "the same, with the interval of its example"},
	{"redsync", openRedsync, "no fencing token, no order, no wake-up: it asks every 50 to 250 ms, its default, and deletes after each refusal"},
}

func find(name string) (contender, error) {
	for _, c := range contenders {
		if c.name == name {
			return c, nil
		}
	}
	return contender{}, fmt.Errorf("no lock is called %q", name)
}

func openLease(addr string) (acquire, error) {
	issuer, err := lease.New(redis.NewClient(&redis.Options{Addr: addr}), lease.Config{TTL: ttl})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, resource string) (func() error, error) {
		l, err := issuer.Acquire(ctx, resource)
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.Background()) }, nil
	}, nil
}

func openRueidislock(addr string) (acquire, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:    ttl,
		KeyMajority:    1,    // one server; its default of two keys would double the commands
		NoLoopTracking: true, // which its documentation recommends where Redis can do it
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, resource string) (func() error, error) {
		_, cancel, err := locker.WithContext(ctx, resource)
		if err != nil {
			return nil, err
		}
		return func() error { cancel(); return nil }, nil
	}, nil
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
			if err != nil {
				return nil, err
			}
			return func() error { return l.Release(context.Background()) }, nil
		}, nil
	}
}

func openRedsync(addr string) (acquire, error) {
	sync := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: addr})))
	return func(ctx context.Context, resource string) (func() error, error) {
		m := sync.NewMutex(resource, redsync.WithExpiry(ttl), redsync.WithTries(math.MaxInt))
		if err := m.LockContext(ctx); err != nil {
			return nil, err
		}
		return func() error { _, err := m.Unlock(); return err }, nil
	}, nil
}
