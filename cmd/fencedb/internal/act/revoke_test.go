package act

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn/conntest"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
)

// asked is a revocation by ann.
func asked(resource string) event { return event{"revoke", &resource, "ann@host", "it hangs"} }

func TestRevokeEndsNobodyButTheHolderThatWasShown(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	shown := e.Acquire("seat:1")
	found, err := look.Read(t.Context(), e.Servers, "seat:1")
	require.NoError(t, err)
	require.NoError(t, shown.Release(t.Context()))
	next := e.Acquire("seat:1")

	_, err = endLease(t.Context(), e.Servers, found)

	require.ErrorIs(t, err, lease.ErrStale)
	require.NoError(t, next.Extend(t.Context()))

	found, err = look.Read(t.Context(), e.Servers, "seat:2")
	require.NoError(t, err)
	first := e.Acquire("seat:2") // nobody was shown, and nothing is known of the resource

	_, err = endLease(t.Context(), e.Servers, found)

	require.ErrorIs(t, err, lease.ErrStale)
	require.NoError(t, first.Extend(t.Context()))
	places, err := look.Search(t.Context(), e.Servers, "seat:2")
	require.NoError(t, err)
	require.Empty(t, places, "it is here")
}

func TestANextHolderThatIsFasterSealsForTheRevocation(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	done := &Revocation{Resource: "seat:1", Token: 41, LeaseID: uuid.New()}
	require.NoError(t, fencedb.Seal(t.Context(), e.Pool, fencedb.NewGrant("seat:1", 42, uuid.New(), e.Acquire("seat:1").ValidUntil())))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	err := seal(ctx, e.Servers, asked("seat:1"), done)

	require.NoError(t, err)
	require.Positive(t, done.AuditID)
	var says strings.Builder
	done.Print(term.Page{Out: &says})
	require.Contains(t, says.String(), "Nobody held seat:1. Its fence is at token 41 or above now.\n")
}

// The lease may have ended: the audit says who wanted that, once.
func TestARevocationThatRedisDoesNotAnswerIsRecorded(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	held := e.Acquire("seat:1")
	found, err := look.Read(t.Context(), e.Servers, "seat:1")
	require.NoError(t, err)
	e.Timeout = 5 * time.Second
	e.Redis.Pause()

	_, err = revokeLease(t.Context(), e.Servers, asked("seat:1"), found)

	e.Redis.Resume()
	require.Error(t, err)
	require.Contains(t, e.Changed, "the lease may have ended")
	require.Equal(t, fmt.Sprintf("ann@host false %d -", held.Token()), e.One(`SELECT string_agg(concat_ws(' ', operator, details ->> 'sealed', details ->> 'former_token', coalesce(details ->> 'token', '-')), ' ') FROM fencedb.audit WHERE event = 'revoke'`))
}

// The answer to its COMMIT was lost: what has recorded its seal is not recorded again as half.
func TestASealThatWasCommittedUnheardIsRecordedOnce(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	done := &Revocation{Resource: "seat:1", Token: e.Acquire("seat:1").Token(), LeaseID: uuid.New()}
	id, err := asked("seat:1").record(t.Context(), e.Pool, done.details(true))
	require.NoError(t, err)

	sealed, err := recordHalf(t.Context(), e.Servers, asked("seat:1"), done)

	require.NoError(t, err)
	require.True(t, sealed)
	require.Equal(t, id, done.AuditID)
	require.Equal(t, "true", e.One(`SELECT string_agg(details ->> 'sealed', ' ') FROM fencedb.audit WHERE event = 'revoke'`))
}

// Ctrl-C while it waits for the seal: the lease has ended, and the audit says who ended it.
func TestARevocationThatIsInterruptedIsRecorded(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	done := &Revocation{Resource: "seat:1", Token: 41, LeaseID: uuid.New()}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	cancel()

	err := seal(ctx, e.Servers, asked("seat:1"), done)

	own := app.ExitError{}
	require.ErrorAs(t, err, &own)
	require.Equal(t, app.ExitHalf, own.Code)
	require.Equal(t, "false", e.One(`SELECT details ->> 'sealed' FROM fencedb.audit WHERE event = 'revoke'`))
}

// The permit may have ended: the audit says who wanted that.
func TestARevocationOfAPermitThatRedisDoesNotAnswerIsRecorded(t *testing.T) {
	t.Parallel()
	e := conntest.Open(t)
	first, second := e.Permit("render"), e.Permit("render")
	found, err := look.Read(t.Context(), e.Servers, "render")
	require.NoError(t, err)
	e.Timeout = 5 * time.Second
	e.Redis.Pause()

	_, err = revokePermits(t.Context(), e.Servers, asked("render"), found.Resource, found.Semaphore.Permits)

	e.Redis.Resume()
	require.Error(t, err)
	require.Contains(t, e.Changed, "1 of 2 permits were revoked, or the last of these may have been")
	require.Equal(t, fmt.Sprintf("unanswered %d", first.Token()),
		e.One(`SELECT string_agg(concat_ws(' ', details ->> 'permit', details ->> 'former_token'), ' ') FROM fencedb.audit WHERE event = 'revoke'`))
	require.NoError(t, second.Extend(t.Context()))
}
