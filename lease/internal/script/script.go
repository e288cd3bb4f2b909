// Package script runs the Lua scripts of leases and of the blocks beside them, by one set of rules: sent by digest, in full to a server
// that does not know them, never a second time by the client library's own choice, answered or given up when the context says
// so, read in one form, and with one error for each way to fail.
//
// The errors are those of package lease, which exports and documents them; they are made here because all who run scripts need
// them, and package lease is one of those.
package script

import (
	"context"
	_ "embed"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// What scripts share. Each is put in front of those that use it, in this order.
var (
	//go:embed common.lua
	Common string // for all
	//go:embed holder.lua
	Holder string // tokens and calls
	//go:embed queue.lua
	Queue string // those who wait
)

// Script is one Lua script.
type Script struct {
	Name   string
	Source string
	SHA    string
}

// New puts the sources behind each other.
func New(name string, sources ...string) Script {
	source := strings.Join(sources, "\n")
	return Script{Name: name, Source: source, SHA: redis.NewScript(source).Hash()}
}

// Call is one run of the script: what is sent, not yet what came back.
func (s Script) Call(keys []string, args ...any) Call { return Call{Script: s, Keys: keys, Args: args} }

// Call is made by [Script.Call].
type Call struct {
	Script Script
	Keys   []string
	Args   []any

	// Abandoned is called when ctx ends before the answer is there, and what it returns when the answer comes, or that
	// there is none. May be nil.
	Abandoned func() (ended func())
}

// Result is what came back of one call.
type Result struct {
	Reply Reply
	Err   error
}

// Run sends the call once. It returns when the answer is there or ctx ends, whichever is first; in the second case the server may
// still act.
//
// The error is the cause of ctx if that was over before; [ErrUnreachable] if it is unknown whether the script ran; otherwise
// what [Failed] makes of Redis's answer, [ErrCorrupt] or [ErrProtocol].
func (c Call) Run(ctx context.Context, client redis.UniversalClient) (Reply, error) {
	r := RunAll(ctx, client, []Call{c})[0]
	return r.Reply, r.Err
}

// RunAll sends calls in one round trip (on a Cluster, one per node), each with an outcome of its own.
func RunAll(ctx context.Context, client redis.UniversalClient, calls []Call) []Result {
	results, err := Bounded(ctx, func() []Result { return run(ctx, client, calls) }, whenAbandoned(calls)...)
	if err != nil {
		results = make([]Result, len(calls))
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}

func whenAbandoned(calls []Call) (all []func() (ended func())) {
	for _, c := range calls {
		if c.Abandoned != nil {
			all = append(all, c.Abandoned)
		}
	}
	return all
}

// RunAndWait sends the call and, on the same connection, WAIT, which counts the replicas that have its writes.
func (c Call) RunAndWait(ctx context.Context, client redis.UniversalClient, replicas int, within time.Duration) (Reply, int64, error) {
	type confirmed struct {
		Result
		replicas int64
	}
	got, err := Bounded(ctx, func() confirmed {
		wait := redis.NewIntCmd(ctx, "wait", replicas, within.Milliseconds())
		r := run(ctx, client, []Call{c}, wait)[0]
		if err := wait.Err(); err != nil && r.Err == nil {
			r.Err = Failed(ctx, "wait", err)
		}
		return confirmed{r, wait.Val()}
	}, whenAbandoned([]Call{c})...)
	if err != nil {
		return Reply{}, 0, err
	}
	return got.Reply, got.replicas, got.Err
}

func run(ctx context.Context, client redis.UniversalClient, calls []Call, follow ...redis.Cmder) []Result {
	results := make([]Result, len(calls))
	for i, cmd := range send(ctx, client, calls, follow...) {
		results[i].Reply, results[i].Err = decode(ctx, calls[i].Script.Name, cmd)
	}
	return results
}

// Query makes one attempt and decodes its reply.
func Query[T any](ctx context.Context, client redis.UniversalClient, c Call, decode func(Reply) (T, error)) (T, error) {
	r, err := c.Run(ctx, client)
	if err != nil {
		var none T
		return none, err
	}
	return decode(r)
}

// Ask is Query with as many attempts as [Persist] makes within [Patience]. It is for scripts that do no harm when they
// run twice.
func Ask[T any](ctx context.Context, client redis.UniversalClient, c Call, decode func(Reply) (T, error)) (answer T, err error) {
	err = Persist(ctx, Patience, func(ctx context.Context) (err error) {
		answer, err = Query(ctx, client, c, decode)
		return err
	})
	return answer, err
}
