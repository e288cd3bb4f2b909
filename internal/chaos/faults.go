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

// ServerFault is a disturbance of a server, by who may do that.
type ServerFault struct {
	Kind string
	// Do returns when it is over. keys are what the run can have in Redis. It may wait until every
	// object was written once more, so that there is something to lose.
	Do func(ctx context.Context, keys []string, written func()) error
}

// kind is a kind of fault: what it does, and returns when it is over.
type kind struct {
	name string
	do   func(context.Context, *crew, Fault) error
}

// kinds are the faults that need no rights over the servers.
var kinds = []kind{
	{"pause", pause},
	{"kill", kill},
	{"pause and delay", pauseAndDelay},
	{"delay to redis", weather(toRedis, delay)},
	{"delay to postgres", weather(toPostgres, delay)},
	{"jitter", weather(toBoth, func(f Fault) faulty.Weather { return faulty.Weather{Jitter: 2 * f.Delay} })},
	{"redis cut", weather(toRedis, always(faulty.Weather{Refuse: true}))},
	{"postgres cut", weather(toPostgres, always(faulty.Weather{Refuse: true}))},
	{"redis one-way requests", weather(toRedis, always(faulty.Weather{HoldReplies: true}))},
	{"redis one-way replies", weather(toRedis, always(faulty.Weather{HoldRequests: true}))},
	{"postgres one-way requests", weather(toPostgres, always(faulty.Weather{HoldReplies: true}))},
	{"postgres one-way replies", weather(toPostgres, always(faulty.Weather{HoldRequests: true}))},
	{"redis replies lost", weather(toRedis, always(faulty.Weather{LoseReplies: true}))},
	{"postgres replies lost", flicker},
	{"commit replies lost", commitRepliesLost},
	{"script flush", scriptFlush},
	{"redis keys lost", keysLost},
	{"redis keys set back", keysSetBack},
	{"sessions ended", sessionsEnded},
}

func delay(f Fault) faulty.Weather { return faulty.Weather{Delay: f.Delay} }

func always(w faulty.Weather) func(Fault) faulty.Weather {
	return func(Fault) faulty.Weather { return w }
}

// schedule draws faults for ever: every kind once in a random order, and then again. The same seed
// draws the same.
func schedule(seed uint64, names []string, workers int, ttl time.Duration) func() Fault {
	random := rand.New(rand.NewPCG(seed, 1))
	var round []string
	return func() Fault {
		if len(round) == 0 {
			round = append(round, names...)
			random.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		}
		f := Fault{Kind: round[0], Victim: everybody, Lasts: ttl + ttl/4 + upTo(random, ttl), Delay: ttl/20 + upTo(random, ttl/10)}
		round = round[1:]
		if victim := random.IntN(workers); random.IntN(3) > 0 || f.Kind == "kill" {
			f.Victim = victim
		}
		return f
	}
}

// stricken are the members that a fault is for.
func (c *crew) stricken(f Fault) []*member {
	if f.Victim == everybody {
		return c.members
	}
	return c.members[f.Victim : f.Victim+1]
}

// pause stops processes for longer than their leases last.
func pause(ctx context.Context, c *crew, f Fault) error {
	var stop func([]*member) error
	stop = func(rest []*member) (err error) {
		if len(rest) == 0 {
			wait(ctx, f.Lasts)
			return nil
		}
		var inner error
		err = rest[0].pause(func() { inner = stop(rest[1:]) })
		return errors.Join(err, inner)
	}
	return stop(c.stricken(f))
}

