package service

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

func TestResultNamesEachOutcome(t *testing.T) {
	t.Parallel()
	stale := &fencedb.StaleError{Resource: "table:12", Token: 41, Stored: 42}
	for name, tc := range map[string]struct {
		err  error
		want Result
	}{
		"nothing":    {nil, Result{Outcome: Booked}},
		"held":       {&lease.HeldError{RetryAfter: time.Second}, Result{Outcome: Held, RetryAfter: time.Second}},
		"taken":      {booking.ErrTaken, Result{Outcome: Taken}},
		"stale":      {stale, Result{Outcome: Stale, Carried: 41, Stored: 42}},
		"joined":     {errors.Join(stale, lease.ErrExpired), Result{Outcome: Stale, Carried: 41, Stored: 42}},
		"unreleased": {errors.Join(fencedb.ErrLeaseOver, lease.ErrUnreachable), Result{Outcome: Failed}},
		"lease over": {fmt.Errorf("save: %w", fencedb.ErrLeaseOver), Result{Outcome: LeaseOver}},
		"other":      {context.Canceled, Result{Outcome: Failed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := result(tc.err)
			require.Equal(t, tc.err != nil, got.Error != "")
			got.Error = ""
			require.Equal(t, tc.want, got)
		})
	}
}
