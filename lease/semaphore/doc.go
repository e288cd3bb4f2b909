// Package semaphore lets so many hold a resource at once: a tenant may run three exports.
//
//	exports, err := semaphore.New(client, semaphore.Config{Limit: 3, Lease: lease.Config{TTL: 10 * time.Second}})
//	...
//	err = exports.Do(ctx, "tenant:7", func(ctx context.Context, l *lease.Lease) error {
//		return export(ctx) // under ctx, which ends with the place
//	})
//
// # Places
//
// A place is a lease, made by the same code: it has an id and a token, lasts for its TTL unless it is renewed, ends its context
// with a cause, and is given back. What package lease says about trust, renewal, lost replies and contexts holds for
// it word for word. Only the scripts differ:
//
//	limit 3     A(41)  B(42)  C(43)              D waits
//	            A(41)         C(43)  D(44)       B has left, or its time is over
//
// Holders are kept in a sorted set by the end of their time on Redis's clock. One that is over is dropped by the next script
// that counts, so a holder that dies blocks its place for one TTL and no longer. No client's clock is ever used.
//
// # Waiting
//
// First come, first served, in the queue of package lease: a holder that leaves calls the first waiter that listens; if
// there is room for more, that one calls the next. A waiter that was called and does not come costs half a second.
// Waiters of one process stand in a line there, so of several places that come free at once, one process takes one
// after the other.
//
// # The limit
//
// [Config.Limit] is what a program brings along; [Semaphore.SetLimit] changes it in Redis, for one resource and all programs.
// A lower limit ends nobody's work: the resource drains until there is room below it.
//
// # Ending a holder
//
// [Semaphore.Inspect] lists the holders, and [Semaphore.Revoke] ends one of them. It learns of that with its next renewal.
//
// # When Redis refuses
//
// [Semaphore.Inspect], [Semaphore.SetLimit], [Semaphore.ResetLimit] and [Semaphore.Revoke] fail with the errors of package lease, as the
// rest does: [lease.ErrUnreachable] without an answer; [lease.ErrCorrupt], [lease.ErrOutOfMemory], [lease.ErrCannotSave], [lease.ErrDenied]
// and its like with one, and then nothing was changed. What passes soon, such as [lease.ErrReadOnly] in a fail-over, is tried again
// shortly.
//
// # Rights
//
// Those that the client's user needs are listed in docs/leases.md. Who lacks one of them gets [lease.ErrDenied].
//
// # What it does not give you
//
// Fencing. The tokens rise, but an older one is not stale: several are current at once. So a place is no grant for a resource that all
// holders write to; fencedb would refuse the earlier of two rightful holders. Where what each holder writes is
// its own, take a lease on that, below the place:
//
//	err = exports.Do(ctx, "tenant:7", func(ctx context.Context, _ *lease.Lease) error {
//		return leases.Do(ctx, "export:9", func(ctx context.Context, l *lease.Lease) error {
//			return fencedb.Tx(ctx, pool, l, ...)
//		})
//	})
//
// A holder that is stopped for longer than its TTL works beside limit others when it wakes, until it looks at its context. And
// when Redis loses its data, it has forgotten the holders as well. So this package bounds load; it does not
// protect data.
package semaphore
