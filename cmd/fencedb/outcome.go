package main

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

var errUnchanged = errors.New("nothing was changed")

// outcome is what is said of an error. Where a command was interrupted, or a server was not done in
// time, it says also whether anything was changed, unless the error does.
func (a *app) outcome(err error, interrupted bool) string {
	text := inWords(err)
	switch {
	case errors.Is(err, errUnchanged), errors.As(err, new(withCode)):
	case a.changed != "":
		text += "; " + a.changed
	case interrupted || notInTime(err):
		text += "; " + errUnchanged.Error()
	}
	return text
}

// hint says what to do. After a refusal by the fence, what failed next may be a mistake, such as a
// key that is corrupt: then the hint of Postgres, to acquire the lease again, does not help.
func hint(err error) string {
	refused, is := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, lease.ErrExhausted):
		return "No lease can exceed the last token, so nobody can write. fencedb explain ErrExhausted says how to set it back."
	case !is, errors.Is(err, fencedb.ErrStale) && guard.Answer(err) == guard.Refused:
		return ""
	}
	return refused.Hint
}

func notInTime(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	refused, _ := errors.AsType[*pgconn.PgError](err)
	switch value(refused).Code {
	case lockNotAvailable, queryCanceled:
		return true
	}
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

const lockNotAvailable, queryCanceled = "55P03", "57014"

// inWords is the text of an error without the terms of Go's contexts, which say nothing to an
// operator.
func inWords(err error) string { return contexts.Replace(err.Error()) }

var contexts = strings.NewReplacer(
	"timeout: context already done: context canceled", "interrupted",
	"timeout: context already done: context deadline exceeded", "no answer in time",
	"timeout: context deadline exceeded", "no answer in time",
	"context deadline exceeded", "no answer in time",
	"context canceled", "interrupted")

// inShort is an error with a text of its own instead of that of its cause.
type inShort struct {
	text string
	error
}

func (e inShort) Error() string { return e.text }
func (e inShort) Unwrap() error { return e.error }
