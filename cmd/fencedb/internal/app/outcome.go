package app

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

// ErrUnchanged is for a command that fails before it has changed anything.
var ErrUnchanged = errors.New("nothing was changed")

// outcome is what is said of an error. Where a command was interrupted, or a server was not done in
// time, it says also whether anything was changed, unless the error does.
func (a *State) outcome(err error, interrupted bool) string {
	text := InWords(err)
	switch {
	case errors.Is(err, ErrUnchanged), errors.As(err, new(ExitError)):
	case a.Changed != "":
		text += "; " + a.Changed
	case interrupted || notInTime(err):
		text += "; " + ErrUnchanged.Error()
	}
	return text
}

// hint says what to do. After a refusal by the fence, what failed next may be a mistake, such as a
// key that is corrupt: then the hint of Postgres, to acquire the lease again, does not help. Where
// half of the work was done, the text says what to do, and Postgres knows only of the other half:
// that nothing was written.
func (a *State) hint(err error) string {
	refused, is := errors.AsType[*pgconn.PgError](err)
	exit, _ := errors.AsType[ExitError](err)
	switch {
	case errors.Is(err, lease.ErrExhausted):
		return "No lease can exceed the last token, so nobody can write. fencedb explain ErrExhausted says how to set it back."
	case !is, a.Changed != "", exit.Code == ExitHalf, errors.Is(err, fencedb.ErrStale) && guard.Answer(err) == guard.Refused:
		return ""
	}
	return refused.Hint
}

func notInTime(err error) bool {
	timeout, is := errors.AsType[net.Error](err)
	refused, _ := errors.AsType[*pgconn.PgError](err)
	switch Value(refused).Code {
	case LockNotAvailable, queryCanceled:
		return true
	}
	return is && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

// LockNotAvailable and queryCanceled are SQLSTATEs of what was not done in time.
const LockNotAvailable, queryCanceled = "55P03", "57014"

// InWords is the text of an error without the terms of Go's contexts, which say nothing to an
// operator.
func InWords(err error) string { return contexts.Replace(err.Error()) }

var contexts = strings.NewReplacer(
	"timeout: context already done: context canceled", "interrupted",
	"timeout: context already done: context deadline exceeded", "no answer in time",
	"timeout: context deadline exceeded", "no answer in time",
	"context deadline exceeded", "no answer in time",
	"context canceled", "interrupted")

// InShort is an error with a text of its own instead of that of its cause.
func InShort(text string, cause error) error { return shortError{text, cause} }

type shortError struct {
	text  string
	cause error
}

func (e shortError) Error() string { return e.text }

func (e shortError) Unwrap() error { return e.cause }
