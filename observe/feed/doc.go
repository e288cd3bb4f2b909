// Package feed publishes what becomes of leases and fenced writes as events in a Redis stream, which the command's watch, a
// live page or your own program follows.
//
//	events := feed.New(client, feed.Worker("kitchen-2"))
//	defer events.Close(ctx)
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{events}})
//	db := fencedb.Traced(pool, events)
//	...
//	err = feed.Follow(ctx, client, "$", func(e feed.Event) error { ... })
//
// # What it is for
//
// Watching. Work is never held up by it: an event goes into a bounded buffer, and a goroutine publishes what has gathered in
// one round trip. What does not fit, because Redis is slow or away, is dropped and counted ([Feed.Dropped]); so is what Redis
// refused. An event whose acknowledgement was lost may be there although it was counted, and twice if the client tries again.
// Do not build on the feed what must not miss anything: the truth is in the ledger of fences, and the counts are those of
// observe/prom.
//
// # The stream
//
// The key is fencedb:v1:events, or fencedb:v1:NAMESPACE:events with [Namespace]. Each entry has one field, "event", with an
// [Event] in JSON. Redis keeps about the last 10000, some 2 MB. The clock of an event is Redis's, read when it was published,
// and the order is that of publication: events of one process are in order of their happening, and those of two may change
// places within the milliseconds that publishing takes. It needs the commands XADD to publish, XREAD and XREVRANGE to follow,
// XRANGE to replay.
//
// A lease that was given back before its caller got it, because it could not be sealed or another of several was taken, is released
// without having been granted. One that is healed is lost (stale) under its old token and healed under its new one.
//
// Resources are published as they are called, so that a human finds them again; [HashResources] if they are personal data.
// Only leases are published, not what else package lease/semaphore and its like make of them: their resources are others of
// the same names.
package feed
