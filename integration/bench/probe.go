package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// trips are round trips to Redis.
type trips struct {
	ping, script durations
}

// nothing is a script that does nothing: what a script costs before it does anything.
var nothing = redis.NewScript("return 1")

// probe makes round trips now and then, until so much time is over.
func probe(ctx context.Context, client *redis.Client, every, during time.Duration) (t trips, err error) {
	if err := nothing.Load(ctx, client).Err(); err != nil {
		return t, err
	}
	again, over := time.NewTicker(every), time.After(during)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return t, context.Cause(ctx)
		case <-over:
			return t, nil
		case <-again.C:
		}
		if err := t.make(ctx, client); err != nil {
			return t, err
		}
	}
}

func (t *trips) make(ctx context.Context, client *redis.Client) error {
	start := time.Now()
	if err := client.Ping(ctx).Err(); err != nil {
		return err
	}
	pinged := time.Now()
	if err := nothing.EvalSha(ctx, client, nil).Err(); err != nil {
		return err
	}
	t.ping = append(t.ping, pinged.Sub(start))
	t.script = append(t.script, time.Since(pinged))
	return nil
}

// requests is what the probe itself adds to the counters: its round trips and the loading of its script.
func (t trips) requests() int64 { return int64(len(t.ping)+len(t.script)) + 1 }
