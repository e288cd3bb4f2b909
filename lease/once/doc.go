// Package once runs a piece of work one time for each key and replays its result to everybody else who asks: idempotency keys
// for requests, one rebuild for a thousand readers of a cache.
//
//	keys, err := once.New(client, once.Config{})
//	...
//	answer, replayed, err := keys.Do(ctx, idempotencyKey, requestBody, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
//		return charge(ctx, claim) // under ctx, which ends with the claim
//	})
//
// # States
//
//	            Do                       fn returns a result
//	absent ─────────────▶ in flight ─────────────────────────▶ done(result)
//	   ▲                   │     │                                  │
//	   │   error, panic,   │     └──▶ in flight again, with a       │
//	   └───────────────────┤          higher token, if somebody     │
//	   │   runner dead:    │          waits                         │
//	   │   claim runs out  │                                        │
//	   └───────────────────┴──────────── Config.Done is over ───────┘
//
// A key is in flight while a lease on it is held: package lease grants it, renews it, and ends the context of the work when it is
// lost. The lease is what this package calls the claim. It is for the resource "once:<key>", carries a fencing token,
// and can be inspected and revoked like every lease. A result is recorded by a script that compares the claim, so:
//
//	A claims the key with token 41, and is stopped.
//	The claim runs out. B claims it with token 42, runs, records its result.
//	A goes on and comes with its own result. It is refused, with ErrNotRecorded.
//
// # Who waits
//
// A caller who finds the key in flight waits, within its context, for the run to end, and then gets the result. If that run failed or
// died, the caller is the retry: it runs its own fn. With [NoWait] it gets [ErrInFlight] at once instead, which tells when to
// ask again. Callers of one process who wait for one key share one request to Redis.
//
// # The same key, another request
//
// The request is what the key stands for; only its SHA-256 is kept. A key that is done refuses another request with [ErrKeyReused];
// nil compares with everything. While the key is in flight nobody is refused yet: should that run fail, the other request may run.
//
// # Failures
//
//   - fn returns an error or panics: nothing is recorded, the claim is given back, the next caller runs.
//   - The runner dies: its claim runs out after [Config.InFlight], and one of those who wait runs.
//   - The runner is cut off from Redis, or is stopped, for longer than that: its context ends, and its result is refused.
//   - The reply to a request is lost: it is sent again; a result that was recorded already counts as recorded.
//   - Redis does not answer, or refuses: nobody runs. The error is [lease.ErrUnreachable] or that of the refusal, such as
//     [lease.ErrOutOfMemory], [lease.ErrCannotSave] or [lease.ErrDenied]; those that pass soon are tried again first. If that
//     happens to the recording, the error is [ErrNotRecorded] as well.
//   - The caller's context ends: the call returns within 50 ms. A result that fn had returned is recorded behind it.
//
// # Rights
//
// Those that the client's user needs are listed in docs/leases.md. Who lacks one of them gets [lease.ErrDenied].
//
// # What it does not give you
//
// "Exactly once". Redis may forget a result (eviction, a fail-over, [Config.Done]), and a run that was given up for dead may still
// have its effect. So use this package alone where a second run costs work and nothing else: caches, reports, webhooks whose
// receiver is idempotent. Where the effect is in Postgres and must not happen twice, fencedb.Once keeps the key
// in the transaction of the effect; it is the truth, and this package in front of it the fast path that spares
// Postgres the duplicates:
//
//	answer, _, err := keys.Do(ctx, key, body, func(ctx context.Context, claim *lease.Lease) (answer []byte, err error) {
//		err = fencedb.Tx(ctx, pool, claim, func(tx pgx.Tx) error {
//			answer, _, err = fencedb.Once(ctx, tx, key, body, func() ([]byte, error) { return charge(ctx, tx) })
//			return err
//		})
//		return answer, err
//	})
//
// The claim is the grant of that transaction: once the run that replaced it has entered one, an older run cannot commit.
package once
