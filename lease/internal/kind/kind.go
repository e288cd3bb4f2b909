// Package kind lets packages beside package lease issue leases of another kind: held otherwise than by one holder at a
// time, with everything else alike.
package kind

import "github.com/fencedb/fencedb/lease/internal/script"

// Kind is another set of scripts for the life of a holder. Each keeps the calling convention of the lease's script of
// that name, KEYS, ARGV and answers. Resources are taken one at a time.
type Kind struct {
	Name string // first word of the keys

	Acquire, Extend, Release, Withdraw, Verify script.Script

	// Ask adds to the KEYS and the ARGV of Acquire what the lease's script does not take.
	Ask func(keys []string, args []any) ([]string, []any)
}
