package script

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func (c Call) bySHA(ctx context.Context) *single  { return c.command(ctx, "evalsha", c.Script.SHA) }
func (c Call) inFull(ctx context.Context) *single { return c.command(ctx, "eval", c.Script.Source) }

func (c Call) command(ctx context.Context, verb, body string) *single {
	args := make([]any, 0, 3+len(c.Keys)+len(c.Args))
	args = append(args, verb, body, len(c.Keys))
	for _, key := range c.Keys {
		args = append(args, key)
	}
	cmd := redis.NewCmd(ctx, append(args, c.Args...)...)
	cmd.SetFirstKeyPos(3)
	return &single{cmd}
}

// single is a command that the client library does not send again by itself. It would do so after a broken connection, and
// the second answer would hide what became of the first: a release that was carried out would come back as "gone". Whether to
// try again is decided where the difference is known.
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (*single) NoRetry() bool { return true }

// send makes the calls in one round trip (on a Cluster, one per node), and once more in full those whose script the server does not know:
// it was restarted, replaced, or told to forget them. They were not run the first time, so this is no repetition. Commands to
// follow are sent behind either. Each command has its own outcome.
func send(ctx context.Context, client redis.UniversalClient, calls []Call, follow ...redis.Cmder) []*redis.Cmd {
	commands := make([]*single, len(calls))
	for i, c := range calls {
		commands[i] = c.bySHA(ctx)
	}
	process(ctx, client, commands, follow)
	var unknown []*single
	for i, c := range calls {
		if redis.HasErrorPrefix(commands[i].Err(), "NOSCRIPT") {
			commands[i] = c.inFull(ctx)
			unknown = append(unknown, commands[i])
		}
	}
	if len(unknown) > 0 {
		process(ctx, client, unknown, follow)
	}
	answers := make([]*redis.Cmd, len(calls))
	for i, cmd := range commands {
		answers[i] = cmd.Cmd
	}
	return answers
}

// process leaves each command's outcome in the command.
func process(ctx context.Context, client redis.UniversalClient, commands []*single, follow []redis.Cmder) {
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
