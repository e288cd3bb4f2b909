// Package lease issues leases on resources, each with a fencing token, from Redis. It is the issuing half of fencedb: it says
// who may work now. What keeps a holder that is too late from writing is the other half, where the data lives.
//
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
//	...
//	err = issuer.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
//		return book(ctx, l) // under ctx, which ends with the lease; with l.Token(), which the data store checks
//	})
//
// # Words
//
// A resource is what a lease is for, an id such as "table:12". A holder has the lease. A fencing token is a number that
// rises with every lease on a resource. The fence is the last token issued. A holder whose token is not the newest is stale.
//
// # States
//
//	         acquire                    renewal
//	free ───────────────▶ held(id, t) ──────────┐
//	 ▲                     │  ▲                 │
//	 │                     │  └─────────────────┘
//	 │      release,       │
//	 │      ttl over,      │      The next lease on the resource is held(id', t') with t' > t,
//	 └─────────────────────┘      however this one ended.
//	        revoked
//
// A lease is one word, its id, new for each acquisition, and one number, its token. Every operation after the acquisition
// names both, so a late request of an old lease cannot touch a newer one. Nothing but an acquisition makes the key of a
// lease; renewal never does.
//
// # Tokens
//
// The token is the greater of the last one plus one and Redis's clock in microseconds, given out by the same script that
// grants. So tokens rise for as long as Redis remembers the last one, and go on rising when it has forgotten: after
// FLUSHALL, eviction, a restart on an old snapshot, a fail-over to a replica that lagged. The clock is a floor and
// not a judge. If data and clock are both set back, old numbers can come again; the store of the data then refuses them, and
// Redis's counter has to be raised above the store's.
//
// # The trust window
//
// A holder may believe in its lease
//
//	until  t + ttl - margin
//
// where t is this process's monotonic clock, read before the latest successful request was sent. Redis started its own
// ttl later than t, so it ends later. A slow answer does not stretch the window, and no clock is ever compared with another;
// the margin is room for clocks that run at different speeds. [Lease.Context] ends at that time even if Redis never answers again.
//
// # How a lease ends
//
// One cause each, from [context.Cause] of the lease's context:
//
//   - [ErrReleased]: given back;
//   - [ErrExpired]: its time ran out without a renewal;
//   - [ErrUnreachable]: its time ran out while Redis did not answer;
//   - [ErrLost]: Redis does not have it any more, though its time was not over;
//   - [ErrRevoked]: someone in charge ended it.
//
// # Renewal
//
// One loop per [Issuer] renews all its leases, each about every third of its TTL. A renewal has to be answered within a
// time so short that another can follow before the lease ends. Renewal stops before a release is sent, and at the latest when
// [Config.MaxHold] is reached, so that a holder that is stuck does not hold for ever.
//
// # Waiting
//
// [Issuer.Acquire] waits in a queue in Redis, first come, first served. A release grants to the first in it that
// listens and tells it its token, so that a hand-over takes one round trip, shared by both sides. Goroutines of one
// process stand in a line of their own, and only its front stands in the queue: many waiters cost Redis one each
// process, and a hand-over costs one release, and one request of the next in line to stand in the queue, however many
// wait.
//
// A lease that was handed over is provisional: it lasts for a second, or its TTL if that is shorter. A renewal, sent
// beside the work, makes it full: after 50 milliseconds, or as soon as [Lease.ValidUntil] is called, which waits for
// the answer. So work that is done before costs no renewal, and a transaction that is bounded by the lease is bounded
// by all of it. Should the renewal find the lease gone, or find nobody, the lease ends as any other does.
//
// The news names the request that it is an answer to, the latest that was refused, and how long the lease lasts from
// the moment at which Redis answered that. So the trust window counts, as always, from before a request. News for
// another request is a reason to ask, and no more. News may be lost; so a waiter asks by itself when the holder's time
// is over, every five seconds at the latest.
//
// A waiter whose process died does not listen, and is passed over: it costs nobody anything, or a quarter of a second
// if it had only just asked. One that was stopped or cut off, with a connection that seems to stand, costs a second,
// and half a second where it is only called: the next who listens is told when to look. A process that falls silent
// loses its place after six seconds. One whose connection is being made anew keeps it, although others may go first.
//
// # Authority
//
// [Issuer.Revoke] ends a holder; [Issuer.TakeOver] does so on condition that nobody was faster. Both move the fence on, and
// the result is a grant to be sealed where the data lives, since the former holder learns of it only with its next renewal.
// [Issuer.Raise] and [Issuer.Heal] repair a counter that is behind the store of the data.
//
// # When Redis does not answer
//
// A request without an answer may have been carried out. So it is sent again, a few times, and all requests are made so
// that this does no harm: an acquisition carries its lease id and gets the same lease again, a renewal and a release
// name lease and token, and a withdrawal the one call that asked. A request to acquire that was never answered may
// arrive late, when its call is over: for a minute after that it does nothing. Should no answer come, the caller gets
// [ErrUnreachable] and holds nothing; Redis gives the resource free after the TTL at the latest. Without Redis there
// are no leases: this package fails closed.
//
// All attempts of one acquisition together take one TTL at most, counted from the first request without an answer;
// those of a call that asks or repairs (Verify, Revoke, Raise, Inspect, Check) five seconds. It does not matter whether
// Redis hangs, refuses connections, or loses replies.
//
// An answer that refuses changes nothing and has one error each: [ErrOutOfMemory], [ErrCannotSave], [ErrTooFewReplicas], [ErrDenied];
// [ErrReadOnly], [ErrLoading], [ErrClusterDown] and [ErrBusy] pass, as a rule, and are tried again: shortly by every
// call, for up to one TTL by an Acquire. [Issuer.Check] says beforehand what would go wrong.
//
// # Where it runs
//
// On one Redis, on Sentinel and on Cluster, version 7 or later. All keys of a resource share a hash tag. A fail-over may
// forget a lease that no replica has; [Config.Replicas] makes that unlikely. [NewQuorum] spans independent servers.
//
// The rights that the client's user needs are listed in docs/leases.md, for each deployment and for the packages beside
// this one. Who lacks one of them gets [ErrDenied].
//
// # Contexts
//
// A context bounds the call it is given to, and nothing beyond: within 50 ms of its end the call returns, even if Redis
// or the network hangs and the client does not mind contexts. A lease does not end with the context that it was
// acquired with. [Issuer.Do] ties both together for the work.
//
// What has to be given back is given back behind the call: a lease that is released, a grant whose reply was lost, a
// place in the queue. It is tried on a context of its own until the TTL is over, also through a restart, a fail-over or
// a slot on its way; then Redis has let it run out. [Issuer.Close] waits for all of that when a program shuts down, and
// releases what is held.
//
// # What a lease does not give you
//
// Exclusion of writes. A holder can be stopped at any point, by the garbage collector, the scheduler, a migrating virtual
// machine, longer than its lease lasts; nothing on its side can notice in time:
//
//	A has token 41, checks its lease, and is stopped.
//	The lease runs out. B gets token 42, and writes.
//	A goes on and writes over it.
//
// No care taken here prevents the last line, because the check and the write are two steps. The store of the data prevents it, by
// refusing 41 after it has seen 42, in the same transaction as the write. That is package fencedb for Postgres; a
// [*Lease] is a grant as that package expects it. Without it, use leases where two holders at once cost money or time, not
// where they cost data.
package lease
