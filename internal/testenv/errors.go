package testenv

import (
	"errors"
	"fmt"
	"strings"
)

// errExited: a server has ended though nobody asked it to.
var errExited = errors.New("the server has exited")

// UnavailableError says that a server can neither be reached nor started on this machine. Nothing
// was started and nothing is left behind.
type UnavailableError struct {
	Server string   // "Postgres" or "Redis"
	Tried  []string // one sentence fragment per source, in the order of the package documentation
	Remedy string   // a command that would help, to be typed as it stands
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("no %s for the tests: %s. This would help: %s",
		e.Server, strings.Join(e.Tried, "; "), e.Remedy)
}
