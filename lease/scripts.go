package lease

import (
	"context"
	_ "embed"

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

// runAll sends calls in one round trip (on a Cluster, one per node). It returns when the answers are there or ctx ends,
// whichever is first; in the second case the server may still act on them. (The client library honours a context only when
// told to, and is not ours to configure.)
func runAll(ctx context.Context, client redis.UniversalClient, calls []call) []result {
	if ctx.Err() != nil {
		return all(calls, context.Cause(ctx)) // never sent
	}
	answers := make(chan []result, 1)
	go func() { answers <- send(ctx, client, calls) }()
	select {
	case results := <-answers:
		return results
	case <-ctx.Done():
		return all(calls, unanswered(ctx, ctx.Err()))
	}
}

func all(calls []call, err error) []result {
	results := make([]result, len(calls))
	for i := range results {
		results[i].err = err
	}
	return results
}

// send sends scripts by digest, and once more in full those that the server does not know: it was restarted, replaced, or
// told to forget them. They were not run the first time, so this is no repetition.
func send(ctx context.Context, client redis.UniversalClient, calls []call) []result {
	commands := make([]*once, len(calls))
	for i, c := range calls {
		commands[i] = c.bySHA(ctx)
	}
	process(ctx, client, commands)
	var unknown []*once
	for i, c := range calls {
		if redis.HasErrorPrefix(commands[i].Err(), "NOSCRIPT") {
			commands[i] = c.inFull(ctx)
			unknown = append(unknown, commands[i])
		}
	}
	process(ctx, client, unknown)

	results := make([]result, len(calls))
	for i, c := range calls {
		results[i].reply, results[i].err = decode(ctx, c.script.name, commands[i].Cmd)
	}
	return results
}

// process leaves each command's outcome in the command.
func process(ctx context.Context, client redis.UniversalClient, commands []*once) {
	switch len(commands) {
	case 0:
	case 1:
		_ = client.Process(ctx, commands[0])
	default:
		pipe := client.Pipeline()
		for _, cmd := range commands {
			_ = pipe.Process(ctx, cmd)
		}
		_, _ = pipe.Exec(ctx)
	}
}
