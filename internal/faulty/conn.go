package faulty

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
)

// Wire dials connections that can be cut at the worst moment: below the client library, so that its own retries are part of the test.
type Wire struct {
	cut atomic.Pointer[[]byte]
}

// CutAfter breaks the connection over which a request containing that text is sent next, when the server has acted on it and
// before the client can read the reply. Once.
func (w *Wire) CutAfter(text string) {
	b := []byte(text)
	w.cut.Store(&b)
}

// Dial fits the Dialer of a client's options.
func (w *Wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: conn, wire: w}, nil
}

type wireConn struct {
	net.Conn
	wire   *Wire
	doomed atomic.Bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	if text := c.wire.cut.Load(); text != nil && bytes.Contains(b, *text) && c.wire.cut.CompareAndSwap(text, nil) {
		c.doomed.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.doomed.Load() || err != nil {
		return n, err
	}
	_ = c.Close()
	return 0, io.EOF
}
