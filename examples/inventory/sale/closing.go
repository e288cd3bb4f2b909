package sale

import (
	"fmt"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/examples/inventory/store"
)

// count closes the books: as they are, after the shelves were emptied, and when all is settled.
func (p *play) count(r *Result) (err error) {
	if r.Closing, err = audit(p, p.db); err != nil {
		return err
	}
	if err := p.empty(); err != nil {
		return fmt.Errorf("buy what is left: %w", err)
	}
	if r.Emptied, err = audit(p, p.db); err != nil {
		return err
	}
	if err := p.settle(); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	r.Settled, err = audit(p, p.db)
	return err
}

// empty reserves all that the shelves say is left, so that what was promised can be compared with what there was.
func (p *play) empty() error {
	for {
		levels, err := store.AllLevels(p, p.db)
		if err != nil {
			return err
		}
		var lines []store.Line
		for _, l := range levels {
			if l.Remaining > 0 && len(lines) < shop.MaxLines {
				lines = append(lines, store.Line{SKU: l.SKU, Units: min(l.Remaining, shop.MaxUnits)})
			}
		}
		if len(lines) == 0 {
			return nil
		}
		if _, err := p.shop.Reserve(p, "the last buyer", lines); err != nil {
			return err
		}
	}
}

// settle sweeps until nothing is reserved and no refund is due.
func (p *play) settle() error {
	for {
		if err := p.shop.Sweep(p); err != nil {
			return err
		}
		n, err := unsettled(p, p.db)
		if err != nil || n == 0 {
			return err
		}
		if err := sleep(p, sweepEvery); err != nil {
			return fmt.Errorf("%d carts and refunds: %w", n, err)
		}
	}
}
