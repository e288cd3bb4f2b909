package lease

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"
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

// script is one Lua script, sent by its digest and in full only to a server that does not know it.
type script struct {
	name   string
	source string
	sha    string
}

func newScript(name, source string) script {
	source = commonLua + "\n" + source
	return script{name: name, source: source, sha: redis.NewScript(source).Hash()}
}

// call is one run of a script: what is sent, not yet what came back.
type call struct {
	script script
	keys   []string
	args   []any
}

func (c call) bySHA(ctx context.Context) *once  { return c.command(ctx, "evalsha", c.script.sha) }
func (c call) inFull(ctx context.Context) *once { return c.command(ctx, "eval", c.script.source) }

func (c call) command(ctx context.Context, verb, body string) *once {
	args := make([]any, 0, 3+len(c.keys)+len(c.args))
	args = append(args, verb, body, len(c.keys))
	for _, key := range c.keys {
		args = append(args, key)
	}
	cmd := redis.NewCmd(ctx, append(args, c.args...)...)
	cmd.SetFirstKeyPos(3)
	return &once{cmd}
}

// once is a command that the client library does not send again by itself. It would do so after a broken connection, and
// the second answer would hide what became of the first: a release that was carried out would come back as "gone". Whether to
// try again is decided here, where the difference is known.
type once struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (*once) NoRetry() bool { return true }

// result is what came back of one call.
type result struct {
	reply reply
	err   error
}

// run sends one call.
func run(ctx context.Context, client redis.UniversalClient, c call) (reply, error) {
	r := runAll(ctx, client, []call{c})[0]
	return r.reply, r.err
}

// runAll sends calls in one round trip (on a Cluster, one per node).
func runAll(ctx context.Context, client redis.UniversalClient, calls []call) []result {
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
func runAndWait(ctx context.Context, client redis.UniversalClient, c call, replicas int, within time.Duration) (reply, int64, error) {
	type confirmed struct {
		result
		replicas int64
	}
	got, err := bounded(ctx, func() confirmed {
		wait := redis.NewIntCmd(ctx, "wait", replicas, within.Milliseconds())
		results := send(ctx, client, []call{c}, wait)
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

// bounded returns when f does or ctx ends, whichever is first; in the second case the server may still act on what f has sent. (The
// client library honours a context only when told to, and is not ours to configure.)
func bounded[T any](ctx context.Context, f func() T) (T, error) {
	var none T
	if ctx.Err() != nil {
		return none, context.Cause(ctx) // never sent
	}
	answers := make(chan T, 1)
	go func() { answers <- f() }()
	select {
	case answer := <-answers:
		return answer, nil
	case <-ctx.Done():
		return none, unanswered(ctx, ctx.Err())
	}
}

// send sends scripts by digest, and once more in full those that the server does not know: it was restarted, replaced, or
// told to forget them. They were not run the first time, so this is no repetition. Commands to follow are sent behind either.
func send(ctx context.Context, client redis.UniversalClient, calls []call, follow ...redis.Cmder) []result {
	commands := make([]*once, len(calls))
	for i, c := range calls {
		commands[i] = c.bySHA(ctx)
	}
	process(ctx, client, commands, follow)
	var unknown []*once
	for i, c := range calls {
		if redis.HasErrorPrefix(commands[i].Err(), "NOSCRIPT") {
			commands[i] = c.inFull(ctx)
			unknown = append(unknown, commands[i])
		}
	}
	if len(unknown) > 0 {
		process(ctx, client, unknown, follow)
	}
	results := make([]result, len(calls))
	for i, c := range calls {
		results[i].reply, results[i].err = decode(ctx, c.script.name, commands[i].Cmd)
	}
	return results
}

// process leaves each command's outcome in the command.
func process(ctx context.Context, client redis.UniversalClient, commands []*once, follow []redis.Cmder) {
	if len(commands)+len(follow) == 1 {
		_ = client.Process(ctx, commands[0])
		return
	}
	pipe := client.Pipeline()
	for _, cmd := range commands {
		_ = pipe.Process(ctx, cmd)
	}
	for _, cmd := range follow {
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx)
}
