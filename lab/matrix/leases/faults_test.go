package leases

import (
	"context"
	"errors"
	"time"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// leaseFault is what happens to the requests of one script.
type leaseFault struct {
	name    string
	verdict faulty.Verdict
	times   int // how many requests it strikes; 0: all of them
	stops   bool

	// want is the error while the fault lasts. A call sends a request again whose failure is passing.
	want     error
	passing  bool
	either   bool // the call may also succeed
	followed bool // a Cluster's client sends the request again by itself
}

// outlasted is true of a fault that ends before the attempts of a call do.
func (f leaseFault) outlasted() bool { return f.want == nil || f.passing && f.times > 0 }

// errAny stands for an error that has no name.
var errAny = errors.New("an error")

var leaseFaults = faultTable()

func faultTable() []leaseFault {
	lost := func(name string, fate faulty.Fate) []leaseFault {
		f := leaseFault{name: name, verdict: faulty.Verdict{Fate: fate}, want: lease.ErrUnreachable, passing: true}
		return f.onceAndAlways()
	}
	answers := func(name, rest string, want error, passing bool) []leaseFault {
		text := name + " " + rest
		if name == otherRefusal {
			text = rest
		}
		f := leaseFault{name: name, verdict: faulty.Verdict{Fate: faulty.Answer, Text: "-" + text + "\r\n"}, want: want, passing: passing}
		f.followed = name == "MOVED" || name == "ASK" || name == "READONLY"
		return f.onceAndAlways()
	}
	garble := func(name, text string, want error, passing bool) []leaseFault {
		f := leaseFault{name: name, verdict: faulty.Verdict{Fate: faulty.Garble, Text: text}, want: want, passing: passing}
		return f.onceAndAlways()
	}
	table := []leaseFault{{name: "none"}}
	for _, some := range [][]leaseFault{
		lost("reply lost", faulty.CutAfter),
		lost("half a reply", faulty.HalfReply),
		lost("request lost", faulty.Cut),
		lost("reset", faulty.Reset),
		{{name: "late once", verdict: faulty.Verdict{Fate: faulty.Hold}, times: 1, want: lease.ErrUnreachable, passing: true}},
		{{name: "hang once", verdict: faulty.Verdict{Fate: faulty.Silence}, times: 1, want: lease.ErrUnreachable, passing: true, either: true},
			{name: "hang always", verdict: faulty.Verdict{Fate: faulty.Silence}, want: lease.ErrUnreachable},
			{name: "stopped", stops: true, want: lease.ErrUnreachable}},
		answers("MOVED", "1 "+faulty.Here, &lease.RefusedError{Code: "CLUSTERDOWN"}, true),
		answers("ASK", "1 "+faulty.Here, &lease.RefusedError{Code: "CLUSTERDOWN"}, true),
		answers("TRYAGAIN", "Multiple keys request during rehashing of slot", &lease.RefusedError{Code: "CLUSTERDOWN"}, true),
		answers("CLUSTERDOWN", "The cluster is down", &lease.RefusedError{Code: "CLUSTERDOWN"}, true),
		answers("READONLY", "You can't write against a read only replica.", &lease.RefusedError{Code: "READONLY"}, true),
		answers("MASTERDOWN", "Link with MASTER is down", &lease.RefusedError{Code: "READONLY"}, true),
		answers("LOADING", "Redis is loading the dataset in memory", &lease.RefusedError{Code: "LOADING"}, true),
		answers("BUSY", "Redis is busy running a script.", &lease.RefusedError{Code: "BUSY"}, true),
		answers("NOREPLICAS", "Not enough good replicas to write.", &lease.RefusedError{Code: "NOREPLICAS"}, false),
		answers("MISCONF", "Redis is configured to save RDB snapshots", &lease.RefusedError{Code: "MISCONF"}, false),
		answers("OOM", "command not allowed when used memory > 'maxmemory'.", &lease.RefusedError{Code: "OOM"}, false),
		answers("NOPERM", "this user has no permissions", &lease.RefusedError{Code: "NOPERM"}, false),
		answers("NOAUTH", "Authentication required.", &lease.RefusedError{Code: "NOPERM"}, false),
		answers("WRONGPASS", "invalid username-password pair", &lease.RefusedError{Code: "NOPERM"}, false),
		{{name: "NOSCRIPT once", verdict: faulty.Verdict{Fate: faulty.Answer, Text: "-NOSCRIPT No matching script.\r\n"}, times: 1},
			{name: "NOSCRIPT always", verdict: faulty.Verdict{Fate: faulty.Answer, Text: "-NOSCRIPT No matching script.\r\n"}, want: errAny}},
		answers(otherRefusal, "WONDER what this is", errAny, false),
		garble("unknown answer", "*1\r\n$6\r\nwonder\r\n", lease.ErrProtocol, false),
		garble("a number for an answer", ":1\r\n", lease.ErrProtocol, false),
		garble("nil for an answer", "_\r\n", lease.ErrProtocol, false),
		garble("not the protocol", "wonder\r\n", lease.ErrUnreachable, true),
	} {
		table = append(table, some...)
	}
	return table
}

func (f leaseFault) onceAndAlways() []leaseFault {
	once, always := f, f
	once.name, once.times = f.name+" once", 1
	always.name = f.name + " always"
	return []leaseFault{once, always}
}

// otherRefusal is one that Redis may have some day.
const otherRefusal = "any other refusal"

// ending is when the caller's context ends.
type ending struct {
	name  string
	begin func(c *leaseCell) context.Context
}

const deadline = 150 * time.Millisecond

var endings = []ending{
	{"no end", func(c *leaseCell) context.Context { return context.Background() }},
	{"before", func(c *leaseCell) context.Context {
		ctx := c.cancelled()
		c.over()
		return ctx
	}},
	{"in flight", func(c *leaseCell) context.Context { // when the request has arrived, before anything happens to it
		ctx := c.cancelled()
		c.arrived = c.over
		return ctx
	}},
	{"backing off", func(c *leaseCell) context.Context { // when it has happened
		ctx := c.cancelled()
		c.struck = c.over
		return ctx
	}},
	{"deadline", func(c *leaseCell) context.Context {
		c.deadline = time.Now().Add(deadline)
		ctx, cancel := context.WithDeadline(context.Background(), c.deadline)
		c.Cleanup(cancel)
		return ctx
	}},
	{"queued", func(c *leaseCell) context.Context { // when it waits
		ctx := c.cancelled()
		c.queued = c.over
		return ctx
	}},
	{"after", func(c *leaseCell) context.Context {
		ctx := c.cancelled()
		c.returned = c.over
		return ctx
	}},
}
