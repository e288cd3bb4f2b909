package lease

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease/internal/eval"
)

// The scripts are the protocol; docs and clients in other languages read the same files.
var (
	//go:embed scripts/common.lua
	commonLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/extend.lua
	extendLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/withdraw.lua
	withdrawLua string
	//go:embed scripts/verify.lua
	verifyLua string
	//go:embed scripts/revoke.lua
	revokeLua string
	//go:embed scripts/raise.lua
	raiseLua string
	//go:embed scripts/regrant.lua
	regrantLua string
	//go:embed scripts/confirm.lua
	confirmLua string
	//go:embed scripts/inspect.lua
	inspectLua string
)

var (
	acquireScript  = newScript("acquire", acquireLua)
	extendScript   = newScript("extend", extendLua)
	releaseScript  = newScript("release", releaseLua)
	withdrawScript = newScript("withdraw", withdrawLua)
	verifyScript   = newScript("verify", verifyLua)
	revokeScript   = newScript("revoke", revokeLua)
	raiseScript    = newScript("raise", raiseLua)
	regrantScript  = newScript("regrant", regrantLua)
	confirmScript  = newScript("confirm", confirmLua)
	inspectScript  = newScript("inspect", inspectLua)
)

func newScript(name, source string) eval.Script { return eval.New(name, commonLua, source) }

func call(s eval.Script, keys []string, args []any) eval.Call {
	return eval.Call{Script: s, Keys: keys, Args: args}
}

// result is what came back of one call.
type result struct {
	reply reply
	err   error
}

// run sends one call.
func run(ctx context.Context, client redis.UniversalClient, c eval.Call) (reply, error) {
	r := runAll(ctx, client, []eval.Call{c})[0]
	return r.reply, r.err
}

// runAll sends calls in one round trip (on a Cluster, one per node).
func runAll(ctx context.Context, client redis.UniversalClient, calls []eval.Call) []result {
	results, err := bounded(ctx, func() []result { return send(ctx, client, calls) })
	if err != nil {
		results = make([]result, len(calls))
		for i := range results {
			results[i].err = err
		}
	}
	return results
}

// runAndWait sends one call and, on the same connection, WAIT, which counts the replicas that have its writes.
func runAndWait(ctx context.Context, client redis.UniversalClient, c eval.Call, replicas int, within time.Duration) (reply, int64, error) {
	type confirmed struct {
		result
		replicas int64
	}
	got, err := bounded(ctx, func() confirmed {
		wait := redis.NewIntCmd(ctx, "wait", replicas, within.Milliseconds())
		results := send(ctx, client, []eval.Call{c}, wait)
		if err := wait.Err(); err != nil && results[0].err == nil {
			results[0].err = failed(ctx, "wait", err)
		}
		return confirmed{results[0], wait.Val()}
	})
	if err != nil {
		return reply{}, 0, err
	}
	return got.reply, got.replicas, got.err
}

// bounded returns when f does or ctx ends, whichever is first; in the second case the server may still act on what f has sent.
func bounded[T any](ctx context.Context, f func() T) (T, error) {
	if ctx.Err() != nil {
		var none T
		return none, context.Cause(ctx) // never sent
	}
	answer, answered := eval.Bounded(ctx, f)
	if !answered {
		return answer, unanswered(ctx, ctx.Err())
	}
	return answer, nil
}

func send(ctx context.Context, client redis.UniversalClient, calls []eval.Call, follow ...redis.Cmder) []result {
	results := make([]result, len(calls))
	for i, cmd := range eval.Send(ctx, client, calls, follow...) {
		results[i].reply, results[i].err = decode(ctx, calls[i].Script.Name, cmd)
	}
	return results
}