func kill(ctx context.Context, c *crew, f Fault) error {
	for _, m := range c.stricken(f) {
		m.kill()
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
	for _, n := range c.networks(toBoth, everybody) {
		n.Set(faulty.Weather{Delay: f.Delay, Jitter: f.Delay})
		defer n.Set(faulty.Weather{})
	}
	err := pause(ctx, c, f)
	wait(ctx, f.Lasts/4)
	return err
}

// weather sets the weather for as long as a fault lasts. What was held is delivered then. Where
// connections are refused, those that are there end.
func weather(which side, is func(Fault) faulty.Weather) func(context.Context, *crew, Fault) error {
	return func(ctx context.Context, c *crew, f Fault) error {
		for _, n := range c.networks(which, f.Victim) {
			n.Set(is(f))
			if is(f).Refuse {
				n.Cut()
			}
			defer n.Set(faulty.Weather{})
		}
		wait(ctx, f.Lasts)
		return nil
	}
}

// flicker loses replies of Postgres for a moment, again and again, so that also replies to COMMIT
// are lost.
func flicker(ctx context.Context, c *crew, f Fault) error {
	const times = 12
	for range times {
		for _, n := range c.networks(toPostgres, f.Victim) {
			n.Set(faulty.Weather{LoseReplies: true})
		}
		wait(ctx, f.Lasts/(6*times))
		for _, n := range c.networks(toPostgres, f.Victim) {
			n.Set(faulty.Weather{})
		}
		wait(ctx, f.Lasts*5/(6*times))
	}
	return nil
}

// commitRepliesLost has the workers themselves lose the replies: no network sees a COMMIT through TLS.
func commitRepliesLost(ctx context.Context, c *crew, f Fault) (err error) {
	for _, losing := range []bool{true, false} {
		for _, m := range c.stricken(f) {
			err = errors.Join(err, m.worker.Order(order{losing}))
		}
		if losing && err == nil {
			wait(ctx, f.Lasts)
		}
	}
	return err
}

// scriptFlush takes the scripts from Redis, as a restart does, a few times.
func scriptFlush(ctx context.Context, c *crew, f Fault) error {
	for range 10 {
		if err := c.client.ScriptFlush(ctx).Err(); err != nil { // of a Cluster, on all nodes
			return err
		}
		wait(ctx, f.Lasts/10)
	}
	return nil
}

// keysLost takes the keys of this run away, as FLUSHALL or an eviction does, a few times.
func keysLost(ctx context.Context, c *crew, f Fault) error {
	for range 5 {
		for _, key := range c.keys() {
			if err := c.client.Del(ctx, key).Err(); err != nil {
				return err
			}
		}
		wait(ctx, f.Lasts/5)
	}
	return nil
}

// keysSetBack puts the owners and the last tokens of this run back to what they were before, as an
// old snapshot or a replica that lagged does.
func keysSetBack(ctx context.Context, c *crew, f Fault) error {
	type copied struct {
		value string
		ttl   time.Duration
	}
	before := map[string]copied{}
	keys := slices.DeleteFunc(c.keys(), func(key string) bool { return !strings.HasSuffix(key, ":owner") && !strings.HasSuffix(key, ":fence") })
	for _, key := range keys {
		pipe := c.client.TxPipeline() // at once, or a key that expires in between would come back for good
		value, ttl := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		if _, err := pipe.Exec(ctx); errors.Is(err, redis.Nil) || err == nil && ttl.Val() == 0 {
			continue // it is not there, or not for another millisecond
		} else if err != nil {
			return err
		}
		before[key] = copied{value.Val(), max(0, ttl.Val())}
	}
	wait(ctx, f.Lasts)
	for _, key := range keys {
		if old, ok := before[key]; !ok {
			_ = c.client.Del(ctx, key).Err()
		} else if err := c.client.Set(ctx, key, old.value, old.ttl).Err(); err != nil {
			return err
		}
	}
	return nil
}

// sessionsEnded has Postgres end the sessions of the workers, whatever they do, a few times.
func sessionsEnded(ctx context.Context, c *crew, f Fault) error {
	for range 5 {
		_, err := c.pool.Exec(ctx, `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = $1 AND usename = current_user AND datname = current_database() AND state <> 'idle'`, c.Run)
		if err != nil {
			return err
		}
		wait(ctx, f.Lasts/5)
	}
	return nil
}

// names of all kinds of faults, those of the servers included; only narrows them.
func names(servers []ServerFault, only []string) (all []string, err error) {
	for _, k := range kinds {
		all = append(all, k.name)
	}
	for _, s := range servers {
		all = append(all, s.Kind)
	}
	if len(only) == 0 {
		return all, nil
	}
	for _, name := range only {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("there is no fault %q; there are %q", name, all)
		}
	}
	return only, nil
}
