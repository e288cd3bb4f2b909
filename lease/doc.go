// Package lease issues leases on resources, each with a fencing token, from Redis. It is the
// issuing half of fencedb: it says who may work now. The other half keeps a late holder from
// writing, where the data lives.
//
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second})
//	...
//	err = issuer.Do(ctx, "table:12", func(ctx context.Context, l *lease.Lease) error {
//		return book(ctx, l) // under ctx, which ends with the lease; with l.Token(), which the data store checks
//	})
//
// # Words
//
// A resource is what a lease is for, an id such as "table:12". A holder has the lease. A fencing
// token is a number that rises with every lease on a resource. The last token is the latest that
// Redis has issued. A holder whose token is not the last is stale. A [Semaphore] grants permits: up
// to N leases on one resource at once.
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
//	        revoked
//
// A lease has an id, new for each acquisition, and a token. Every operation after the acquisition
// names both, so a late request of an old lease cannot touch a newer one. Only an acquisition
// creates the lease key; a renewal never does.
//
// # Tokens
//
// The token is the greater of the last one plus one and Redis's clock in microseconds. The script
// that grants the lease issues it. So tokens rise while Redis remembers the last one, and still
// rise when it has forgotten: after FLUSHALL, eviction, a restart on an old snapshot, a fail-over
// to a replica that lagged. The clock is only a floor. If data and clock are both set back, old
// numbers can come again; the data store then refuses them, and Redis's counter has to be raised
// above the store's.
//
// # The trust window
//
// A holder may trust its lease
//
//	until  t + ttl - margin
//
// where t is this process's monotonic clock, read before the latest successful request was sent.
// The ttl in Redis starts after t, so it ends later. A slow answer does not stretch the window, and
// no two clocks are compared; the margin is room for clocks that run at different speeds.
// [Lease.Context] ends at that time even if Redis never answers again. The clock of Go stands still
// while a machine is suspended, so afterwards the holder trusts its lease for too long, by the time
// of the suspension, and only the fence stops it.
//
// # How a lease ends
//
// Each lease ends with one cause, which [context.Cause] of its context returns:
//
//   - [ErrReleased]: the holder released it;
//   - [ErrExpired]: it expired without a renewal;
//   - [ErrUnreachable]: it expired while Redis did not answer;
//   - [ErrLost]: Redis no longer has it, although its time was not over;
//   - [ErrRevoked]: an operator or a supervisor ended it.
//
// [IsLost] is true for all of them: somebody else may have the resource now, so the answer to a
// caller is "busy". If the work was done before its lease was found to be over, [Issuer.Do] returns
// [ErrWorkDone] instead.
//
// # Renewal
//
// An [Issuer] renews its leases together, each about every third of its TTL. Each renewal has a
// timeout and ends before the lease does; the defaults leave time for another attempt. No renewal
// begins after a release has begun, or after [Config.MaxHold], so a stuck holder does not hold for
// ever.
//
// # Waiting
//
// [Issuer.Acquire] waits in a queue in Redis, first come, first served. A release sends a message
// to the first waiter that listens. That waiter has the right of way for half a second, and asks.
// The message grants nothing, so a lease lasts its full TTL from the request that got it, and a
// late or repeated one does no harm. Goroutines of one process wait in one line, and only its front
// is in the queue. So Redis has one waiter per process, and a hand-over costs one release, one
// request of the waiter that is called and one of the next in line, however many wait.
//
// A lease is not reentrant. A call for a resource that the caller holds waits as others do, until
// its context ends; the context of [Issuer.Do] ends with the lease, after [Config.MaxHold] at the
// latest. So pass the lease to the code that runs under it.
//
// Messages may be lost, so a waiter also asks by itself: when the holder's lease must have expired,
// and at least every five seconds.
//
// A waiter whose process has died does not listen and is skipped. Skipping takes no time, or a
// quarter of a second if the waiter died just after asking. A process that was stopped or cut off
// can seem to listen: it costs the others at most 0.6 s in total, however many of its callers wait.
// Its waiters keep their places, without right of way, until they ask. A waiter that is more than
// one second late in asking loses its place. A process that is reconnecting keeps its place,
// although others may go first. If a process is more than half a second away from Redis, each of
// its waiters costs the others half a second once, and gets the resource if it is free when the
// request arrives.
//
// # Authority
//
// [Issuer.Revoke] ends the lease of a holder; [Issuer.TakeOver] does so on condition that nobody
// was faster. Both issue a new last token. Seal the result where the data lives, because the former
// holder learns of it only at its next renewal. [Issuer.Raise] repairs a counter that is lower than
// what the data store has seen; an acquisition with [Config.Seal] does so by itself.
//
// # When Redis does not answer
//
// A request without an answer may or may not have been carried out. It is sent again, a few times.
// That is safe: an acquisition carries its lease id and gets the same lease again, a renewal and a
// release name lease and token, and a withdrawal names the one call that asked. A request that is
// under way when its caller gives up is withdrawn at once, and once more when the client has ended
// it. A request that arrives even later, because its connection had broken, blocks the resource for
// one TTL, and nobody mistakes that lease for their own. If no answer comes, the caller gets
// [ErrUnreachable] and holds nothing; the lease expires in Redis after the TTL at the latest.
// Without Redis there are no leases: this package fails closed.
//
// All attempts of one acquisition together take one TTL at most, counted from the first request
// without an answer; those of a call that asks or repairs (Verify, Revoke, Raise, Inspect, Check)
// take five seconds. It does not matter whether Redis hangs, refuses connections, or loses replies.
//
// If Redis answers and refuses, nothing was changed. The error is [ErrRefused]; [RefusedError] says
// why, and which refusals are retried. [Issuer.Check] reports beforehand what would go wrong.
//
// # Data in the same Redis
//
// [Lease.Eval] runs a script in the Redis of the leases if the lease still holds, in one step: a
// late holder is refused there too, for as long as Redis keeps its data.
//
// # Where it runs
//
// On one Redis, on Sentinel and on Cluster, version 7 or later. All keys of a resource share a hash
// tag. A fail-over may forget a lease that no replica has; [Config.Replicas] makes that unlikely.
//
// docs/leases.md lists the rights that the client's user needs, for each deployment and each
// package. Without one of them the error is [ErrRefused], with the code NOPERM.
//
// # Contexts
//
// A context bounds only the call that it is given to: within 50 ms of its end the call returns,
// even if Redis or the network hangs and the client ignores contexts. A lease does not end with the
// context that it was acquired with. [Issuer.Do] ties both together for the work.
//
// The release of a lease, of a grant whose reply was lost and of a place in the queue goes on in
// the background. Each is tried on a context of its own until the TTL is over and the lease has
// expired in Redis, also through a restart, a fail-over or the move of a slot. [Issuer.Close] waits
// for all of that when a program shuts down, and releases what is held.
//
// # What a lease does not give you
//
// Exclusion of writes. A holder can be stopped at any point, by the garbage collector, the
// scheduler or a migrating virtual machine, for longer than its lease lasts. No code on its side
// can notice in time:
//
//	A has token 41, checks its lease, and is stopped.
//	The lease expires. B gets token 42, and writes.
//	A resumes and writes over it.
//
// Nothing in this package can prevent the last line, because the check and the write are two steps.
// The data store prevents it: in the transaction of the write, it refuses 41 once it has seen 42.
// For Postgres, package fencedb does that; a [*Lease] is a grant as it expects one. Without
// fencing, use leases where two holders at once cost money or time, not where they cost data.
package lease
