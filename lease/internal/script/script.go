// Package script runs the Lua scripts of the blocks beside the lease, by the rules of package lease: sent by digest, never
// sent again by the client library, answered or given up when the context says so, and read in one form.
package script

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

//go:embed common.lua
var commonLua string

// Script is one Lua script.
type Script struct {
	name   string
	source string
	sha    string
}

// New puts common.lua in front of the source.
func New(name, source string) Script {
	source = commonLua + "\n" + source
	return Script{name: name, source: source, sha: redis.NewScript(source).Hash()}
}

// Run sends the script once, and a second time in full to a server that does not know it: that one has not run it the first time.
// It returns when the answer is there or ctx ends, whichever is first; in the second case the server may still act.
//
// The error is the cause of ctx if that was over before; [lease.ErrUnreachable] if it is unknown whether the script ran;
// [lease.ErrCorrupt] or an error that Redis answered otherwise.
func (s Script) Run(ctx context.Context, client redis.UniversalClient, keys []string, args ...any) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, context.Cause(ctx)
	}
	answer := make(chan *redis.Cmd, 1)
	go func() { answer <- s.send(ctx, client, keys, args) }() // the client library does not honour a context by itself
	select {
	case cmd := <-answer:
		return s.decode(ctx, cmd)
	case <-ctx.Done():
		return Reply{}, unanswered(ctx, ctx.Err())
	}
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
	cmd := command(ctx, "evalsha", s.sha, keys, args)
	if err := client.Process(ctx, cmd); redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = command(ctx, "eval", s.source, keys, args)
		_ = client.Process(ctx, cmd) // the command keeps its error
	}
	return cmd.Cmd
}

func command(ctx context.Context, verb, body string, keys []string, args []any) single {
	words := make([]any, 0, 3+len(keys)+len(args))
	words = append(words, verb, body, len(keys))
	for _, key := range keys {
		words = append(words, key)
	}
	cmd := redis.NewCmd(ctx, append(words, args...)...)
	cmd.SetFirstKeyPos(3)
	return single{cmd}
}

// single is a command that the client library does not send again by itself: whether that is harmless is known here only.
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (single) NoRetry() bool { return true }
