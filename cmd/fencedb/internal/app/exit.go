package app

import (
	"errors"
	"fmt"
)

// Exit codes. They are documented in docs/command.md and do not change.
const (
	ExitDone     = 0
	ExitFailed   = 1 // failed, doctor found an error, or chaos or drill a broken promise
	ExitUsage    = 2 // usage error; nothing was read or changed
	ExitDeclined = 3 // not confirmed; nothing was changed
	ExitHalf     = 4 // revoked in Redis, not sealed in Postgres
)

// ExitError is an error with an exit code of its own.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

func (e ExitError) Unwrap() error { return e.Err }

var (
	errUsage    = ExitError{ExitUsage, errors.New("usage error")}
	errDeclined = ExitError{ExitDeclined, errors.New("not confirmed, nothing was changed")}
)

// UsageError is the error of a call that is wrong: nothing was read or changed.
func UsageError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}
