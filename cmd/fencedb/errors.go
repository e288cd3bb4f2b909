package main

import (
	"errors"
	"fmt"
)

// Exit codes. They are documented in the README and do not change.
const (
	exitDone     = 0
	exitFailed   = 1 // it did not work, or doctor found an error
	exitUsage    = 2 // the call was wrong, and nothing was asked or changed
	exitDeclined = 3 // the question was not answered with yes, and nothing was changed
	exitHalf     = 4 // revoked in Redis, not sealed in Postgres
)

var (
	errUsage    = errors.New("wrong call")
	errDeclined = errors.New("not confirmed, nothing was changed")
	errHalf     = errors.New("revoked in Redis, but not sealed in Postgres")
)

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errDeclined):
		return exitDeclined
	case errors.Is(err, errHalf):
		return exitHalf
	}
	return exitFailed
}

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}
