package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// With one waiter in each process, each release leaves the resource free for a process that is not
// in the queue and asks at once. With more, the next of the same process stands in the queue by
// then.
func TestGrantsFollowTheOrderOfArrival(t *testing.T) {
	server, during := testenv.OwnRedis(t), sized(time.Second, 10*time.Second)
	for _, waiters := range []int{processes, sized(20, 50)} {
		t.Run(fmt.Sprint(waiters), func(t *testing.T) {
			o, r, err := inOrder(t.Context(), server.Client(), jobOn(server, waiters), during)
			for tries := 1; tries < 3 && o.overtaken > 0; tries++ { // who is held up before it listens is passed over
				o, r, err = inOrder(t.Context(), server.Client(), jobOn(server, waiters), during)
			}
			require.NoError(t, err)
			fmt.Printf("\nOrder: %d waiters in %d processes, %v\n", waiters, processes, during)
			fmt.Printf("  %d grants, %d of them to a waiter in Redis's queue, which was up to %d long\n", o.grants, o.waited, o.longest)
			fmt.Printf("  %d grants past a waiter that stood before, %d waiters that lost their place\n", o.overtaken, o.dropped)
			fmt.Printf("  by the time of the call, the local lines included: at most %d later callers were served first\n", r.overtaken)
			require.Greater(t, o.waited, 20, "or the order was hardly tried")
			require.GreaterOrEqual(t, o.longest, processes-1, "all processes but the holder's stand in the queue")
			require.Zero(t, o.overtaken, "grants past a waiter that stood before")
			require.Positive(t, slices.Min(r.gaps), "no two holders at once")
		})
	}
}

// inOrder runs a load of ours and follows its queue, until before the waiters go home.
func inOrder(ctx context.Context, client *redis.Client, j job, during time.Duration) (*order, result, error) {
	o := newOrder(j.Resource)
	heard, err := o.follow(ctx, j.Addr, warmUp+during)
	if err != nil {
		return nil, result{}, err
	}
	r, err := measure(ctx, client, j, during)
	<-heard
	return o, r, err
}

// order follows Redis's queue for one resource command by command. MONITOR shows them in the one
// order in which Redis executed them, so it knows what no clock can tell: who stood where at each
// grant.
type order struct {
	queueKey, ownerKey string

	queue     []string // lease ids of those that wait, by arrival
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

// see takes a line of MONITOR: +1700000000.123456 [0 lua] "SET" "key" "value". Our words have no
// spaces in them.
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
		id, _, _ := strings.Cut(words[2], ":") // "<lease id>:<token>:<label>"
		o.grant(id)
	case command == "ZREM" && key == o.queueKey:
		before := len(o.queue)
		o.queue = slices.DeleteFunc(o.queue, func(id string) bool { return slices.Contains(words[2:], id) })
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

// Four lines as MONITOR prints them: b stands before c, and c is served first.
func TestAnOvertakingIsSeen(t *testing.T) {
	o := newOrder("a")
	for _, line := range []string{
		`+1.0 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "1" "b"`,
		`+1.1 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "2" "c"`,
		`+1.2 [0 lua] "ZADD" "lease:v1:{a}:queue" "NX" "3" "b"`,
		`+1.3 [0 lua] "SET" "lease:v1:{a}:owner" "c:1:worker" "PX" "10000"`,
	} {
		o.see(line)
	}
	require.Equal(t, []string{"b"}, o.queue)
	require.Equal(t, 1, o.overtaken)
}
