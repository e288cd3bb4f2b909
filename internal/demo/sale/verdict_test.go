package sale

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/inventory/shop"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

func fine(mode Mode) Result {
	r := Result{Mode: mode, Load: light, Told: Tally{Reserve: Outcomes{Done: 3}, Pay: Outcomes{Done: 1}, StoppedNot: 1},
		Closing: good, Emptied: good, Settled: good}
	if mode == Lock {
		r.Emptied.Oversold = 3
	}
	return r
}

func TestTheVerdictNamesEachProblem(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes() {
		require.Empty(t, fine(mode).Problems(), mode)
	}
	for says, tc := range map[string]struct {
		mode  Mode
		fault func(r *Result)
	}{
		"2 buyers were stopped instead of 1":       {Optimistic, func(r *Result) { r.Told.StoppedWrote++ }},
		"nothing was sold":                         {Lock, func(r *Result) { r.Told.Pay.Done = 0 }},
		"4 carts are half reserved":                {Lock, func(r *Result) { r.Closing.Half = 4 }},
		"5 charges do not fit":                     {Lock, func(r *Result) { r.Settled.Misplaced = 5 }},
		"2 payments were begun, 1 kept and 2":      {Lock, func(r *Result) { r.Settled.Refunded = 2 }},
		"the control shows nothing":                {Lock, func(r *Result) { r.Emptied.Oversold = 0 }},
		"closing: 0 units oversold, 2 too many":    {ForUpdate, func(r *Result) { r.Closing.TooMany = 2 }},
		"emptied: 2 units oversold":                {Fenced, func(r *Result) { r.Emptied.Oversold = 2 }},
		"settled: 0 units oversold, 0 too many, 2": {Optimistic, func(r *Result) { r.Settled.TooFew = 2 }},
		"2 buyers were told reserved":              {ForUpdate, func(r *Result) { r.Told.Reserve.Done = 2 }},
		"4 buyers were told reserved":              {Fenced, func(r *Result) { r.Told.Reserve.Done = 4 }},
		"2 buyers were told sold":                  {Fenced, func(r *Result) { r.Told.Pay.Done = 2 }},
		"before they wrote have written":           {Fenced, func(r *Result) { r.Told.StoppedWrote, r.Told.StoppedNot = 1, 0 }},
	} {
		r := fine(tc.mode)
		tc.fault(&r)
		require.Contains(t, strings.Join(r.Problems(), "\n"), says)
	}
}

func TestADoubtfulOutcomeMayHaveARow(t *testing.T) {
	t.Parallel()
	r := fine(ForUpdate)
	r.Told.Reserve = Outcomes{Done: 2, Busy: 1}
	require.Empty(t, r.Problems())
	r.Mode = Fenced
	require.NotEmpty(t, r.Problems(), "a buyer that gave up behind the fence has written nothing")
	r.Told.Reserve = Outcomes{Done: 2, Unknown: 1}
	require.Empty(t, r.Problems())
}

func TestEachRequestEndsOnce(t *testing.T) {
	t.Parallel()
	stale := &fencedb.StaleError{Resource: "sku:1", Token: 41, Stored: 42}
	for name, tc := range map[string]struct {
		err  error
		want Outcomes
	}{
		"done":      {nil, Outcomes{Done: 1}},
		"stale":     {errors.Join(stale, lease.ErrExpired, context.DeadlineExceeded), Outcomes{Refused: 1}},
		"over":      {fmt.Errorf("sell: %w", fencedb.ErrLeaseOver), Outcomes{Refused: 1}},
		"noticed":   {errors.Join(context.Canceled, lease.ErrExpired), Outcomes{Late: 1}},
		"held":      {&lease.HeldError{}, Outcomes{Busy: 1}},
		"no time":   {context.DeadlineExceeded, Outcomes{Busy: 1}},
		"sold out":  {shop.ErrSoldOut, Outcomes{Over: 1}},
		"expired":   {shop.ErrExpired, Outcomes{Over: 1}},
		"refunded":  {shop.ErrVoid, Outcomes{Over: 1}}, // before the charge came
		"in doubt":  {errors.Join(fencedb.ErrCommitUnknown, lease.ErrExpired), Outcomes{Unknown: 1}},
		"otherwise": {errors.New("no such table"), Outcomes{Failed: 1}},
	} {
		var o Outcomes
		o.count(tc.err)
		require.Equal(t, tc.want, o, name)
	}
}

func TestTheTableHasAColumnForEachSale(t *testing.T) {
	t.Parallel()
	r := fine(Lock)
	r.Told.Reserve.Done = 1000
	r.Closing.TooMany, r.Closing.TooFew = 7, 2
	for n := range 100 {
		r.Waits = append(r.Waits, time.Duration(n+1)*time.Millisecond)
	}
	var out strings.Builder

	require.NoError(t, WriteTable(&out, []Result{fine(Fenced), r}))

	for _, line := range []string{
		`\s+fenced\s+lock only`,
		`carts reserved, each second\s+0\s+250`,
		`half of them within\s+-\s+51ms`,
		`99 of 100 within\s+-\s+100ms`,
		`sum, less start\s+0\s+\+7 -2`,
		`units oversold\s+0\s+3`,
	} {
		require.Regexp(t, line, out.String())
	}
	for line := range strings.Lines(out.String()) {
		require.Len(t, line, strings.Index(out.String(), "\n")+1, "columns stand under their titles: %q", line)
	}
}

func TestTheBarShowsHowFarASaleIs(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	Bar(&out, Fenced, 2*time.Second)(time.Second, Tally{Reserve: Outcomes{Done: 7, Refused: 1}, Pay: Outcomes{Done: 5, Late: 1}})
	require.Contains(t, out.String(), "fenced     [############............]    1 s  7 reserved, 5 sold, 2 refused")
}
