package leasetest

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// InMemory starts a miniredis that lives in the caller's bubble of testing/synctest: no sockets,
// the bubble's clock. Outside a bubble that clock would go on within a script, as Redis's does not,
// and what a script has counted would be gone when it looks again.
func InMemory(t *testing.T) (*redis.Client, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.NewMiniRedis()
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:6379", // never dialled
		PoolSize: 1000,             // or waiting for one takes timers that the client library shares with other bubbles
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			conn, err := server.Dial()
			if err != nil {
				return nil, err
			}
			return newBuffered(conn), nil
		},
	})
	t.Cleanup(func() {
		time.Sleep(time.Minute) // the subscription lingers, its health check wakes up, and what is given back gives up
		_ = client.Close()
		server.Close()
	})
	return client, server
}

// buffered takes what is written without waiting for the other side to read it, as a socket does
// and a net.Pipe does not.
type buffered struct {
	net.Conn
	written chan []byte
	closed  chan struct{}
	once    sync.Once
}

func newBuffered(conn net.Conn) *buffered {
	b := &buffered{Conn: conn, written: make(chan []byte, 1024), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case data := <-b.written:
				if _, err := conn.Write(data); err != nil {
					return
				}
			case <-b.closed:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(data []byte) (int, error) {
	select {
	case b.written <- slices.Clone(data):
		return len(data), nil
	case <-b.closed:
		return 0, net.ErrClosed
	}
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Conn.Close()
}
