package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

func TestDecode(t *testing.T) {
	for _, test := range []struct {
		word string
		args []string
		want Decision
		err  error
	}{
		{"admitted", []string{"1", "1001"}, Decision{Allowed: true, Count: 1, ResetAfter: 1001 * time.Millisecond}, nil},
		{"admitted", []string{"5", "1"}, Decision{Allowed: true, Count: 5, ResetAfter: time.Millisecond}, nil},
		{"refused", []string{"7", "250", "900"}, Decision{Count: 7, RetryAfter: 250 * time.Millisecond, ResetAfter: 900 * time.Millisecond}, nil},

		{"admitted", []string{"0", "1"}, Decision{}, lease.ErrProtocol},
		{"admitted", []string{"1", "x"}, Decision{}, lease.ErrProtocol},
		{"admitted", []string{"1"}, Decision{}, lease.ErrProtocol},
		{"refused", []string{"7", "0", "900"}, Decision{}, lease.ErrProtocol},
		{"refused", []string{"7", "250"}, Decision{}, lease.ErrProtocol},
		{"granted", nil, Decision{}, lease.ErrProtocol},
	} {
		got, err := decode(protocol.Reply{Script: "test", Word: test.word, Args: test.args})
		require.ErrorIs(t, err, test.err, "%s %q", test.word, test.args)
		if err == nil {
			require.Equal(t, test.want, got, "%s %q", test.word, test.args)
		}
	}
}
