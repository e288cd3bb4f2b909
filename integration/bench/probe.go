package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// probeEvery is how often each process makes its round trips: rare enough to be no load.
const probeEvery = 40 * time.Millisecond

// trip is a PING, and a script that does nothing behind it, from a process that waits: what one round trip costs those that the
// load consists of.
type trip struct {
	At     int64 // when the PING was sent, as the times of a turn
	Ping   time.Duration
	Script time.Duration
}

// requestsPerTrip is what a trip adds to the counters.
const requestsPerTrip = 2

// nothing is what a script costs before it does anything.
var nothing = redis.NewScript("return 1")

// probe makes trips until ctx ends.
func probe(ctx context.Context, addr string) (trips []trip, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	if err := nothing.Load(ctx, client).Err(); err != nil {
		return nil, err
	}
	again := time.NewTicker(probeEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return trips, nil
		case <-again.C:
		}
		t, err := makeTrip(ctx, client)
		switch {
		case ctx.Err() != nil:
			return trips, nil
		case err != nil:
			return nil, err
		}
		trips = append(trips, t)
	}
}

func makeTrip(ctx context.Context, client *redis.Client) (trip, error) {
	start := time.Now()
	if err := client.Ping(ctx).Err(); err != nil {
		return trip{}, err
	}
	pinged := time.Now()
	if err := nothing.EvalSha(ctx, client, nil).Err(); err != nil {
		return trip{}, err
	}
	return trip{At: start.UnixNano(), Ping: pinged.Sub(start), Script: time.Since(pinged)}, nil
}
