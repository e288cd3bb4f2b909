package fencedb_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
)

func TestOutcomes(t *testing.T) {
	t.Parallel()
	for word, err := range map[string]error{
		"stale":          &fencedb.StaleError{},
		"no_token":       fencedb.ErrNoToken,
		"wrong_resource": &fencedb.WrongResourceError{},
		"lease_over":     fencedb.ErrLeaseOver,
		"too_long":       fencedb.ErrTooLong,
		"tx_ended":       &fencedb.TxEndedError{},
		"unsealed":       fencedb.ErrUnsealed,
		"busy":           &fencedb.BusyError{},
		"commit_unknown": &fencedb.CommitUnknownError{},
		"invalid_grant":  fencedb.ErrInvalidGrant,
		"error":          errors.New("the caller's own"),
	} {
		require.Equal(t, word, fencedb.TraceEnd{Err: err}.Outcome())
		require.Contains(t, fencedb.Outcomes(), word)
	}
	require.Equal(t, "committed", fencedb.TraceEnd{}.Outcome())
	require.Equal(t, "committed", fencedb.TraceEnd{Err: fencedb.ErrCommitted}.Outcome())
	require.Equal(t, "error", fencedb.TraceEnd{Err: fencedb.ErrKeyReused}.Outcome())
	require.Len(t, fencedb.Outcomes(), 12)
}

func TestTheSubjectOfAnEnd(t *testing.T) {
	t.Parallel()
	table := fencedb.NewGrant("table:12", 7, uuid.New(), time.Time{})
	sku := fencedb.NewGrant("sku:1", 8, uuid.New(), time.Time{})
	for _, c := range []struct {
		err    error
		grant  fencedb.Grant
		stored int64
	}{
		{nil, table, 0},
		{fencedb.ErrBusy, table, 0},
		{&fencedb.StaleError{Resource: "sku:1", Stored: 9}, sku, 9},
		{&fencedb.StaleError{Stored: 9}, table, 9},
	} {
		e := fencedb.TraceEnd{TraceStart: fencedb.TraceStart{Grants: []fencedb.Grant{table, sku}}, Err: c.err}
		grant, stored := e.Subject()
		require.Equal(t, c.grant, grant)
		require.Equal(t, c.stored, stored)
	}
}
