// Package slog logs leases and fenced writes with log/slog. It is usually imported under another
// name:
//
//	import fencelog "github.com/fencedb/fencedb/observe/slog"
//
//	logs := fencelog.New(slog.Default(), fencelog.Config{})
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{logs}})
//	db := fencedb.With(pool, fencedb.Trace(logs))
//
// # Levels
//
// Debug: what is normal under contention, such as grants, waiting, busy resources, renewals,
// commits, and errors that the caller's own function returned. Info: decisions, such as revocations
// and raised tokens. Warn: a lost lease, a refused write, a server that does not answer. Error: a
// mistake in a program, or a commit whose outcome is unknown. docs/observing.md lists all messages.
//
// # What is not logged
//
// The names of resources, because they may be personal data. The attribute "resource" is the type,
// as in metrics, and the first 12 hexadecimal digits of the SHA-256 of the name, as in
// "table:38ab6cd93feb". This command prints the digits to search for:
//
//	printf table:12 | sha256sum
//
// The texts of errors are not logged either, because they name resources. The attribute "cause" is
// the outcome in a word, and "code" the server's code: NOPERM, OOM, an SQLSTATE. "see" is the
// section of docs/runbook.md, as in its links; fencedb explain prints it. Lines of success and of
// the caller's own errors have none. [Config.Unredacted] logs names and texts. Lease ids are
// shortened to 8 characters.
package slog

