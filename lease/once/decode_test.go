package once

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

func answer(word string, args ...string) protocol.Reply {
	return protocol.Reply{Script: "test", Word: word, Args: args}
}

func TestDecodeLook(t *testing.T) {
	id := uuid.New()
	for _, test := range []struct {
		reply protocol.Reply
		want  State
		err   error
	}{
		{answer("absent"), State{}, nil},
		{answer("running", id.String(), "1786000000123456", "250", "shopZ40host-7Z3a4711"),
			State{Phase: InFlight, Claim: id, Token: 1786000000123456, Holder: "shop@host-7:4711", ExpiresIn: 250 * time.Millisecond}, nil},
		{answer("running", id.String(), "1", "0", "me"), State{Phase: InFlight, Claim: id, Token: 1, Holder: "me"}, nil},
		{answer("done", "sum", "paid", "1000"), State{Phase: Done, Result: []byte("paid"), ExpiresIn: time.Second, fingerprint: "sum"}, nil},
		{answer("done", "", "", "-1"), State{Phase: Done, Result: []byte{}, ExpiresIn: -time.Millisecond}, nil},

		{answer("absent", "x"), State{}, lease.ErrProtocol},
		{answer("running", "x", "1", "0", "c"), State{}, lease.ErrProtocol},
		{answer("running", id.String(), "0", "0", "c"), State{}, lease.ErrProtocol},
		{answer("running", id.String(), "1", "-1", "c"), State{}, lease.ErrProtocol},
		{answer("running", id.String(), "1", "0"), State{}, lease.ErrProtocol},
		{answer("done", "", "", "-2"), State{}, lease.ErrProtocol},
		{answer("done", "", ""), State{}, lease.ErrProtocol},
		{answer("granted"), State{}, lease.ErrProtocol},
	} {
		got, err := decodeLook(test.reply)
		require.ErrorIs(t, err, test.err, test.reply)
		if err == nil {
			require.Equal(t, test.want, got, test.reply)
		}
	}
}

func TestDecodeRecord(t *testing.T) {
	for _, test := range []struct {
		reply    protocol.Reply
		recorded bool
		err      error
	}{
		{answer("recorded"), true, nil},
		{answer("lost"), false, nil},
		{answer("recorded", "x"), false, lease.ErrProtocol},
		{answer("forgotten"), false, lease.ErrProtocol},
	} {
		recorded, err := decodeRecord(test.reply)
		require.ErrorIs(t, err, test.err, test.reply)
		require.Equal(t, test.recorded, recorded && err == nil, test.reply)
	}
}

func TestPhasesHaveNames(t *testing.T) {
	require.Equal(t, []string{"absent", "in flight", "done", "Phase(3)"},
		[]string{Absent.String(), InFlight.String(), Done.String(), Phase(3).String()})
}
