package slog

import (
	"log/slog"

	"github.com/fencedb/fencedb/lease"
)

// line is the level and message of an outcome.
type line struct {
	level   slog.Level
	message string
}

func debug(message string) line { return line{slog.LevelDebug, message} }
func info(message string) line  { return line{slog.LevelInfo, message} }
func warn(message string) line  { return line{slog.LevelWarn, message} }
func bad(message string) line   { return line{slog.LevelError, message} }

var waiting = debug("waiting for a lease")

// leaseLines are the lines of lease operations, by outcome. An outcome without a line is logged by
// another operation.
var leaseLines = map[lease.Op]map[string]line{
	lease.OpAcquire: {
		"granted":     debug("lease granted"),
		"held":        debug("lease held by another"),
		"cancelled":   debug("lease not acquired"),
		"unreachable": warn("lease not acquired"),
		"error":       warn("lease not acquired"),
	},
	lease.OpHold: {
		"expired":     warn("lease lost"),
		"unreachable": warn("lease lost"),
		"lost":        warn("lease lost"),
		"revoked":     info("lease lost"),
		"stale":       info("lease lost"), // and healed
	},
	lease.OpExtend: {
		"extended":    debug("lease extended"),
		"cancelled":   debug("lease not extended"),
		"unreachable": warn("lease not extended"),
		"error":       warn("lease not extended"),
	},
	lease.OpRelease: {
		"released":    debug("lease released"),
		"unreachable": warn("lease not released"), // it will expire
		"error":       warn("lease not released"),
		"lost":        warn("lease not released"), // the holder did not know
		"expired":     debug("lease not released"),
		"revoked":     debug("lease not released"),
	},
	lease.OpRevoke: {
		"done":   info("lease revoked"),
		"failed": warn("lease not revoked"),
	},
	lease.OpRaise: {
		"done":   info("fence raised"),
		"failed": warn("fence not raised"),
	},
	lease.OpHeal: {
		"healed": info("lease healed"),
		"failed": warn("lease not healed"),
	},
}

// entered is the line of a transaction that was only entered: whether it commits is not known.
var entered = debug("fence entered")

// writeLines are the lines of writes, by outcome. A failed opening is logged like a failed write.
var writeLines = map[string]line{
	"committed":      debug("write committed"),
	"stale":          warn("write refused"),
	"lease_over":     warn("write failed"),
	"too_long":       warn("write failed"),
	"tx_ended":       bad("write failed"),
	"unsealed":       warn("write failed"),
	"busy":           warn("write failed"),
	"no_token":       bad("write failed"),
	"wrong_resource": bad("write failed"),
	"invalid_grant":  bad("write failed"),
	"commit_unknown": bad("write failed"),
	"error":          debug("write failed"), // the caller's own error, which the caller handles
}
