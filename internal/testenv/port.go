package testenv

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that operating systems give to outgoing connections. A client
// that keeps dialling a dead server inside that range sooner or later gets the server's own port as
// its source, connects to itself, and the server cannot come back.
const (
	lowestPort  = 15000
	highestPort = 32000
)

const portAttempts = 20

// onFreePort calls start with a port that was free a moment ago, and with another one when start
// failed and the port turns out to be taken by then: between asking and binding lies a race that
// cannot be closed, only run again.
func onFreePort(ctx context.Context, start func(port int) error) error {
	failure := errors.New("found no free port on " + loopback)
	for range portAttempts {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if !portFree(port) {
			continue
		}
		failure = start(port)
		if failure == nil || ctx.Err() != nil || portFree(port) {
			return failure
		}
	}
	return failure
}

// portFree reports whether the port can be bound right now.
func portFree(port int) bool {
	listener, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

const loopback = "127.0.0.1"

func address(port int) string {
	return net.JoinHostPort(loopback, strconv.Itoa(port))
}

// listening reports whether somebody takes connections at the address.
func listening(addr string) bool {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
