package app

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

func TestWhatIsSaidOfAnError(t *testing.T) {
	t.Parallel()
	for want, test := range map[string]struct {
		err         error
		changed     string
		interrupted bool
	}{
		"redis: interrupted; nothing was changed":             {fmt.Errorf("redis: %w", context.Canceled), "", true},
		"redis: interrupt signal; nothing was changed":        {errors.New("redis: interrupt signal"), "", true},
		"redis: no answer in time; nothing was changed":       {fmt.Errorf("redis: %w", context.DeadlineExceeded), "", false},
		"redis: no answer in time; half of it":                {fmt.Errorf("redis: %w", context.DeadlineExceeded), "half of it", false},
		"no space":                                            {errors.New("no space"), "", false},
		"no space; half of it":                                {errors.New("no space"), "half of it", false},
		"nothing was changed: interrupted":                    {fmt.Errorf("%w: %w", ErrUnchanged, context.Canceled), "", true},
		"not confirmed, nothing was changed: interrupted":     {fmt.Errorf("%w: %w", errDeclined, context.Canceled), "", true},
		"a short text; nothing was changed":                   {fmt.Errorf("%w", InShort("a short text", context.DeadlineExceeded)), "", false},
		"ERROR: too late (SQLSTATE 57014); half of it":        {&pgconn.PgError{Severity: "ERROR", Message: "too late", Code: "57014"}, "half of it", false},
		"ERROR: a lock (SQLSTATE 55P03); nothing was changed": {&pgconn.PgError{Severity: "ERROR", Message: "a lock", Code: "55P03"}, "", false},
	} {
		require.Equal(t, want, (&State{Changed: test.changed}).outcome(test.err, test.interrupted))
	}
}

// Of several errors, that one is advised on which says more.
func TestTheHintIsOfTheErrorThatSaysMore(t *testing.T) {
	t.Parallel()
	taken := errors.Join(fencedb.ErrStale, &pgconn.PgError{Code: "FN001", Hint: "acquire again"})
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"another holder":             {taken, "acquire again"},
		"and it holds still":         {errors.Join(taken, lease.ErrHeld), "acquire again"},
		"a fence that is too high":   {errors.Join(taken, lease.ErrExhausted), "fencedb explain ErrExhausted"},
		"its counter, the next time": {lease.ErrExhausted, "fencedb explain ErrExhausted"},
		"a corrupt key":              {errors.Join(taken, lease.ErrCorrupt), ""},
		"a mistake of its own":       {&pgconn.PgError{Code: "22023", Hint: "declare it"}, "declare it"},
		"no hint":                    {errors.New("no space"), ""},
	} {
		got := new(State).hint(tc.err)
		require.Contains(t, got, tc.want, name)
		require.Equal(t, tc.want == "", got == "", name)
	}
	half := errors.Join(ExitError{Code: ExitHalf, Err: errors.New("revoked, not sealed")}, taken)
	require.Empty(t, new(State).hint(half))
	require.Empty(t, (&State{Changed: "the lease has ended"}).hint(taken))
}
