package shop

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheFirstHalfOfTheStockGoesForHalfThePrice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		start, remaining, units int
		cents                   int64
	}{
		"all of it in the first half": {100, 100, 3, 3 * 500},
		"the last of the first half":  {100, 51, 1, 500},
		"over the middle":             {100, 51, 3, 500 + 2*999},
		"all of it in the second":     {100, 50, 2, 2 * 999},
		"the last one":                {100, 1, 1, 999},
		"an odd start":                {3, 3, 3, 2*500 + 999},
	} {
		l := Level{Start: tc.start, Remaining: tc.remaining, Cents: 999}
		require.Equal(t, tc.cents, price(l, tc.units), name)
	}
}

func TestTakePricesTheCartAndLeavesWhatWasReadAsItWas(t *testing.T) {
	t.Parallel()
	levels := []Level{{SKU: "a", Start: 9, Remaining: 5, Cents: 100}, {SKU: "b", Start: 9, Remaining: 1, Cents: 200}}
	wish := Cart{Lines: []Line{{SKU: "b", Units: 1}, {SKU: "a", Units: 4}}}

	after, priced, err := take(levels, wish)

	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{after[0].Remaining, after[1].Remaining})
	require.Equal(t, []Line{{SKU: "b", Units: 1, Cents: 200}, {SKU: "a", Units: 4, Cents: 50 + 3*100}}, priced.Lines)
	require.EqualValues(t, 550, priced.Cents)
	require.Equal(t, 5, levels[0].Remaining)
	require.Zero(t, wish.Lines[0].Cents)
}

func TestTakeRefusesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	levels := []Level{{SKU: "a", Start: 9, Remaining: 5, Cents: 100}}

	_, _, err := take(levels, Cart{Lines: []Line{{SKU: "a", Units: 6}}})
	require.ErrorIs(t, err, ErrSoldOut)
	_, _, err = take(levels, Cart{Lines: []Line{{SKU: "b", Units: 1}}})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestACartThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	one := []Line{{SKU: "a", Units: 1}}
	require.NoError(t, Cart{Buyer: "ann", Lines: one}.validate())
	many := make([]Line, maxLines+1)
	for i := range many {
		many[i] = Line{SKU: strings.Repeat("a", i+1), Units: maxUnits}
	}
	require.NoError(t, Cart{Buyer: "ann", Lines: many[1:]}.validate())
	for name, c := range map[string]Cart{
		"no buyer":             {Lines: one},
		"a buyer with a zero":  {Buyer: "an\x00n", Lines: one},
		"no line":              {Buyer: "ann"},
		"too many lines":       {Buyer: "ann", Lines: many},
		"no sku":               {Buyer: "ann", Lines: []Line{{SKU: "a", Units: 1}, {Units: 1}}},
		"a sku with a zero":    {Buyer: "ann", Lines: []Line{{SKU: "a\x00", Units: 1}}},
		"a sku of 257 bytes":   {Buyer: "ann", Lines: []Line{{SKU: strings.Repeat("a", 257), Units: 1}}},
		"no units":             {Buyer: "ann", Lines: []Line{{SKU: "a"}}},
		"too many units":       {Buyer: "ann", Lines: []Line{{SKU: "a", Units: maxUnits + 1}}},
		"two lines of one sku": {Buyer: "ann", Lines: []Line{{SKU: "a", Units: 1}, {SKU: "a", Units: 2}}},
	} {
		require.ErrorIs(t, c.validate(), ErrInvalid, name)
	}
}
