// Package outcome gives errors of both halves the words that metrics, logs and events use for them. Each function answers from
// a fixed set, whatever the error is, so that its words can be label values.
package outcome

import (
	"errors"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// word stands for the errors that are err.
type word struct {
	err  error
	name string
}

// words are asked in order: where an error is several, the first counts.
type words []word

func (all words) of(err error, otherwise string) string {
	for _, w := range all {
		if errors.Is(err, w.err) {
			return w.name
		}
	}
	return otherwise
}

// list names what of can answer.
func (all words) list(more ...string) []string {
	for _, w := range all {
		more = append(more, w.name)
	}
	return more
}

var (
	acquire = words{
		{lease.ErrHeld, "held"},
		{lease.ErrUnreachable, "unreachable"},
	}
	ends = words{
		{lease.ErrRevoked, "revoked"},
		{lease.ErrStale, "stale"},
		{lease.ErrUnreachable, "unreachable"},
		{lease.ErrExpired, "expired"},
	}
	release = words{
		{lease.ErrRevoked, "revoked"},
		{lease.ErrExpired, "expired"},
		{lease.ErrLost, "lost"},
		{lease.ErrUnreachable, "unreachable"},
	}
	extend = words{
		{lease.ErrRevoked, "revoked"},
		{lease.ErrUnreachable, "unreachable"},
		{lease.ErrExpired, "lost"},
		{lease.ErrLost, "lost"},
	}
	write = words{
		{fencedb.ErrCommitted, "committed"},
		{fencedb.ErrTxEnded, "tx_ended"},
		{fencedb.ErrStale, "stale"},
		{fencedb.ErrNoToken, "no_token"},
		{fencedb.ErrWrongResource, "wrong_resource"},
		{fencedb.ErrLeaseOver, "lease_over"},
		{fencedb.ErrTooLong, "too_long"},
		{fencedb.ErrUnsealed, "unsealed"},
		{fencedb.ErrBusy, "busy"},
		{fencedb.ErrCommitUnknown, "commit_unknown"},
		{fencedb.ErrInvalidGrant, "invalid_grant"},
	}
)

// All that the functions of the same names answer.
var (
	Acquires = acquire.list("granted", "error")
	Releases = release.list("released", "error")
	Extends  = []string{"extended", "lost", "revoked", "unreachable", "error"}
	Losses   = ends.list("lost")
	Heals    = []string{"healed", "failed"}
	Writes   = write.list("error")
)

// Acquire is the outcome of [lease.OpAcquire].
func Acquire(err error) string { return judge(err, "granted", acquire) }

// Release is the outcome of [lease.OpRelease].
func Release(err error) string { return judge(err, "released", release) }

// Extend is the outcome of [lease.OpExtend].
func Extend(err error) string { return judge(err, "extended", extend) }

// Write is the outcome of [fencedb.OpWrite]. A write whose result could not be read after it committed has committed.
func Write(err error) string { return judge(err, "committed", write) }

// Loss is the cause of [lease.OpHold]'s end. It is empty if the holder gave the lease back.
func Loss(cause error) string {
	if cause == nil || errors.Is(cause, lease.ErrReleased) {
		return ""
	}
	return ends.of(cause, "lost")
}

// Heal is the outcome of [lease.OpHeal].
func Heal(err error) string {
	if err == nil {
		return "healed"
	}
	return "failed"
}

func judge(err error, good string, bad words) string {
	if err == nil {
		return good
	}
	return bad.of(err, "error")
}

// Lease is the outcome of whatever an [lease.Op] is about.
func Lease(op lease.Op, err error) string {
	switch op {
	case lease.OpAcquire, lease.OpWait:
		return Acquire(err)
	case lease.OpHold:
		return Loss(err)
	case lease.OpExtend:
		return Extend(err)
	case lease.OpRelease:
		return Release(err)
	case lease.OpHeal:
		return Heal(err)
	}
	if err != nil {
		return "failed"
	}
	return "done"
}
