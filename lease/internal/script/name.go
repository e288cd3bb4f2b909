package script

import (
	"fmt"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/internal/eval"
)

// MaxNamespace is the greatest length of a namespace in bytes.
const MaxNamespace = eval.MaxNamespace

// Tag is the hash tag of a name, the same that package lease gives to a resource of that name. All keys with one tag share
// a Cluster slot.
func Tag(namespace, name string, hashed bool) string { return eval.Tag(namespace, name, hashed) }

// CheckName refuses what cannot be part of a key, with [lease.ErrInvalid]. limit is in bytes.
func CheckName(what, name string, limit int) error {
	if problem := eval.Unfit(what, name, limit); problem != "" {
		return Invalid("%s", problem)
	}
	return nil
}

// Invalid is a [lease.ErrInvalid].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{lease.ErrInvalid}, args...)...)
}
