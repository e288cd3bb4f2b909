// Package lease issues leases on resources from Redis, each with a fencing token. It is the issuing
// half of fencedb: it decides who may work now. The other half, where the data lives, refuses the
// writes of a stale holder.
//
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
//	...
//	err = issuer.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
//		return book(ctx, l) // under ctx, which ends with the lease; with l.Token(), which the data store checks
//	})
//
// # Words
//
// A resource is what a lease is for: an id such as "table:12". A holder has the lease. A fencing
// token is a number that rises with every lease on a resource. The last token is the highest that
// Redis has issued for it. A holder whose token is not the last is stale. A [Semaphore] grants
// permits: up to N leases on one resource at once.
//
// # States
//
//	         acquire                    renewal
//	free ───────────────▶ held(id, t) ──────────┐
//	 ▲                     │  ▲                 │
//	 │                     │  └─────────────────┘
//	 │      release,       │
//	 │      expiry,        │      The next lease on the resource is held(id', t') with t' > t,
//	 └─────────────────────┘      however this one ended.
//	       revocation
//
// A lease has an id, new for each acquisition, and a token. Every operation after the acquisition
// names both, so a late request of an old lease cannot touch a newer one. Only an acquisition
// creates the owner key in Redis; a renewal never does.
//
// # Tokens
//
// The script that grants a lease issues its token: the last token plus one, or Redis's clock in
// microseconds if that is greater. So tokens rise while Redis remembers the last one, and still
// rise when it has forgotten it: after FLUSHALL, eviction, a restart on an old snapshot, or a
// fail-over to a replica that lagged. A token that is too low is granted in two cases only: Redis's
// data and its clock are both set back, or a server that was replaced comes back with a grant whose
// answer was lost. The data store refuses such tokens, until the last token is raised to what it
// has seen.
//
// # The trust window
//
// A holder may trust its lease
//
//	until  t + ttl - margin
//
// where t is the time on this process's monotonic clock just before the latest successful
// acquisition or renewal was sent. The ttl in Redis starts after t, so the lease ends in Redis
// after the window does. A slow answer does not stretch the window, and no two clocks are compared;
// the margin allows for clocks that run at different speeds. [Lease.Context] ends with the window,
// even if Redis never answers again. Go's monotonic clock stands still while a machine is
// suspended. Then the window is too long by that time, and only the fence stops the holder.
//
// # How a lease ends
//
// Each lease ends with one cause, which [context.Cause] of its context returns:
//
//   - [ErrReleased]: the holder or [Issuer.Close] released it;
//   - [ErrExpired]: it expired without a renewal;
//   - [ErrUnreachable]: it expired while Redis did not answer;
//   - [ErrLost]: Redis no longer has it, although its time was not over;
//   - [ErrRevoked]: an operator or a supervisor ended it.
//
// [IsLost] is true for all of them: another holder may have the resource now, so a service answers
// its caller "busy". If the work was done before its lease was found to be over, [Issuer.Do]
// returns [ErrWorkDone] instead.
//
// # Renewal
//
// An [Issuer] renews its leases together, by default each about every third of its TTL. A renewal
// has a timeout and ends before the lease does; the defaults leave time for another attempt. No
// renewal begins after a release has begun. No lease is renewed beyond [Config.MaxHold], so a stuck
// holder does not hold for ever.
//
// # Waiting
//
// [Issuer.Acquire] waits in a queue in Redis: first come, first served. A release sends a message
// to the first waiter that listens. This waiter has the right of way for half a second, and asks
// for the lease. The message itself grants nothing. So a lease lasts its full TTL from the request
// that got it, and a late or repeated message does no harm.
//
// The goroutines of a process that wait for a resource stand in one line, and only the front of the
// line is in the queue. So Redis has one waiter per process and resource. However many wait, a
// hand-over costs three requests: the release, that of the waiter that is called, and that of the
// next in line.
//
// A lease is not reentrant. A call for a resource that the caller itself holds waits like any
// other, until its context ends; the context of [Issuer.Do] ends with the lease, after
// [Config.MaxHold] at the latest. So pass the lease to the code that runs under it.
//
// Messages may be lost, so a waiter also asks by itself: when the holder's lease must have expired,
// and at least every five seconds.
//
// A waiter that fails does not block the others:
//
//   - A process that has died does not listen, and its waiters are skipped. That takes no time, or
//     a quarter of a second for a waiter that had asked just before.
//   - A process that was stopped or cut off can seem to listen. It delays the others by at most
//     0.6 s in total, however many of its callers wait. Its waiters keep their places, without
//     right of way, until they ask.
//   - A process that is reconnecting keeps its place, although others may go first.
//   - A process that is more than half a second away from Redis delays the others by half a second,
//     once for each of its waiters. Its waiter gets the lease if the resource is free when the
//     request arrives.
//   - A waiter that is more than one second late in asking loses its place.
//
// # Authority
//
// [Issuer.Revoke] ends the lease of a holder; [Issuer.TakeOver] does so only if no newer token was
// issued meanwhile. Both issue a new last token. Seal it where the data lives, because the former
// holder learns of the revocation only at its next renewal. [Issuer.Raise] raises a last token that
// is lower than what the data store has seen; an acquisition with [Config.Seal] does so by itself.
//
// # When Redis does not answer
//
// A request without an answer may or may not have been carried out. It is sent again, a few times.
// That is safe: an acquisition carries its lease id and gets the same lease again, a renewal and a
// release name lease and token, and a withdrawal names the one call that asked. If no answer comes,
// the caller gets [ErrUnreachable] and holds nothing; a lease that it may have got expires in Redis
// after the TTL at the latest. Without Redis there are no leases: this package fails closed.
//
// If a caller gives up while its request is under way, the acquisition is withdrawn at once, and
// once more when the client has ended the request. A request can arrive even later, because its
// connection had broken. It then blocks the resource for one TTL, under a lease id that nobody
// uses.
//
// All attempts of one acquisition together take one TTL at most, counted from the first request
// without an answer; those of Verify, Revoke, TakeOver, Raise, Inspect and Check take five seconds
// at most. It does not matter whether Redis hangs, refuses connections, or loses replies.
//
// If Redis answers and refuses, nothing was changed. The error is [ErrRefused]; [RefusedError] has
// the reason, and lists the refusals that are retried. [Issuer.Check] finds out beforehand what
// would go wrong.
//
// # Data in the same Redis
//
// [Lease.Eval] checks that the lease still holds and runs a script, in one step, in the Redis of
// the leases. So a stale holder is refused there too, for as long as Redis keeps its data.
//
// # Where it runs
//
// On one Redis, on Sentinel and on Cluster, version 7 or later. All keys of a resource share a hash
// tag. A fail-over loses a lease that the new primary did not have yet; [Config.Replicas] makes
// that unlikely.
//
// docs/leases.md lists the rights that the client's user needs, for each deployment and each
// package. Without one of them the error is [ErrRefused], with the code NOPERM.
//
// # Contexts
//
// A context bounds only the call that it is given to: the call returns within 50 ms of the end of
// its context, even if Redis or the network hangs and the client ignores contexts. A lease does not
// end with the context that it was acquired with. [Issuer.Do] ends the work with either.
//
// Releases, and withdrawals of a lost grant or of a place in the queue, go on in the background.
// Each is tried, under a context of its own, until the TTL is over and the lease has expired in
// Redis: through a restart, a fail-over or the move of a slot. [Issuer.Close], for a program that
// shuts down, waits for them and releases all leases.
//
// # What a lease does not give you
//
// Exclusion of writes. A holder can be stopped at any point, by the garbage collector, the
// scheduler or a migrating virtual machine, for longer than its lease lasts. No code of the holder
// can notice that in time:
//
//	A has token 41, checks its lease, and is stopped.
//	The lease expires. B gets token 42, and writes.
//	A resumes and overwrites what B wrote.
//
// Nothing in this package can prevent the last line, because the check and the write are two steps.
// The data store prevents it: in the transaction of the write, it refuses 41 once it has seen 42.
// For Postgres, package fencedb does that; it takes a [*Lease] as a grant. Without fencing, use
// leases where two holders at once cost money or time, not where they cost data.
package lease
