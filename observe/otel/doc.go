// Package otel makes OpenTelemetry spans of what leases and fenced writes go through. It is mostly imported under another name:
//
//	import fenceotel "github.com/fencedb/fencedb/observe/otel"
//
//	spans := fenceotel.New(fenceotel.Config{})
//	issuer, err := lease.New(client, lease.Config{TTL: 10 * time.Second, Tracers: []lease.Tracer{spans}})
//	db := fencedb.Traced(pool, spans)
//
// # Spans
//
//	lease acquire     a call that acquires, with its sealing
//	  lease wait      from when the resource was found taken
//	lease hold        the life of a lease; what runs under its context is within
//	lease release, lease revoke, lease raise, lease heal
//	fenced write      Tx, Exec, Query, QueryRow, SendBatch or Seal
//	  fenced commit   COMMIT, and what was done to find out its outcome
//	fence enter       Enter or EnterSQL
//
// The work within a span is within its context, so the spans of otelpgx and redisotel are its children.
//
// The span of a hold ends, and is exported, with the lease; a renewal is not a span but an event of it if it fails
// (lease.not_extended), and so are its loss (lease.lost, with the cause) and each write that was refused under it
// (fence.refused, with the tokens). A refusal is an event of the span of the write as well.
//
// # Attributes and status
//
// fencedb.resource, fencedb.lease_id (8 characters), fencedb.token, fencedb.outcome, and where there is something to say
// fencedb.resources, fencedb.kind, fencedb.namespace, fencedb.stored. The resource is the first 12 hexadecimal digits of its
// SHA-256, unless [Config.Plain] is set. docs/observing.md lists the outcomes. What is ordinary under contention leaves the
// status unset: a lease that is held by another, a release, an error of the caller's own function. What is worth somebody's
// look makes it an error.
package otel
