package main

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The answer to TIME: seconds and microseconds.
var timeReply = regexp.MustCompile(`\*2\r\n\$10\r\n(\d{10})\r\n\$\d+\r\n\d+\r\n`)

// timeProxy stands in front of a real Redis whose clock clients then see ahead by that much. It returns the address.
func timeProxy(t *testing.T, server string, ahead time.Duration) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go relayTime(client, server, ahead)
		}
	}()
	return listener.Addr().String()
}

func relayTime(client net.Conn, server string, ahead time.Duration) {
	defer client.Close()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buffer := make([]byte, 1<<20) // whole replies: Redis writes each with one call
	for {
		n, err := upstream.Read(buffer)
		if err != nil {
			return
		}
		if _, err := client.Write(shifted(buffer[:n], ahead)); err != nil {
			return
		}
	}
}

func shifted(reply []byte, ahead time.Duration) []byte {
	found := timeReply.FindSubmatchIndex(reply)
	if found == nil {
		return reply
	}
	seconds, _ := strconv.ParseInt(string(reply[found[2]:found[3]]), 10, 64)
	return fmt.Appendf(nil, "%s%d%s", reply[:found[2]], seconds+int64(ahead.Seconds()), reply[found[3]:])
}
