package lease

import (
	"context"
	"fmt"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Eval runs a Lua script in Redis if the lease still holds its resource there and no newer token
// was issued for it. The check and the script are one step, so a holder that was overtaken writes
// nothing:
//
//	A holds, reads an old value, and is stopped. Its lease expires. B holds, and writes with Eval.
//	A resumes and calls Eval: ErrLost, and B's value stays.
//
// Eval is for data in the Redis of the leases, such as a cache entry or a state. It protects only
// against writers that use Eval too, under leases on the same resource. The script finds keys and
// args in KEYS and ARGV. Its result is returned as go-redis returns it: nil, string, int64, []any.
// Pass values that vary in args, because Redis and this process keep each script. On a Cluster the
// keys must be in the slot of the lease, as a [Key] of the resource with another Kind is; otherwise
// the error is [ErrInvalid].
//
// What was written after an error:
//
//   - [ErrLost], [ErrRevoked], and the causes of [Lease.Context]: nothing. The lease is over.
//   - [ErrStale]: nothing. The lease stands, but a newer token was issued, or the last token was
//     raised.
//   - [ErrInvalid]: nothing. The lease is a permit of a [Semaphore], which does not exclude others,
//     or go-redis cannot write an argument.
//   - [ErrUnreachable]: unknown. Eval does not send the request again. The request may still
//     arrive; then it does nothing if the lease is over.
//   - [ErrRefused]: nothing, unless NOPERM is about a command of the script. Then, and after any
//     other error: what the script had written before it failed. Redis does not roll a script back.
//
// ctx and a limit of five seconds bound the call.
//
// Eval does not promise that Redis keeps what was written: the data are lost together with the
// lease. After a fail-over to a replica that lagged, or a start from an old snapshot, the write of
// B may be gone, and A may hold again for the rest of its TTL. Put data that must survive behind a
// fence in Postgres.
func (l *Lease) Eval(ctx context.Context, script string, keys []string, args ...any) (any, error) {
	if err := l.granted(); err != nil {
		return nil, err
	}
	if l.IsPermit() {
		return nil, protocol.Invalid("this is a permit of a semaphore, whose holders do not exclude each other; take a lease on what is written")
	}
	args, err := protocol.Values(args)
	if err == nil {
		err = l.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("lease: write under %q: %w", l.resource, err)
	}
	ctx, cancel := protocol.Within(ctx, protocol.Patience)
	defer cancel()
	value, result, err := l.core.store.eval(ctx, l.term, script, keys, args)
	if err == nil && result != done {
		err = l.lose(result)
	}
	if err != nil {
		return nil, fmt.Errorf("lease: write under %q: %w", l.resource, err)
	}
	return value, nil
}

// lose ends the lease because of an answer of Redis.
func (l *Lease) lose(result outcome) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.check(time.Now()) == nil {
		l.end(result.loss())
	}
	return result.loss()
}
