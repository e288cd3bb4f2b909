package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

var errThereAreSome = errors.New("there are events")

// published reports whether there is an event in the stream, or that it cannot be told.
func published(ctx context.Context, client redis.UniversalClient, stream feed.Option) (bool, error) {
	err := feed.Replay(ctx, client, "0", func(feed.Event) error { return errThereAreSome }, stream)
	if errors.Is(err, errThereAreSome) {
		return true, nil
	}
	return false, err
}

// announce lets those who watch see what the operator does, where programs publish already. done waits until it is published.
func (o *operation) announce(ctx context.Context, operator string) (done func(), err error) {
	stream := feed.Namespace(o.names.namespace)
	if some, err := published(ctx, o.client, stream); err != nil || !some {
		return func() {}, nil // not what was asked for
	}
	options := []feed.Option{stream, feed.Worker(operator)}
	if o.names.hashed {
		options = append(options, feed.HashResources())
	}
	events := feed.New(o.client, options...)
	done = func() { _ = events.Close(ctx) }
	o.issuer, err = issuer(o.client, o.names, lease.Tracer(events))
	return done, err
}
