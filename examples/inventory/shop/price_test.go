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

func TestTakeAndPutBackLeaveTheLevelsAsTheyWere(t *testing.T) {
	t.Parallel()
	levels := []Level{{SKU: "a", Start: 9, Remaining: 5, Cents: 100}, {SKU: "b", Start: 9, Remaining: 1, Cents: 200}}
	lines := []Line{{SKU: "b", Units: 1}, {SKU: "a", Units: 4}}

	after, priced, err := Take(levels, lines)

	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{after[0].Remaining, after[1].Remaining})
	require.Equal(t, []Line{{SKU: "b", Units: 1, Cents: 200}, {SKU: "a", Units: 4, Cents: 50 + 3*100}}, priced)
	require.Equal(t, levels, PutBack(after, lines))
	require.Equal(t, 5, levels[0].Remaining, "what was read stays as it was")
}

func TestTakeRefusesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	levels := []Level{{SKU: "a", Start: 9, Remaining: 5, Cents: 100}}

	_, _, err := Take(levels, []Line{{SKU: "a", Units: 6}})
	require.ErrorIs(t, err, ErrSoldOut)
	_, _, err = Take(levels, []Line{{SKU: "b", Units: 1}})
	require.ErrorIs(t, err, ErrInvalid)
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	one := []Line{{SKU: "a", Units: 1}}
	require.NoError(t, Validate("ann", one))
	for says, tc := range map[string]struct {
		buyer string
		lines []Line
	}{
		"say who buys":               {"", one},
		"0 lines":                    {"ann", nil},
		"21 lines":                   {"ann", make([]Line, 21)},
		"sku of line 2":              {"ann", []Line{{SKU: "a", Units: 1}, {Units: 1}}},
		"0 units of a":               {"ann", []Line{{SKU: "a"}}},
		"101 units of a":             {"ann", []Line{{SKU: "a", Units: 101}}},
		"two lines":                  {"ann", []Line{{SKU: "a", Units: 1}, {SKU: "a", Units: 2}}},
		"without control characters": {"an\x00n", one},
		"sku of line 1":              {"ann", []Line{{SKU: "a\x00", Units: 1}}},
		"256 bytes":                  {"ann", []Line{{SKU: strings.Repeat("a", 257), Units: 1}}},
	} {
		err := Validate(tc.buyer, tc.lines)
		require.ErrorIs(t, err, ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
}
