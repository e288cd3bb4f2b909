package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/faulty"
)

// everybody is a victim that is not one worker.
const everybody = -1

// Fault is one disturbance, as the schedule has it.
type Fault struct {
	Kind   string        `json:"kind"`
	Victim int           `json:"victim"` // the place of a worker; -1: all
	Lasts  time.Duration `json:"-"`
	Delay  time.Duration `json:"-"` // where the kind has one
}

// kind is a kind of fault: what it does, and returns when it is over.
type kind struct {
	name string
	do   func(context.Context, *crew, Fault) error
}

// kinds are the faults that need no rights over the servers. Delay and Jitter count in delays of
// the fault.
var kinds = []kind{
	{"pause", pause},
	{"kill", kill},
	{"pause and delay", pauseAndDelay},
	{"delay to redis", weather(faulty.Weather{Delay: 1}, toRedis)},
	{"delay to postgres", weather(faulty.Weather{Delay: 1}, toPostgres)},
	{"jitter", weather(faulty.Weather{Jitter: 2}, toPostgres, toRedis)},
	{"redis cut", weather(faulty.Weather{Refuse: true}, toRedis)},
	{"postgres cut", weather(faulty.Weather{Refuse: true}, toPostgres)},
	{"redis one-way requests", weather(faulty.Weather{HoldReplies: true}, toRedis)},
	{"redis one-way replies", weather(faulty.Weather{HoldRequests: true}, toRedis)},
	{"postgres one-way requests", weather(faulty.Weather{HoldReplies: true}, toPostgres)},
	{"postgres one-way replies", weather(faulty.Weather{HoldRequests: true}, toPostgres)},
	{"redis replies lost", weather(faulty.Weather{LoseReplies: true}, toRedis)},
	{"postgres replies lost", again(6, weather(faulty.Weather{LoseReplies: true}, toPostgres))}, // again: or no COMMIT is sent
	{"commit replies lost", commitRepliesLost},
	{"script flush", again(10, scriptFlush)},
	{"redis keys lost", again(5, keysLost)},
	{"redis keys set back", keysSetBack},
	{"sessions ended", again(5, sessionsEnded)},
}

// kinds are the faults of a run, those of servers included.
func (c *Config) kinds() ([]kind, error) {
	all := slices.Concat(kinds, c.servers)
	if len(c.Only) == 0 {
		return all, nil
	}
	var only []kind
	for _, name := range c.Only {
		i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q; there are %q", name, all)
		}
		only = append(only, all[i])
	}
	return only, nil
}

func (k kind) String() string { return k.name }

