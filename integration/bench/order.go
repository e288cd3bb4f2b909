package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

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
	furthest  int // how many stood before the grantee at worst
	dropped   int // left the queue without a grant
	longest   int // the longest queue seen
}

func newOrder(resource string) *order {
	return &order{queueKey: lease.Key{Resource: resource, Field: "queue"}.String(), ownerKey: lease.Key{Resource: resource, Field: "owner"}.String()}
}

// follow starts to listen; stop ends that and returns once what was heard so far is in the order.
func (o *order) follow(ctx context.Context, addr string) (stop func() error, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(conn)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !lines.Scan() || lines.Text() != "+OK" {
		_ = conn.Close()
		return nil, fmt.Errorf("MONITOR at %s: %q, %w", addr, lines.Text(), errors.Join(err, lines.Err()))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines.Scan() {
			o.see(parse(lines.Text()))
		}
	}()
	return func() error {
		err := conn.Close()
		<-done
		return err
	}, nil
}

// parse returns the words of a command: +1700000000.123456 [0 lua] "SET" "key" "value". Ours have no spaces in them.
func parse(line string) []string {
	_, command, _ := strings.Cut(line, "] ")
	words := strings.Fields(command)
	for n, w := range words {
		words[n] = strings.Trim(w, `"`)
	}
	return words
}

func (o *order) see(words []string) {
	if len(words) < 3 {
		return
	}
	switch command, key := strings.ToUpper(words[0]), words[1]; {
	case command == "ZADD" && key == o.queueKey:
		o.arrive(words[len(words)-1])
	case command == "SET" && key == o.ownerKey:
		o.grant(words[2][strings.LastIndex(words[2], ":")+1:]) // "<lease id>:<token>:<call>"
	case command == "ZREM" && key == o.queueKey:
		for _, call := range words[2:] {
			o.drop(call)
		}
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
		o.furthest = max(o.furthest, place)
	}
}

func (o *order) drop(id string) {
	if place := slices.Index(o.queue, id); place >= 0 {
		o.queue = slices.Delete(o.queue, place, place+1)
		o.dropped++
	}
}