import (
	"context"
	"errors"
	"log/slog"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Config says how a [Tracer] logs. The zero value is usable.
type Config struct {
	// Unredacted logs resources by name and errors with their text, which names resources. Defaults to
	// false.
	Unredacted bool

	// Attrs returns attributes for each line, such as a correlation id, from the context of the
	// operation. Like a tracer it must not call a lease, which may be locked. Defaults to none.
	Attrs func(ctx context.Context) []slog.Attr
}

// Tracer logs. It is a tracer of leases and of writes, and safe for concurrent use.
type Tracer struct {
	logger *slog.Logger
	cfg    Config
}

var (
	_ lease.Tracer   = (*Tracer)(nil)
	_ fencedb.Tracer = (*Tracer)(nil)
)

// New returns a tracer that logs to logger, at its level.
func New(logger *slog.Logger, cfg Config) *Tracer { return &Tracer{logger, cfg} }

// TraceLeaseStart implements [lease.Tracer].
func (t *Tracer) TraceLeaseStart(ctx context.Context, s lease.TraceStart) context.Context {
	if s.Op == lease.OpWait && t.logger.Enabled(ctx, waiting.level) {
		t.log(ctx, waiting, t.ofLease(s), "", nil)
	}
	return ctx
}

// TraceLeaseEnd implements [lease.Tracer].
func (t *Tracer) TraceLeaseEnd(ctx context.Context, e lease.TraceEnd) {
	result := e.Outcome()
	l, ok := leaseLines[e.Op][result]
	if !ok || !t.logger.Enabled(ctx, l.level) {
		return
	}
	if by := (*lease.HeldError)(nil); errors.As(e.Err, &by) {
		e.Resource = by.Resource // the one of several that was busy
	}
	attrs := append(t.ofLease(e.TraceStart), slog.Duration("took", e.Took))
	if e.ValidFor > 0 {
		attrs = append(attrs, slog.Duration("ttl", e.ValidFor))
	}
	t.log(ctx, l, attrs, result, e.Err)
}

func (t *Tracer) ofLease(s lease.TraceStart) []slog.Attr {
	attrs := []slog.Attr{slog.String("resource", t.name(s.Resource))}
	add := func(there bool, a slog.Attr) {
		if there {
			attrs = append(attrs, a)
		}
	}
	add(s.Resources > 1, slog.Int("resources", s.Resources))
	add(s.Kind != "lease", slog.String("kind", s.Kind))
	add(s.Namespace != "", slog.String("namespace", s.Namespace))
	add(s.LeaseID != uuid.Nil, slog.String("lease_id", feed.Short(s.LeaseID)))
	add(s.Token != 0, slog.Int64("token", s.Token))
	return attrs
}

// TraceWriteStart implements [fencedb.Tracer].
func (t *Tracer) TraceWriteStart(ctx context.Context, _ fencedb.TraceStart) context.Context {
	return ctx
}

// TraceWriteEnd implements [fencedb.Tracer].
func (t *Tracer) TraceWriteEnd(ctx context.Context, e fencedb.TraceEnd) {
	result := e.Outcome()
	l, ok := writeLines[result]
	switch committed := result == "committed"; {
	case e.Op == fencedb.OpEnter && committed:
		l = entered
	case e.Op == fencedb.OpSeal && committed:
		l = sealed
	case e.Op == fencedb.OpSeal:
		l = line{min(l.level, slog.LevelWarn), notSealed, notToBeSealed} // nothing is lost by one: it is sealed again
	case result == "error":
		l.section = sectionOf(e.Err)
	}
	if !ok || e.Op == fencedb.OpCommit || !t.logger.Enabled(ctx, l.level) { // a commit is logged with its write
		return
	}
	g, stored := e.Subject()
	attrs := []slog.Attr{slog.String("resource", t.name(g.Resource())), slog.String("lease_id", feed.Short(g.LeaseID())), slog.Int64("token", g.Token())}
	if stored != 0 {
		attrs = append(attrs, slog.Int64("stored", stored))
	}
	if len(e.Grants) > 1 {
		attrs = append(attrs, slog.Int("resources", len(e.Grants)))
	}
	t.log(ctx, l, append(attrs, slog.Duration("took", e.Took)), result, e.Err)
}

func (t *Tracer) name(resource string) string {
	if t.cfg.Unredacted {
		return resource
	}
	return feed.Hashed(resource)
}

// log logs the line, with why the operation failed, if it did.
func (t *Tracer) log(ctx context.Context, l line, attrs []slog.Attr, result string, err error) {
	if err != nil {
		attrs = append(attrs, slog.String("cause", result))
		if code := codeOf(err); code != "" {
			attrs = append(attrs, slog.String("code", code))
		}
		if t.cfg.Unredacted {
			attrs = append(attrs, slog.Any("err", err))
		}
	}
	if l.section != "" {
		attrs = append(attrs, slog.String("see", l.section))
	}
	if t.cfg.Attrs != nil {
		attrs = append(attrs, t.cfg.Attrs(ctx)...)
	}
	t.logger.LogAttrs(ctx, l.level, l.message, attrs...)
}

// codeOf is the server's code of the error: the first word of Redis's answer, or an SQLSTATE.
func codeOf(err error) string {
	if refused, is := errors.AsType[*lease.RefusedError](err); is {
		return refused.Code
	}
	var (
		refused  interface{ SQLState() string }        // most drivers
		pgdriver interface{ Field(field byte) string } // by the letter in the protocol
	)
	switch {
	case errors.As(err, &refused):
		return refused.SQLState()
	case errors.As(err, &pgdriver):
		return pgdriver.Field('C')
	}
	return ""
}

// sectionOf is the section for an error that has no outcome of its own. Most are the caller's own.
func sectionOf(err error) string {
	if errors.As(err, new(*pgconn.ConnectError)) {
		return failsOver
	}
	return sections[codeOf(err)]
}

// sections are those of SQLSTATEs.
var sections = map[string]string{
	"42501": noRights,
	"25006": failsOver, // a standby
	"3F000": failsOver, // the schema is missing: another database, or one that was not migrated
	"57P01": failsOver, // it shuts down, crashed, or starts
	"57P02": failsOver,
	"57P03": failsOver,
}

// line is the level and message of an outcome, and the section of the runbook that it leads to.
type line struct {
	level   slog.Level
	message string
	section string // as in a link: "leases-are-lost"
}

func debug(message string) line         { return line{slog.LevelDebug, message, ""} }
func info(message string) line          { return line{slog.LevelInfo, message, ""} }
func (l line) see(section string) line  { l.section = section; return l }
func warn(message, section string) line { return line{slog.LevelWarn, message, section} }
func bad(message, section string) line  { return line{slog.LevelError, message, section} }

// Sections of the runbook.
const (
	notToBeSealed = "a-lease-could-not-be-sealed"
	unreachable   = "redis-is-unreachable"
	refuses       = "redis-answers-and-refuses"
	strangeKey    = "a-key-is-not-what-it-should-be"
	lost          = "leases-are-lost"
	notRenewed    = "renewals-fail"
	notOwned      = "leases-are-not-owned"
	late          = "late-writes-are-refused"
	noGrant       = "a-write-had-no-grant-for-its-row"
	inTheWay      = "a-transaction-is-in-the-way"
	unknown       = "a-commit-has-an-unknown-outcome"
	stuck         = "a-holder-is-stuck"
	onPurpose     = "a-lease-was-ended-on-purpose"
	failsOver     = "postgres-fails-over"
	noRights      = "rights-are-missing"
)

var waiting = debug("waiting for a lease")

// leaseLines are the lines of lease operations, by outcome. An outcome without a line is logged by
// another operation.
var leaseLines = map[lease.Op]map[string]line{
	lease.OpAcquire: {
		"granted":     debug("lease granted"),
		"held":        debug("lease held by another").see(stuck),
		"cancelled":   debug("lease not acquired"),
		"not_sealed":  warn("lease not acquired", notToBeSealed),
		"unreachable": warn("lease not acquired", unreachable),
		"refused":     warn("lease not acquired", refuses),
		"error":       warn("lease not acquired", strangeKey),
	},
	lease.OpHold: {
		"expired":     warn("lease lost", lost),
		"unreachable": warn("lease lost", lost),
		"lost":        warn("lease lost", lost),
		"revoked":     info("lease lost").see(onPurpose),
	},
	lease.OpExtend: {
		"extended":    debug("lease extended"),
		"cancelled":   debug("lease not extended"),
		"unreachable": warn("lease not extended", notRenewed),
		"error":       warn("lease not extended", notRenewed),
	},
	lease.OpRelease: {
		"released":    debug("lease released"),
		"unreachable": warn("lease not released", unreachable), // it will expire
		"error":       warn("lease not released", strangeKey),
		"gone":        warn("lease not released", notOwned), // perhaps the holder did not know
		"taken":       warn("lease not released", notOwned),
		"revoked":     debug("lease not released").see(onPurpose),
	},
	lease.OpRevoke: {
		"done":   info("lease revoked"),
		"failed": warn("lease not revoked", unreachable),
	},
	lease.OpRaise: {
		"done":   info("fence raised"),
		"failed": warn("fence not raised", unreachable),
	},
}

// entered is the line of a transaction that has entered: whether it commits is not known.
var entered = debug("fence entered")

// sealed is the line of a seal, notSealed the message of one that failed. Neither has written
// anything else.
var sealed = debug("fence sealed")

const notSealed = "fence not sealed"

// writeLines are the lines of writes, by outcome. A failed Enter is logged like a failed write.
var writeLines = map[string]line{
	"committed":      debug("write committed"),
	"stale":          warn("write refused", late),
	"lease_over":     warn("write failed", late),
	"too_long":       warn("write failed", late),
	"tx_ended":       bad("write failed", noGrant),
	"unsealed":       warn("write failed", inTheWay),
	"busy":           warn("write failed", inTheWay),
	"no_token":       bad("write failed", noGrant),
	"wrong_resource": bad("write failed", noGrant),
	"invalid_grant":  bad("write failed", noGrant),
	"commit_unknown": bad("write failed", unknown),
	"error":          debug("write failed"), // the caller's own error, which the caller handles; or sectionOf it
}
