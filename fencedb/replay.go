package fencedb

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// AwaitReplay returns nil once standby has replayed the seal of grant. Then the standby also has
// everything that Postgres committed before that seal. The holder can decide on what later
// statements read there (S8), as on the primary: rows that others change only under the resources
// of grant stay as they are until the holder writes.
//
//	err := desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
//		if err := fencedb.AwaitReplay(ctx, replica, h.Grant()); err != nil {
//			return err
//		}
//		free, err := look(ctx, replica)
//		...
//
// The grant must have been sealed, as guard does, or have written: only this brings its token to
// the standby. standby must lead to one server. If an address stands for several, take one
// connection, and read on that. Its role needs fencedb.allow, although nothing is written.
//
// Cancelling ctx ends the wait. After any error, the standby may lag:
//
//   - [ErrStale]: a newer token has entered, or the same under another lease.
//   - [ErrLeaseOver]: the grant ended first. [ErrInvalidGrant]: it cannot have been issued.
//   - the cause of ctx, if that ended first.
//   - otherwise the standby could not be asked, has no schema fencedb, or is a primary: after a
//     fail-over it may never get this seal.
//
// AwaitReplay asks the standby repeatedly, at least every 50 ms, until ctx or the grant ends. A
// lease that is renewed meanwhile ends only after lease.Config.MaxHold. So give ctx a limit: a
// standby whose replay is paused would keep the resource for as long.
func AwaitReplay(ctx context.Context, standby DB, grant Grant) error {
	e, err := newEntry(standby, grant, nil)
	if err != nil {
		return err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if _, err := e.remaining(); err != nil {
			return err
		}
		if replayed, err := e.replayed(ctx); replayed || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// It reads the view fences_to_share, because a role that may enter cannot read the ledger.
const replayQuery = `SELECT pg_catalog.jsonb_build_object('standby', pg_catalog.pg_is_in_recovery(),
	'fences', pg_catalog.jsonb_object_agg(f.resource, pg_catalog.jsonb_build_object('token', f.last_fencing_token, 'lease', f.lease_id)) FILTER (WHERE f.resource IS NOT NULL))
	FROM fencedb.fences_to_share f WHERE f.resource = ANY ($1::pg_catalog.text[])`

func (e *entry) replayed(ctx context.Context) (bool, error) {
	bounded, cancel := e.untilOverdue(ctx)
	defer cancel()
	var answer struct {
		Standby bool
		Fences  map[string]struct {
			Token int64
			Lease uuid.UUID
		}
	}
	_, err := askOn(e.db)(bounded, &answer, replayQuery, e.array(func(g Grant) any { return g.Resource() }))
	code := answered(err).code
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("fencedb: the standby has not replayed the seal of %q: %w", e.resources(), because(ctx, err))
	case bounded.Err() != nil:
		if _, over := e.remaining(); over == nil { // it was renewed: ask again
			return false, nil
		}
		return false, leaseOver(e.grants, err)
	case code == codeSerializationFailure: // a conflict with replay, which has to remove rows that the query sees
		return false, nil
	case code == codeUndefinedTable:
		return false, fmt.Errorf("fencedb: the standby has no fences; run migrations.Up on its primary: %w", err)
	case code == codeInsufficientPrivilege:
		return false, fmt.Errorf("fencedb: the role may not look at fences; their owner must run SELECT fencedb.allow('role'): %w", err)
	case err != nil:
		return false, fmt.Errorf("fencedb: the standby could not be asked for the seal of %q: %w", e.resources(), err)
	case !answer.Standby:
		return false, fmt.Errorf("fencedb: the server that was asked for the seal of %q is a primary, not a standby; if it is the one that is written to, read there without waiting", e.resources())
	}
	for _, g := range e.grants {
		fence := answer.Fences[g.Resource()]
		if fence.Token > g.Token() || fence.Token == g.Token() && fence.Lease != g.LeaseID() {
			return false, &StaleError{Resource: g.Resource(), Token: g.Token(), Stored: fence.Token}
		}
		if fence.Token < g.Token() {
			return false, nil
		}
	}
	return true, nil
}
