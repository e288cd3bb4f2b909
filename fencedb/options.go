package fencedb

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// Option changes how one transaction is run.
type Option func(*config)

type config struct {
	txOptions pgx.TxOptions
	hold      time.Duration // > 0: replaces what remains of the lease
	tracers   []Tracer
}

// TxOptions sets the isolation level and what else pgx can say in BEGIN. Defaults to READ COMMITTED, which is enough: the
// fence keeps every other holder out, and statements see what the last one committed. At REPEATABLE READ and SERIALIZABLE
// the fence has to be older than the snapshot (S3), so the first transaction under a grant that was not sealed is preceded by a
// Seal, which costs two more round trips. One that meets a newer holder fails with ErrStale; one that Postgres could not serialize,
// with SQLSTATE 40001, may be tried again.
func TxOptions(o pgx.TxOptions) Option {
	return func(c *config) { c.txOptions = o }
}

// Hold lets the transaction run for d, instead of for what remains of the lease when it begins. It is for a
// holder that keeps renewing its lease while it writes. A holder that takes over waits that long for the fence, even if
// the lease is lost meanwhile, so keep it within the lease's maximum hold time. The lease must still be
// valid when the transaction begins. Ignored unless positive.
func Hold(d time.Duration) Option {
	return func(c *config) { c.hold = d }
}
