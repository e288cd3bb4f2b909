package outcome

import (
	"errors"

	"github.com/fencedb/fencedb/fencedb"
)

// Subject is the grant that the end of a write is about: the one that was refused as stale, with the token that Postgres has stored,
// or else the first of them, with 0.
func Subject(e fencedb.TraceEnd) (grant fencedb.Grant, stored int64) {
	var stale *fencedb.StaleError
	if !errors.As(e.Err, &stale) {
		return e.Grants[0], 0
	}
	for _, g := range e.Grants {
		if g.Resource() == stale.Resource {
			return g, stale.Stored
		}
	}
	return e.Grants[0], stale.Stored // the server did not say which
}