// schedule draws faults for ever: every kind once in a random order, and then again. The same seed
// draws the same.
func schedule(seed uint64, kinds []kind, workers int, ttl time.Duration) func() (kind, Fault) {
	random := rand.New(rand.NewPCG(seed, 1))
	var round []kind
	return func() (kind, Fault) {
		if len(round) == 0 {
			round = append(round, kinds...)
			random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		k := round[0]
		f := Fault{Kind: k.name, Victim: everybody,
			Lasts: ttl + ttl/4 + upTo(random, ttl), Delay: ttl/20 + upTo(random, ttl/10)}
		round = round[1:]
		if victim := random.IntN(workers); random.IntN(3) > 0 || k.name == "kill" {
			f.Victim = victim
		}
		return k, f
	}
}

// again does something so many times while a fault lasts.
func again(times int, do func(context.Context, *crew, Fault) error) func(context.Context, *crew, Fault) error {
	return func(ctx context.Context, c *crew, f Fault) error {
		f.Lasts /= time.Duration(times)
		for range times {
			if err := do(ctx, c, f); err != nil {
				return err
			}
			wait(ctx, f.Lasts)
		}
		return nil
	}
}

// pause stops processes for longer than their leases last.
func pause(ctx context.Context, c *crew, f Fault) (err error) {
	for _, m := range c.stricken(f) {
		from := now()
		if err := m.worker.Stop(); err != nil {
			return err
		}
		defer func() { // when all have been stopped for that time
			err = errors.Join(err, m.worker.Continue())
			c.seen.pauses = append(c.seen.pauses, Pause{m.task.Process, from, now()})
		}()
	}
	wait(ctx, f.Lasts)
	return nil
}

func kill(ctx context.Context, c *crew, f Fault) error {
	for _, m := range c.stricken(f) {
		m.ending.Store(true)
		m.worker.Abort()
		m.heard.Wait()
		m.worker.Kill()
	}
	wait(ctx, f.Lasts)
	for _, m := range c.stricken(f) {
		if err := m.start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// pauseAndDelay stops processes while the network of all is slow, and slow for a while after that.
func pauseAndDelay(ctx context.Context, c *crew, f Fault) error {
	all := Fault{Victim: everybody}
	c.set(all, faulty.Weather{Delay: f.Delay, Jitter: f.Delay}, toPostgres, toRedis)
	defer c.set(all, faulty.Weather{}, toPostgres, toRedis)
	err := pause(ctx, c, f)
	wait(ctx, f.Lasts/4)
	return err
}

// weather sets the weather for as long as a fault lasts. What was held is delivered then.
func weather(w faulty.Weather, to ...int) func(context.Context, *crew, Fault) error {
	return func(ctx context.Context, c *crew, f Fault) error {
		scaled := w
		scaled.Delay *= f.Delay
		scaled.Jitter *= f.Delay
		c.set(f, scaled, to...)
		defer c.set(f, faulty.Weather{}, to...)
		wait(ctx, f.Lasts)
		return nil
	}
}

// commitRepliesLost has the workers themselves lose the replies: no network sees a COMMIT through
// TLS.
func commitRepliesLost(ctx context.Context, c *crew, f Fault) (err error) {
	for _, m := range c.stricken(f) {
		err = errors.Join(err, m.worker.Order(true))
		defer func() { err = errors.Join(err, m.worker.Order(false)) }()
	}
	wait(ctx, f.Lasts)
	return err
}

// scriptFlush takes the scripts from Redis, as a restart does: of a Cluster, on all nodes.
func scriptFlush(ctx context.Context, c *crew, _ Fault) error { return c.client.ScriptFlush(ctx).Err() }

// keysLost takes the keys of this run away, as FLUSHALL or an eviction does.
func keysLost(ctx context.Context, c *crew, _ Fault) error { return c.deleteKeys(ctx, c.keys()) }

// keysSetBack puts the owners and the last tokens of this run back to what they were before, as an
// old snapshot or a replica that lagged does.
func keysSetBack(ctx context.Context, c *crew, f Fault) error {
	type copied struct {
		value *redis.StringCmd
		ttl   *redis.DurationCmd
	}
	before := map[string]copied{}
	keys := slices.DeleteFunc(c.keys(), func(key string) bool { return !strings.HasSuffix(key, ":owner") && !strings.HasSuffix(key, ":fence") })
	for _, key := range keys {
		pipe := c.client.TxPipeline() // at once, or a key that expires in between would come back for good
		old := copied{pipe.Get(ctx, key), pipe.PTTL(ctx, key)}
		if _, err := pipe.Exec(ctx); err == nil && old.ttl.Val() != 0 { // 0: it expires within a millisecond
			before[key] = old
		} else if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	wait(ctx, f.Lasts)
	for _, key := range keys {
		if old, ok := before[key]; !ok {
			_ = c.client.Del(ctx, key).Err()
		} else if err := c.client.Set(ctx, key, old.value.Val(), max(0, old.ttl.Val())).Err(); err != nil {
			return err
		}
	}
	return nil
}

// sessionsEnded has Postgres end the sessions of the workers, whatever they do.
func sessionsEnded(ctx context.Context, c *crew, _ Fault) error {
	_, err := c.pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM `+sessions+` AND state <> 'idle'`, c.Run)
	return err
}
