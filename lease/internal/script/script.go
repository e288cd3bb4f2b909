// Package script runs the Lua scripts of the blocks beside the lease, by the rules of package lease: sent by digest, never
// sent again by the client library, answered or given up when the context says so, and read in one form.
package script

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease/internal/eval"
)

//go:embed common.lua
var commonLua string

// Script is one Lua script.
type Script struct{ eval.Script }

// New puts common.lua in front of the source.
func New(name, source string) Script { return Script{eval.New(name, commonLua, source)} }

// Run sends the script once, and a second time in full to a server that does not know it: that one has not run it the first time.
// It returns when the answer is there or ctx ends, whichever is first; in the second case the server may still act.
//
// The error is the cause of ctx if that was over before; [lease.ErrUnreachable] if it is unknown whether the script ran;
// [lease.ErrCorrupt] or an error that Redis answered otherwise.
func (s Script) Run(ctx context.Context, client redis.UniversalClient, keys []string, args ...any) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, context.Cause(ctx)
	}
	answer, answered := eval.Bounded(ctx, func() *redis.Cmd { return s.send(ctx, client, keys, args) })
	if !answered {
		return Reply{}, unanswered(ctx, ctx.Err())
	}
	return s.decode(ctx, answer)
}

// RunDirect is Run without a goroutine of its own, which is a good part of the time that a script takes. The client has to honour the
// deadline of ctx by itself; other ends of ctx it may not notice before that.
func (s Script) RunDirect(ctx context.Context, client redis.UniversalClient, keys []string, args ...any) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, context.Cause(ctx)
	}
	return s.decode(ctx, s.send(ctx, client, keys, args))
}

func (s Script) send(ctx context.Context, client redis.UniversalClient, keys []string, args []any) *redis.Cmd {
	return eval.Send(ctx, client, []eval.Call{{Script: s.Script, Keys: keys, Args: args}})[0]
}
