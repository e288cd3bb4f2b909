package slog

import (
	"log/slog"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// line is what is logged of an outcome.
type line struct {
	level   slog.Level
	message string
}

func debug(message string) line { return line{slog.LevelDebug, message} }
func info(message string) line  { return line{slog.LevelInfo, message} }
func warn(message string) line  { return line{slog.LevelWarn, message} }
func bad(message string) line   { return line{slog.LevelError, message} }

var waiting = debug("waiting for a lease")

// leaseLines are those of ends, by outcome. What is not here is told by another.
var leaseLines = map[lease.Op]map[string]line{
	lease.OpAcquire: {
		"granted":     debug("lease granted"),
		"held":        debug("lease held by another"),
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
		"unreachable": warn("lease not extended"),
		"error":       warn("lease not extended"),
	},
	lease.OpRelease: {
		"released":    debug("lease released"),
		"unreachable": warn("lease not released"), // it runs out
		"error":       warn("lease not released"),
		"lost":        warn("lease not released"), // the holder believed in it to the end
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

var entered = debug("fence entered")

// writeLines are those of writes, by outcome. Openings that fail are the same to who looks.
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
	"error":          debug("write failed"), // the caller's own, and who gets it knows what it is worth
}

func writeLine(op fencedb.Op, result string) (line, bool) {
	switch {
	case op == fencedb.OpCommit: // told by its write
		return line{}, false
	case op == fencedb.OpEnter && result == "committed":
		return entered, true
	}
	l, ok := writeLines[result]
	return l, ok
}
