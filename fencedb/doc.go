// Package fencedb lets only the current holder of a lease write to Postgres.
//
// A lock service cannot stop a program that held a lock, was paused, and writes late. Only the
// database can, so this package checks there:
//
//	A gets the lease on table:12 with fencing token 41, then pauses.
//	The lease expires. B gets it with token 42, reads, writes, tells its guest "booked".
//	A resumes and writes with 41. Postgres has seen 42 and refuses. A has written nothing.
//
// # Use
//
// Wrap the writes to a resource in [Tx], with the lease as the grant:
//
//	err := fencedb.Tx(ctx, pool, lease, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `INSERT INTO bookings (table_id, guest) VALUES ($1, $2)`, 12, "ann")
//		return err
//	})
//	if errors.Is(err, fencedb.ErrStale) {
//		// Another holder has come since. Nothing was written.
//	}
//
// The database needs the schema of package migrations. A table that no client may write to without
// a token is protected once, in the application's own migration:
//
//	SELECT fencedb.protect('bookings', resource => 'table:{table_id}');
//
// In Go, [Template] makes a lease's resource from the same columns.
//
// Package guard acquires a lease, seals it and calls these functions under it; most programs need
// no more than that.
//
// Exec, [Query], [QueryRow] and [SendBatch] run statements in one round trip, between which the
// program decides nothing. [TxSQL] is Tx for database/sql. Enter enters in an open transaction of
// pgx, [EnterSQL] in one of database/sql; the [Entry] that they return finds out whether the
// transaction committed. Seal makes older tokens stale without writing anything else; [AwaitReplay]
// waits until a standby has the seal.
//
// # What the fence is
//
// For each resource, the table fencedb.fences keeps the highest token that has entered, and its
// lease. Every fenced transaction enters first, as a statement of its own:
//
//   - A lower token, or the same token under another lease, is refused at once and locks nothing.
//   - The stored token under the same lease locks the fence shared: transactions of one lease run
//     side by side.
//   - A higher token is stored and locks the fence exclusively: it waits for the open transactions
//     of the old holder.
//
// The lock lasts until the transaction ends. So the following holds for each resource, whatever
// happens to Redis, the network, clocks or holders:
//
//   - S1: The tokens of committed transactions never go down, and equal tokens come from one lease.
//   - S2: Once a transaction has committed with a token, none with a lower token commits.
//   - S3: Until a transaction commits, no other holder changes what it read. (If it entered only at
//     its write, B could read, A write with 41, and B overwrite that with 42.) This holds at every
//     isolation level; above READ COMMITTED the token is sealed before the transaction begins, so
//     that its snapshot is younger than the fence.
//   - S4: On a protected table, every written row needs the token of its own resource, from every
//     client.
//   - S5: The fence outlives the rows: after a newer holder has deleted a row, an older one cannot
//     insert it again.
//
// # Time
//
// A transaction lasts no longer than the remaining validity of its grant when it began
// (ValidUntil). Then the server ends it, with [ErrTooLong], or with [ErrLeaseOver] if the lease is
// over. So a paused holder delays the next one by the remaining validity of its lease at most (S7).
// A holder that renews its lease and needs longer uses [Timeout].
//
// The server does this with time limits on each statement, on waiting for the client and, from
// Postgres 17, on the whole transaction. The limits apply to this transaction only, are never
// looser than those set before, and are up to 1/256 shorter than the remaining validity. On every
// version, nothing limits how long the server waits for the rows of a COPY, or for its client to
// read a result. If the client has vanished, TCP keepalives end such a wait; the command fencedb
// doctor checks them.
//
// Postgres 15 and 16 cannot limit a transaction as a whole. There, each write to a protected table
// tightens the limits. A transaction that only reads may be idle for the validity that it had when
// it entered. Nothing limits what deferred triggers do at COMMIT, nor how long the server waits for
// the rest of a batch.
//
// No call outlasts its context, or the validity of its grant, by more than five seconds, in which
// it looks up the outcome of a lost COMMIT. After 2.5 s without an answer, the connection is closed
// and counts as lost, because a network can drop it in silence. Under a grant that ends at [NoEnd],
// only contexts bound a call; a grant that does not say when it ends is refused.
//
// # Outcomes
//
// A nil error means committed. So does [ErrCommitted]: a result could not be read afterwards, or
// QueryRow got no row. [ErrTxEnded] means that a statement of the caller ended the transaction;
// [TxEndedError] has what was written. [ErrCommitUnknown] leaves the outcome open, for one of two
// reasons:
//
//   - The connection was lost during COMMIT, and the outcome could not be looked up: the server did
//     not answer in time, or has crashed or failed over since.
//   - COMMIT waited for a standby (synchronous_commit) that has not answered. A fail-over may lose
//     the commit, although everybody can see it now.
//
// Every other error means that nothing was written (S6). lease.IsLost is true for errors that mean
// "busy, try again": another holder has the resource.
//
// The look-up waits for standbys as synchronous_commit of the session demands; a SET LOCAL of the
// transaction does not count. Only pgx shows that another session has cancelled the wait of a
// COMMIT (pg_cancel_backend).
//
// # What it does not give you
//
// A grant goes stale when a newer token enters, not when its lease is released or expires: until
// then a late write harms nobody. If the process itself knows that its lease has ended, the grant
// is refused earlier, with ErrLeaseOver. A transaction that was prepared with PREPARE TRANSACTION
// keeps its fence until it is finished; no time limit of the server ends it.
//
// Writes to tables that are not protected are fenced only inside these functions. Effects outside
// Postgres (mail, payments, other databases) are not fenced; write the intent behind the fence and
// act on it idempotently. Superusers and table owners can switch triggers off. A condition on
// fencedb.fences in a statement of your own does not fence: after a wait for a lock, Postgres
// evaluates it against the old snapshot.
package fencedb
