// Package faulty breaks one thing between a client and a real server, so that tests need no
// imitation of a server.
//
// [PostgresProxy] and [RedisProxy] read the protocol and decide the [Fate] of each message.
// [Redis] and [Breakpoint] sit in the client library instead and need no second connection.
// A general proxy that delays, limits or resets streams of bytes does not know which message it
// cuts, cannot answer in place of a server, and cannot deliver a request later; so these are our
// own.
package faulty

import (
	"net"
	"sync"
)

// Fate is what a proxy does to one message: a message of Postgres in either direction, or the call
// of a script in Redis.
type Fate int

// The fates of a message.
const (
	Pass     Fate = iota
	Cut           // both connections are closed; the message is not delivered
	CutHalf       // Postgres: both connections are closed after the first half of the message
	CutAfter      // both connections are closed after the message was delivered, and after Redis has acted on it
	Reset         // as Cut, but the client finds its connection reset
	Silence       // nothing is delivered from now on; the client's connection stays open
	Orphan        // Postgres: only the client's connection is closed; the server notices nothing

	HalfReply // Redis: the server acts on the call; the connection ends after the first half of the reply
	Hold      // Redis: the connection ends; the server sees the call at the next call of Deliver
	Answer    // Redis: the server never sees the call; the client gets the text of the verdict
	Garble    // Redis: the server acts on the call; the client gets the text of the verdict. Postgres: see AfterBytes
)

// set sets a field that mu guards.
func set[T any](mu *sync.Mutex, field *T, value T) {
	mu.Lock()
	defer mu.Unlock()
	*field = value
}

// judged has a judge, which mu guards also while it runs, decide what happens to a message. It
// passes if there is none.
func judged[M, V any](mu *sync.Mutex, judge *func(M) V, message M) (verdict V) {
	mu.Lock()
	defer mu.Unlock()
	if *judge != nil {
		verdict = (*judge)(message)
	}
	return verdict
}

// link is a client's connection and the one to the server behind it.
type link struct{ client, server net.Conn }

func (l link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// accept hands over each connection that is made, until the listener is closed.
func accept(listener net.Listener, serve func(client net.Conn)) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		serve(client)
	}
}

// reset cuts the link; the client finds its connection reset.
func (l link) reset() {
	_ = l.client.(*net.TCPConn).SetLinger(0)
	l.cut()
}
