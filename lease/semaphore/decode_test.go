package semaphore

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/internal/script"
)

func answer(word string, args ...string) script.Reply {
	return script.Reply{Script: "test", Word: word, Args: args}
}

func TestDecodeInspect(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	for _, test := range []struct {
		reply script.Reply
		want  Inspection
		err   error
	}{
		{answer("inspected", "3", "0"), Inspection{Limit: 3}, nil},
		{answer("inspected", "3", "2", a.String()+":41", "250", b.String()+":1786000000123456", "1000"),
			Inspection{3, 2, []Holder{{a, 41, 250 * time.Millisecond}, {b, 1786000000123456, time.Second}}}, nil},

		{answer("inspected", "3"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "0", "0"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "-1"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "0", a.String()+":41"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "0", a.String(), "250"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "0", "x:41", "250"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "0", a.String()+":0", "250"), Inspection{}, lease.ErrProtocol},
		{answer("inspected", "3", "0", a.String()+":41", "0"), Inspection{}, lease.ErrProtocol},
		{answer("listed", "3", "0"), Inspection{}, lease.ErrProtocol},
	} {
		got, err := decodeInspect(test.reply)
		require.ErrorIs(t, err, test.err, "%+v", test.reply)
		require.Equal(t, test.want, got, "%+v", test.reply)
	}
}

func TestDecodeRevoke(t *testing.T) {
	for word, want := range map[string]bool{"revoked": true, "gone": false} {
		held, err := decodeRevoke(answer(word))
		require.NoError(t, err)
		require.Equal(t, want, held)
	}
	_, err := decodeRevoke(answer("revoked", "x"))
	require.ErrorIs(t, err, lease.ErrProtocol)
	_, err = decodeRevoke(answer("set"))
	require.ErrorIs(t, err, lease.ErrProtocol)
}
