package shop

import (
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/examples/inventory/store"
)

// What one cart can hold.
const (
	MaxLines = 20
	MaxUnits = 100 // of a line
	maxSKU   = 256 // bytes; with its kind it has to be a resource
)

// Validate checks a cart as a buyer sends it.
func Validate(buyer string, lines []store.Line) error {
	switch {
	case buyer == "":
		return fmt.Errorf("%w: no buyer; say who buys", ErrInvalid)
	case len(lines) == 0 || len(lines) > MaxLines:
		return fmt.Errorf("%w: %d lines; a cart has 1 to %d", ErrInvalid, len(lines), MaxLines)
	}
	for i, l := range lines {
		switch {
		case l.SKU == "":
			return fmt.Errorf("%w: line %d has no sku", ErrInvalid, i+1)
		case len(l.SKU) > maxSKU:
			return fmt.Errorf("%w: the sku of line %d is longer than %d bytes", ErrInvalid, i+1, maxSKU)
		case l.Units < 1 || l.Units > MaxUnits:
			return fmt.Errorf("%w: %d units of %s; 1 to %d can be reserved", ErrInvalid, l.Units, l.SKU, MaxUnits)
		case slices.ContainsFunc(lines[:i], func(m store.Line) bool { return m.SKU == l.SKU }):
			return fmt.Errorf("%w: two lines for %s; make them one", ErrInvalid, l.SKU)
		}
	}
	return nil
}

// SKUs are those of the lines.
func SKUs(lines []store.Line) []string {
	var skus []string
	for _, l := range lines {
		skus = append(skus, l.SKU)
	}
	return skus
}

// Take takes the lines out of the levels, and prices them: what remains decides what a unit costs. So reading, deciding and
// writing belong together.
func Take(levels []store.Level, lines []store.Line) ([]store.Level, []store.Line, error) {
	after, priced := slices.Clone(levels), slices.Clone(lines)
	for i, l := range lines {
		at := slices.IndexFunc(levels, func(s store.Level) bool { return s.SKU == l.SKU })
		if at < 0 {
			return nil, nil, fmt.Errorf("%w: there is no sku %s", ErrInvalid, l.SKU)
		}
		if levels[at].Remaining < l.Units {
			return nil, nil, fmt.Errorf("%w: %d units of %s are left", ErrSoldOut, levels[at].Remaining, l.SKU)
		}
		after[at].Remaining -= l.Units
		priced[i].Cents = price(levels[at], l.Units)
	}
	return after, priced, nil
}

// price is half of the full one for the first half of the stock.
func price(l store.Level, units int) (cents int64) {
	full := min(units, max(0, l.Start/2-(l.Remaining-units)))
	return int64(full)*l.Cents + int64(units-full)*((l.Cents+1)/2)
}

// PutBack is the opposite of Take.
func PutBack(levels []store.Level, lines []store.Line) []store.Level {
	after := slices.Clone(levels)
	for i := range after {
		for _, l := range lines {
			if l.SKU == after[i].SKU {
				after[i].Remaining += l.Units
			}
		}
	}
	return after
}

func total(lines []store.Line) (cents int64) {
	for _, l := range lines {
		cents += l.Cents
	}
	return cents
}

// NewCart is a cart of priced lines, to be added.
func NewCart(id uuid.UUID, buyer string, priced []store.Line) store.Cart {
	return store.Cart{ID: id, Buyer: buyer, State: store.Reserved, Cents: total(priced), Lines: priced}
}
