package faulty

import (
	"bufio"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// echo answers every line with itself, and says on heard what it got. Its addr is a socket: a port
// may have been that of another server whose clients still call.
func echo(t *testing.T) (addr string, heard chan string) {
	t.Helper()
	addr = filepath.Join(t.TempDir(), "e")
	listener, err := net.Listen("unix", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	heard = make(chan string, 16)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					heard <- lines.Text()
					_, _ = conn.Write(append(lines.Bytes(), '\n'))
				}
				_ = conn.Close()
			}()
		}
	}()
	return addr, heard
}

func TestNetworkWeather(t *testing.T) {
	t.Parallel()
	addr, heard := echo(t)
	socket := filepath.Join(t.TempDir(), "n")
	n, err := NewNetwork(socket)
	require.NoError(t, err)
	defer n.Close()
	dial := func() (net.Conn, *bufio.Scanner) {
		conn, err := Through(socket)(t.Context(), "unix", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn, bufio.NewScanner(conn)
	}
	say := func(conn net.Conn, word string) {
		_, err := conn.Write([]byte(word + "\n"))
		require.NoError(t, err)
	}
	conn, lines := dial()

	say(conn, "fair")
	require.Equal(t, "fair", <-heard)
	require.True(t, lines.Scan())

	n.Set(Weather{Delay: 50 * time.Millisecond, Jitter: 10 * time.Millisecond})
	began := time.Now()
	say(conn, "slow")
	require.Equal(t, "slow", <-heard)
	require.True(t, lines.Scan())
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond, "both directions")

	n.Set(Weather{HoldReplies: true})
	say(conn, "half")
	require.Equal(t, "half", <-heard, "requests arrive")
	n.Set(Weather{HoldRequests: true})
	require.True(t, lines.Scan(), "and now the reply does")
	require.Equal(t, "half", lines.Text())
	say(conn, "held")
	n.Set(Weather{})
	require.Equal(t, "held", <-heard)
	require.True(t, lines.Scan())

	n.Set(Weather{LoseReplies: true})
	say(conn, "lost")
	require.Equal(t, "lost", <-heard)
	require.False(t, lines.Scan(), "the connection is closed instead")

	n.Set(Weather{Refuse: true})
	refused, lines := dial()
	_, _ = refused.Write([]byte("none\n"))
	require.False(t, lines.Scan())

	n.Set(Weather{})
	conn, lines = dial()
	say(conn, "again")
	require.True(t, lines.Scan())
	require.Equal(t, "again", <-heard)
	n.Set(Weather{Refuse: true})
	require.False(t, lines.Scan(), "a connection that was there ends")
}
