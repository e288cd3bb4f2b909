package chaos

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/fencedb/fencedb/lease"
)

// Beside the objects there is a semaphore, and an order that is to be carried out once. They
// protect no data, and are not safe where Redis loses its own, so the faults that take keys leave
// theirs.
const (
	permits = "permits"
	limit   = 2 // of them at once

	orders = "orders"
)

// keysBeside are the names of what both can have in Redis.
func (t task) keysBeside() []string {
	all := t.keysOf("semaphore", permits)
	for process := range 2 {
		all = append(all, t.keysOf("", "once:"+t.orderKey(process))...)
		all = append(all, t.keysOf("once", "once:"+t.orderKey(process))...)
	}
	return all
}

// permit holds a permit for a while, sometimes past its end. It counts for as long as the holder
// may trust it.
func (d *desk) permit(ctx context.Context, random *rand.Rand) {
	d.attempt(ctx, "permit", permits, func(ctx context.Context, a *Attempt) error {
		s, work := d.permits[true], upTo(random, d.TTL/4)
		if random.IntN(20) == 0 {
			s, work = d.permits[false], d.pastTheEnd(random)
		}
		l, err := s.Acquire(ctx, permits)
		if err != nil {
			return err
		}
		a.From = now()
		wait(ctx, work)
		a.Until = now()
		if d.Control != EndlessPermit {
			a.Until = min(a.Until, a.Until+int64(time.Until(l.ValidUntil())))
		}
		_ = l.Release(ctx) // or it expires
		return nil
	})
}

// crowded counts how many held a permit at once.
func (e *evidence) crowded() {
	type edge struct {
		at      int64
		more    int
		attempt int64
	}
	var edges []edge
	for _, a := range e.all {
		if a.Work == "permit" && a.Until > a.From {
			edges = append(edges, edge{a.From, 1, a.ID}, edge{a.Until, -1, a.ID})
		}
	}
	slices.SortStableFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.more-b.more) })
	held := 0
	for _, x := range edges {
		if held += x.more; x.more > 0 && held > limit {
			e.accuse(x.attempt, atMost, "has got permit %d of %d", held, limit)
		}
	}
}

// remembers is how long the result of the order is replayed. Then it is carried out again.
func (t task) remembers() time.Duration { return 2 * t.TTL }

// orderKey is the same for all processes, as it must be.
func (t task) orderKey(process int) string {
	if t.Control == OwnKey {
		return "order " + strconv.Itoa(process%2)
	}
	return "order"
}

// order asks for the result of the order, which is the attempt that has carried it out. Sometimes
// that takes longer than the claim lasts.
func (d *desk) order(ctx context.Context, random *rand.Rand) {
	d.attempt(ctx, "order", orders, func(ctx context.Context, a *Attempt) error {
		work := upTo(random, d.TTL/4)
		if random.IntN(20) == 0 {
			work = d.pastTheEnd(random)
		}
		key := d.orderKey(d.Process)
		result, _, err := d.orders.Do(ctx, key, nil, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
			if at := now(); claim.Err() == nil { // or it was stopped just before, and is refused when it records
				a.From = at
			}
			wait(context.WithoutCancel(ctx), work)
			a.Until = now()
			return strconv.AppendInt(nil, a.ID, 10), nil
		})
		if err == nil {
			a.Read, err = strconv.ParseInt(string(result), 10, 64)
		}
		return err
	})
}

// ordered looks for work that was done, and results that were given, while another result stood.
// That one counts from when somebody had it until shortly before it is forgotten.
func (e *evidence) ordered() {
	var asked, recorded []*Attempt
	for _, a := range e.all {
		if a.Work == "order" && a.Return > 0 {
			asked = append(asked, a)
			if a.Outcome == Committed && a.Read == a.ID {
				recorded = append(recorded, a)
			}
		}
	}
	slices.SortFunc(asked, func(a, b *Attempt) int { return cmp.Compare(a.Call, b.Call) })
	slices.SortFunc(recorded, func(a, b *Attempt) int { return cmp.Compare(a.Return, b.Return) })
	lasts := int64(e.remembers()) * 9 / 10
	stood := func(from, until int64) *Attempt {
		n, _ := slices.BinarySearchFunc(recorded, from, func(a *Attempt, at int64) int { return cmp.Compare(a.Return, at) })
		if n > 0 && until < recorded[n-1].Until+lasts {
			return recorded[n-1]
		}
		return nil
	}
	for _, a := range asked {
		if r := stood(a.From, a.From); r != nil && a.From > 0 {
			e.accuse(a.ID, runOnce, "has run while the result of %s stood", e.describe(r.ID))
		} else if r := stood(a.Call, a.Return); r != nil && a.Outcome == Committed && a.Read != r.ID {
			e.accuse(a.ID, runOnce, "was given the result of %s while that of %s stood", e.describe(a.Read), e.describe(r.ID))
		}
	}
}
