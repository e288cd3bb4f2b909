// Package fencedb lets only the current holder of a lease write to Postgres.
//
// A lock service can tell a program that it holds a lock. It cannot stop a program that held one,
// was paused, and writes late. Only the place where the data lives can, so that is where this
// package checks:
//
//	A gets the lease on table:12 with fencing token 41, then pauses.
//	The lease expires. B gets it with token 42, reads, writes, tells its guest "booked".
//	A wakes and writes with 41. Postgres has seen 42 and refuses. Nothing of A's transaction lands.
//
// # Use
//
// Wrap the writes to a resource in Tx, with the lease as the grant:
//
//	err := fencedb.Tx(ctx, pool, lease, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`, 12, "ann")
//		return err
//	})
//	if errors.Is(err, fencedb.ErrStale) {
//		// Another holder has come since. Nothing was written.
//	}
//
// The database needs the schema of package migrations. Tables that must never be written to without
// a token, by any client, are protected once, in the application's own migration:
//
//	SELECT fencedb.protect('bookings', resource => 'table:{table_id}');
//
// In Go, Template makes the resource from those columns, for the lease.
//
// Package guard acquires a lease, seals it and calls these functions under it; most programs need
// no more than that.
//
// Exec, Query, QueryRow and SendBatch run statements without a decision in between, in one round
// trip. TxSQL is Tx for database/sql. Enter joins a transaction that is already open, EnterSQL one
// of database/sql; the Entry that they return finds out what became of it. Seal makes older tokens
// stale without writing anything else; AwaitReplay waits until a standby has the seal.
//
// # What the fence is
//
// For each resource the table fencedb.fences keeps the highest token that has entered, and the
// lease that carried it. Every fenced transaction enters first, as a statement of its own:
//
//   - A lower token, or the same token under another lease, is refused at once and locks nothing.
//   - The stored token under the same lease locks the fence shared: transactions of one lease run
//     side by side.
//   - A higher token is stored and locks the fence exclusively: it waits for the open transactions
//     of the old holder.
//
// The lock lasts until the transaction ends. That gives, for each resource and whatever happens to
// Redis, to the network, to clocks or to holders:
//
//   - S1: Committed transactions carry tokens that never go down, and equal tokens come from one
//     lease.
//   - S2: Once a transaction has committed with a token, none with a lower token commits.
//   - S3: Until a transaction commits, no other holder changes what it read. Entering at the write
//     instead of first would let B read, A write with 41, and B write over it with 42. This holds
//     at every isolation level; above READ COMMITTED the token is sealed before the transaction
//     begins, so that its snapshot is younger than the fence.
//   - S4: On a protected table every written row needs the token of that row's own resource, from
//     every client.
//   - S5: The fence outlives the rows: what a newer holder deleted, an older one cannot insert
//     again.
//
// # Time
//
// A transaction lasts no longer than the validity that its grant had when it began (ValidUntil).
// Then the server ends it, with ErrTooLong, or with ErrLeaseOver if the lease is over. So a paused
// holder delays the next one at most by its lease's remaining validity (S7). A holder that renews
// and needs longer uses Hold.
//
// The server does so by time limits on each statement and on waiting for the client, and, from
// Postgres 17, on the whole transaction. They apply to this transaction only, are never looser than
// the limits set before, and are up to 1/256 shorter than the remaining validity. Postgres 15 and
// 16 cannot limit a transaction as a whole. There, each write to a protected table tightens the
// limits, and a transaction that only reads may be idle for the validity that it had when it
// entered; nothing limits what deferred triggers do at COMMIT, nor how long the server waits for
// the rest of a batch. On every version nothing limits how long the server waits for the rows of a
// COPY, or for its client to read a result. If the client has vanished, TCP keepalives end such a
// wait; the command fencedb doctor checks them.
//
// No call outlasts its context, or the validity of its grant, by more than five seconds, the time
// for looking up the outcome of a lost COMMIT. After half of that without an answer, the connection
// is closed and counts as lost, because a network can drop it in silence. A grant that ends at
// NoEnd is bounded by contexts alone; one that does not say when it ends is refused.
//
// # Outcomes
//
// A nil error means committed. So does ErrCommitted: a result could not be read afterwards, or
// QueryRow got no row. ErrCommitUnknown means one of two things. Either the connection was lost
// during COMMIT and the outcome could not be looked up, because the server did not answer in time
// or has crashed or failed over since; or COMMIT waited for a standby (synchronous_commit) that has
// not answered, so that a fail-over may lose what everybody can see. The look-up waits for standbys
// as synchronous_commit of the session says, whatever a SET LOCAL of the transaction said. With
// drivers other than pgx nobody notices if another session cancels the wait of a COMMIT
// (pg_cancel_backend). ErrTxEnded means that a statement of the caller has ended the transaction,
// and says what was written. Every other error means that nothing was written (S6). lease.IsLost is
// true for the errors that mean "busy, try again": somebody else has the resource.
//
// # What it does not give you
//
// A grant goes stale when a newer token enters, not when its lease is released or expires: until
// then a late write can hurt nobody. A grant whose own process already knows that it has ended is
// refused earlier, with ErrLeaseOver. A transaction that was prepared with PREPARE TRANSACTION
// keeps its fence until it is finished; no time limit of the server ends it.
//
// Writes to tables that are not protected are fenced only inside these functions. Effects outside
// Postgres (mail, payments, other databases) are not fenced at all; write the intent behind the
// fence and act on it idempotently. Superusers and table owners can switch triggers off. A
// predicate on the table fencedb.fences inside a statement of your own does not fence: after
// waiting for a lock Postgres checks it against the old snapshot.
package fencedb
