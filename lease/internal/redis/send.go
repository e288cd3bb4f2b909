package protocol

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Call prepares one run of the script.
func (s Script) Call(keys []string, args ...any) Call { return Call{Script: s, Keys: keys, Args: args} }

// Call is made by [Script.Call].
type Call struct {
	Script Script
	Keys   []string
	Args   []any

	// Abandoned is called when ctx ends before the answer is there, and what it returns when the
	// answer comes, or that there is none. May be nil.
	Abandoned func() (ended func())
}

// Result is what came back of one call.
type Result struct {
	Reply Reply
	Err   error
}

// Run sends the call once. It returns when the answer is there or ctx ends, whichever is first; in
// the second case the server may still act.
//
// The error is the cause of ctx if that was over before; [ErrUnreachable] if it is unknown whether
// the script ran; otherwise what [Failed] makes of Redis's answer, [ErrCorrupt] or [ErrProtocol].
func (c Call) Run(ctx context.Context, client redis.UniversalClient) (Reply, error) {
	r := RunAll(ctx, client, []Call{c})[0]
	return r.Reply, r.Err
}

// RunAll sends calls in one round trip (on a Cluster, one per node), each with an outcome of its
// own.
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

// RunAndWait sends the call and, on the same connection, WAIT, which counts the replicas that have
// its writes.
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

// Ask is Query with as many attempts as [Persist] makes within [Patience]. It is for scripts that
// do no harm when they run twice.
func Ask[T any](ctx context.Context, client redis.UniversalClient, c Call, decode func(Reply) (T, error)) (answer T, err error) {
	err = Persist(ctx, Patience, func(ctx context.Context) (err error) {
		answer, err = Query(ctx, client, c, decode)
		return err
	})
	return answer, err
}

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

// single is a command that the client library does not send again by itself. It would do so after a
// broken connection, and the second answer would hide the outcome of the first: a release that was
// carried out would come back as "gone".
type single struct{ *redis.Cmd }

// NoRetry implements [redis.Cmder].
func (*single) NoRetry() bool { return true }

// send makes the calls in one round trip (on a Cluster, one per node). It sends those in full whose
// script the server does not know, because it was restarted, replaced, or told to forget scripts;
// they did not run the first time. The commands in follow are sent behind the calls. Each command
// has its own outcome.
func send(ctx context.Context, client redis.UniversalClient, calls []Call, follow ...redis.Cmder) []*redis.Cmd {
	commands := make([]*single, len(calls))
	for i, c := range calls {
		commands[i] = c.bySHA(ctx)
	}
	process(ctx, client, commands, follow)
	var unknown []*single
	for i, c := range calls {
		if err := commands[i].Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
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
