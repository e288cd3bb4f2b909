package sale

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/fencedb/fencedb/examples/inventory/store"
)

const abandon = 0.1 // of the carts are never paid

// buy is one cart of a buyer.
func (w *worker) buy(ctx context.Context, name string) {
	c, err := w.reserve(ctx, name)
	if err == nil && rand.Float64() >= abandon {
		w.pay(ctx, c)
	}
}

func (w *worker) reserve(ctx context.Context, name string) (store.Cart, error) {
	ctx, a := w.hold.watch(ctx)
	began := time.Now()
	c, err := w.shop.Reserve(ctx, name, w.wishes())
	w.note(err)
	w.count(func(t *Tally) {
		t.Reserve.count(err)
		switch {
		case a.held && err == nil:
			t.StoppedWrote++
		case a.held:
			t.StoppedNot++
		}
		if err == nil {
			w.waits = append(w.waits, time.Since(began))
		}
	})
	return c, err
}

func (w *worker) pay(ctx context.Context, c store.Cart) {
	began := time.Now()
	err := w.shop.Pay(ctx, c.ID)
	w.note(err)
	w.count(func(t *Tally) {
		t.Pay.count(err)
		if err == nil && time.Since(began) > w.TTL {
			t.LongPaid++
		}
	})
}

// wishes are one or two units of one to three SKUs.
func (w *worker) wishes() (lines []store.Line) {
	for _, n := range rand.Perm(w.SKUs)[:min(w.SKUs, 1+rand.IntN(3))] {
		lines = append(lines, store.Line{SKU: sku(n + 1), Units: 1 + rand.IntN(2)})
	}
	return lines
}
