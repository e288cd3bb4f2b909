// Package slog logs what becomes of leases and fenced writes, with log/slog. It is mostly imported under another name:
//
//	import fencelog "github.com/fencedb/fencedb/observe/slog"
//
//	logs := fencelog.New(slog.Default(), fencelog.Config{})
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{logs}})
//	db := fencedb.Traced(pool, logs)
//
// # Levels
//
// What is ordinary under contention is at debug: grants, waiting, being held off, renewals, commits, and errors that the
// caller's own function returned. What somebody decided is at info: revocations, healing. A lease that is lost, a late write
// that is refused, a store that does not answer: warn. What only a mistake in a program can cause, and a commit whose outcome
// is unknown: error. docs/observing.md lists every message.
//
// # What is not logged
//
// Names of resources, which may be personal data: "resource" is the first 12 hexadecimal digits of the SHA-256, for which
//
//	printf table:12 | sha256sum
//
// gives the digits to search for. For the same reason the text of errors, which names resources; the word of their
// outcome is. [Config.Plain] logs both. Lease ids are shortened to 8 characters.
package slog
