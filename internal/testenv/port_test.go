package testenv

import (
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATakenPortIsTriedAgainWithAnother(t *testing.T) {
	var ports []int
	err := onFreePort(t.Context(), func(port int) error {
		ports = append(ports, port)
		if len(ports) == 3 {
			return nil
		}
		taken, err := net.Listen("tcp", address(port)) // as another program may, a moment before us
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, taken.Close()) })
		return errors.New("address already in use")
	})
	require.NoError(t, err)
	require.Len(t, ports, 3)
}

func TestAFailureThatIsNotThePortsIsFinal(t *testing.T) {
	attempts, broken := 0, errors.New("broken")
	require.ErrorIs(t, onFreePort(t.Context(), func(int) error { attempts++; return broken }), broken)
	require.Equal(t, 1, attempts)
}

func TestPortsStayBelowThoseOfOutgoingConnections(t *testing.T) {
	for range 100 {
		require.NoError(t, onFreePort(t.Context(), func(port int) error {
			require.Less(t, port, 32768)
			return nil
		}))
	}
}
