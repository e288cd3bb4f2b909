package chaos

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// The two kinds of holders that oversleep.
const (
	beforeWriting = iota // between the acquisition and the transaction
	whileWriting         // in the transaction, between its read and its write
	kinds
)

// nap is for how many commits of others an oversleeper lets a resource alone, so that there is work to disturb.
const nap = 10

// start puts workers on every resource, each with an issuer of its own. The function that it returns ends them and waits.
func (w *world) start() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var all sync.WaitGroup
	for _, resource := range resources {
		for range 2 {
			h := w.newHand(resource, w.config)
			all.Go(func() { repeat(ctx, h.work) })
		}
		for kind := range kinds {
			config := w.config
			config.RenewEvery = lease.Never // asleep
			h := w.newHand(resource, config)
			all.Go(func() { repeat(ctx, func(ctx context.Context) { h.oversleep(ctx, kind) }) })
		}
	}
	return func() {
		cancel()
		all.Wait()
	}
}

func repeat(ctx context.Context, step func(context.Context)) {
	for ctx.Err() == nil {
		step(ctx)
	}
}

// hand works on one resource, from one goroutine.
type hand struct {
	*world
	resource string
	issuer   *lease.Issuer
	lease    *lease.Lease // the last that the issuer granted
}

// newHand learns its leases where they are sealed: guard.Tx does not show them.
func (w *world) newHand(resource string, config lease.Config) *hand {
	h := &hand{world: w, resource: resource}
	seal := config.Seal
	config.Seal = func(ctx context.Context, l lease.Grant) error {
		h.lease = l.(*lease.Lease)
		if seal == nil {
			return nil
		}
		return seal(ctx, l)
	}
	var err error
	h.issuer, err = lease.New(w.client(), config)
	require.NoError(w, err)
	return h
}

// work counts one further as an application would. It may fail for as long as Redis does.
func (h *hand) work(ctx context.Context) {
	began, asked := time.Now(), false
	err := h.write.acquiring(ctx, h.issuer, h.pool, h.resource, func(ctx context.Context, tx pgx.Tx) error {
		asked = true
		return increment(ctx, tx, h.lease, atOnce)
	})
	if asked { // sealing can end in doubt when its context does, but that is none about the data
		h.judged(began, err)
	}
}

// oversleep holds on to a lease until somebody else has acquired one later and committed, and then writes all the same.
func (h *hand) oversleep(ctx context.Context, kind int) {
	rested := h.board.read(h.resource).commits + nap
	if !h.board.await(ctx, h.resource, func(t tally) bool { return t.commits >= rested }) {
		return
	}
	began := time.Now()
	l, err := h.issuer.Acquire(ctx, h.resource)
	if err != nil {
		return
	}
	overtaken := false
	sleep := func() { overtaken = h.board.overtaken(ctx, h.resource) }
	if kind == beforeWriting {
		sleep()
		// Without its validity, or the grant would be refused for that.
		err = h.writeLate(ctx, fencedb.NewGrant(l.Resource(), l.Token(), l.LeaseID(), time.Time{}), atOnce)
	} else {
		err = h.writeLate(ctx, l, sleep)
	}
	h.judged(began, err)
	if overtaken {
		h.judgedLate(kind, err)
	}
}

func (h *hand) writeLate(ctx context.Context, g fencedb.Grant, pause func()) error {
	return h.write.holding(ctx, h.pool, g, func(tx pgx.Tx) error { return increment(ctx, tx, g, pause) })
}

func (h *hand) judged(began time.Time, err error) {
	assert.NotErrorIs(h, err, fencedb.ErrCommitUnknown, "Postgres was there to be asked")
	if err == nil {
		h.board.committed(h.resource, began)
	}
}

func (h *hand) judgedLate(kind int, err error) {
	switch {
	case err == nil:
		h.board.post(h.resource, func(t *tally) { t.written[kind]++ })
		assert.True(h, h.forgetful, "%s: token %d was overtaken, and written with (kind %d)", h.resource, h.lease.Token(), kind)
	case errors.Is(err, fencedb.ErrStale), errors.Is(err, fencedb.ErrLeaseOver):
		h.board.post(h.resource, func(t *tally) { t.refused[kind]++ })
	}
}
