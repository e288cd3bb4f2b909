package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/fencedb/fencedb/lease"
)

// order follows Redis's queue for one resource command by command. MONITOR shows them in the one order in which Redis executed
// them, so it knows what no clock can tell: who stood where at each grant.
type order struct {
	queueKey, ownerKey string

	queue     []string // calls that wait, by arrival
	grants    int
	waited    int // grants to somebody who stood in the queue
	overtaken int // grants to somebody who was not the first
	dropped   int // left the queue without a grant
	longest   int // the longest queue seen
}

func newOrder(resource string) *order {
	return &order{queueKey: lease.Key{Resource: resource, Field: "queue"}.String(), ownerKey: lease.Key{Resource: resource, Field: "owner"}.String()}
}

// follow listens for that long, or until ctx ends. Then heard is closed.
func (o *order) follow(ctx context.Context, addr string, during time.Duration) (heard chan struct{}, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(conn)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !lines.Scan() || lines.Text() != "+OK" {
		return nil, fmt.Errorf("MONITOR at %s: %q, %w", addr, lines.Text(), errors.Join(err, lines.Err(), conn.Close()))
	}
	ctx, stop := context.WithTimeout(ctx, during)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	heard = make(chan struct{})
	go func() {
		defer stop()
		defer close(heard)
		for lines.Scan() {
			o.see(lines.Text())
		}
	}()
	return heard, nil
}

// see takes a line of MONITOR: +1700000000.123456 [0 lua] "SET" "key" "value". Our words have no spaces in them.
func (o *order) see(line string) {
	_, command, _ := strings.Cut(line, "] ")
	words := strings.Fields(strings.ReplaceAll(command, `"`, ""))
	if len(words) < 3 {
		return
	}
	switch command, key := strings.ToUpper(words[0]), words[1]; {
	case command == "ZADD" && key == o.queueKey:
		o.arrive(words[len(words)-1])
	case command == "SET" && key == o.ownerKey:
		o.grant(words[2][strings.LastIndex(words[2], ":")+1:]) // "<lease id>:<token>:<call>"
	case command == "ZREM" && key == o.queueKey:
		before := len(o.queue)
		o.queue = slices.DeleteFunc(o.queue, func(call string) bool { return slices.Contains(words[2:], call) })
		o.dropped += before - len(o.queue)
	}
}

// arrive puts a waiter at the end, unless it stands there already: each asks more than once.
func (o *order) arrive(id string) {
	if !slices.Contains(o.queue, id) {
		o.queue = append(o.queue, id)
		o.longest = max(o.longest, len(o.queue))
	}
}

func (o *order) grant(id string) {
	o.grants++
	place := slices.Index(o.queue, id)
	if place < 0 {
		place = len(o.queue) // past everybody
	} else {
		o.queue = slices.Delete(o.queue, place, place+1)
		o.waited++
	}
	if place > 0 {
		o.overtaken++
	}
}
