package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// attempt is one try of a call, with its leases. The call enters before anything else happens.
type attempt struct {
	*Holder
	giveBack func()
	kept     bool // the rows of Query hold the leases longer than the call
	final    bool // fn has begun behind the fence, so the call is not repeated
}

// write acquires, runs f and gives the leases back. If Postgres refuses leases that are still
// current, it does all of this once more with sealed leases: sealing raises a Redis that went
// backwards above the fence.
func (d *Desk) write(ctx context.Context, resources []string, opts []lease.Option, f func(*attempt) error) error {
	ahead, err := d.try(ctx, d.issuer, resources, opts, f)
	if ahead {
		_, err = d.try(ctx, d.sealed(), resources, opts, f)
	}
	return err
}

func (d *Desk) try(ctx context.Context, issuer *lease.Issuer, resources []string, opts []lease.Option,
	f func(*attempt) error) (ahead bool, err error) {
	leases, err := issuer.AcquireAll(ctx, resources, opts...)
	if err != nil {
		return false, err
	}
	work, unbind := leases.Bind(ctx)
	t := &attempt{Holder: &Holder{leases, work, d.db}, giveBack: func() { unbind(); leases.GiveBack(ctx) }}
	defer func() {
		if !t.kept { // also after a panic
			t.giveBack()
		}
	}()
	err = t.why(f(t))
	return t.fenceAhead(err), err
}

// why adds to err why the leases ended, if they have: the error of a transaction that had not begun
// does not say.
func (t *attempt) why(err error) error {
	if cause := context.Cause(t.ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// fenceAhead reports whether Postgres has refused a lease that is still current. If the lease is
// gone, Postgres was right. A call that has committed, or may have, must not run again, even if a
// callback has returned a refusal of another database.
func (t *attempt) fenceAhead(err error) bool {
	stale, refused := errors.AsType[*fencedb.StaleError](err)
	if !refused || t.final || errors.Is(err, fencedb.ErrCommitted) || errors.Is(err, fencedb.ErrTxEnded) ||
		errors.Is(err, fencedb.ErrCommitUnknown) {
		return false
	}
	i := slices.IndexFunc(t.leases, func(l *lease.Lease) bool { return l.Resource() == stale.Resource })
	if i < 0 {
		return false
	}
	standing, err := t.leases[i].Verify(t.ctx)
	return err == nil && standing != lease.LeaseLost
}
