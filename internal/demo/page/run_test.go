package page

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThePageIsForThisMachineAlone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // of a page that is served all the same
	defer cancel()
	for _, addr := range []string{"0.0.0.0:0", ":0", "nowhere", "127.0.0.1"} {
		require.Error(t, Run(ctx, []string{"-addr", addr}, io.Discard), addr)
	}
	listener, err := listen("127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
}

func TestBadArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"sing"}, {"-sing"}} {
		require.Error(t, Run(t.Context(), args, io.Discard), args)
	}
}

func TestItEndsWithItsContextBeforeAnythingIsStarted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.Error(t, show(ctx, listener, io.Discard))
	_, err = net.Dial("tcp", listener.Addr().String())
	require.Error(t, err)
}
