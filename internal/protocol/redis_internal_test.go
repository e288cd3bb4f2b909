package protocol

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestNoAnswerIsReadable(t *testing.T) {
	for bound, text := range map[time.Duration]string{
		246142577: "246ms", time.Second: "1s", 400 * time.Microsecond: "400µs",
	} {
		require.ErrorContains(t, NoAnswer(bound), "within "+text)
	}
}

func TestNews(t *testing.T) {
	for message, want := range map[string]News{
		"free me":       {ID: "me"},
		"look me 500":   {ID: "me", Look: 500 * time.Millisecond},
		"look me":       {ID: "me"},
		"look me x":     {ID: "me"},
		"look me 0":     {ID: "me"},
		"look me 500 x": {ID: "me"},
		"freed me 500":  {ID: "me"},
		"":              {},
		"free":          {},
		" ":             {},
	} {
		require.Equal(t, want, ReadNews(message), message)
	}
}

func TestAnAttemptWithoutAnAnswerDoesNotHideWhatRedisSaid(t *testing.T) {
	for name, attempts := range map[string]func(context.Context, func(context.Context) error) error{
		"Ask": func(ctx context.Context, attempt func(context.Context) error) error {
			client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer client.Close()
			client.AddHook(attempted(attempt))
			_, err := Ask(ctx, Over(client), 200*time.Millisecond, Script{}.Call(1, "key"), Only("done"))
			return err
		},
		"Insist": func(ctx context.Context, attempt func(context.Context) error) error {
			return Insist(ctx, 200*time.Millisecond, nil, func(a Attempt) error {
				ctx, cancel := Within(ctx, a.Most)
				defer cancel()
				return Failed(ctx, "test", attempt(ctx))
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := Within(t.Context(), 200*time.Millisecond)
				defer cancel()
				var n atomic.Int32
				err := attempts(ctx, func(ctx context.Context) error {
					if n.Add(1) == 1 {
						return answer{errors.New("BUSY Redis is busy running a script")}
					}
					<-ctx.Done()
					return ctx.Err()
				})
				require.Greater(t, n.Load(), int32(1))
				require.ErrorIs(t, err, ErrUnreachable)
				require.True(t, IsRefused(err, Busy))
			})
		})
	}
}

// attempted is a client that makes a request so.
type attempted func(ctx context.Context) error

func (attempted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a attempted) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := a(ctx)
		cmd.SetErr(err)
		return err
	}
}

func (a attempted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// requestOf is a request that was handed over.
func requestOf(ctx context.Context, word string) *request {
	return &request{ctx: ctx, end: time.Now().Add(time.Hour), call: Script{}.Call(1, "key", word), answered: make(chan struct{})}
}

// answering is a server that answers each script with its first argument, and notes what it was
// sent at once.
type answering struct {
	batches [][]string
	context context.Context         // of the latest
	fails   func(word string) error // nil if none does
}

func (*answering) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return a.take(ctx, []redis.Cmder{cmd}) }
}

func (a *answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return a.take
}

func (a *answering) take(ctx context.Context, cmds []redis.Cmder) (err error) {
	var batch []string
	for _, cmd := range cmds {
		word := cmd.Args()[beforeKeys+1].(string)
		batch = append(batch, word)
		if a.fails != nil {
			err = a.fails(word)
		}
		cmd.(*single).SetVal([]any{word})
	}
	a.batches, a.context = append(a.batches, batch), ctx
	return err
}

func TestCallsOfSeveralGoroutinesTravelTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := new(answering)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(server)
		s := Over(client)
		words := []string{"a", "b", "c", "d"}
		var bounds []context.Context
		var requests []*request
		for n, word := range words {
			ctx, stop := Within(t.Context(), time.Duration(n+1)*time.Second)
			defer stop()
			if word == "b" {
				stop()
			}
			bounds = append(bounds, ctx)
			r := requestOf(ctx, word)
			r.end = time.Now().Add(time.Duration(n+1) * time.Second)
			requests = append(requests, r)
		}
		s.waiting, s.underWay = requests, len(requests)
		s.sendWaiting()
		for n, r := range requests {
			<-r.answered
			if words[n] == "b" {
				require.Nil(t, r.command.Cmd, "nobody waits for it any more, so it is not sent")
				continue
			}
			answer, err := decode(bounds[n], "test", r.command.Cmd)
			require.NoError(t, err)
			require.Equal(t, words[n], answer.Word, "each has its own answer")
		}
		end, _ := server.context.Deadline()
		require.Equal(t, time.Now().Add(4*time.Second), end, "the time of one is not over for all")

		answer, err := Script{}.Call(1, "key", "e").Run(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, "e", answer.Word)
		_, err = Script{}.Call(1, "key", "f").Run(bounds[1], s)
		require.ErrorIs(t, err, context.Canceled)

		server.fails = func(string) error {
			server.fails = nil
			s.waiting, s.underWay = requests[:1], s.underWay+1 // in whose company it would travel
			return io.ErrUnexpectedEOF
		}
		_, err = Ask(t.Context(), s, time.Second, Script{}.Call(1, "key", "g"), Only("g"))
		require.NoError(t, err)
		require.Equal(t, [][]string{{"a", "c", "d"}, {"e"}, {"g"}, {"g"}}, server.batches)
		s.underWay--
		require.Zero(t, s.underWay)
	})
}

// learning is a server that does not know the script with the word "new" yet, and takes its source
// in slowly.
type learning struct {
	answering
	slow chan struct{}
}

// answer is an error that Redis answers.
type answer struct{ error }

func (answer) RedisError() {}

func (l *learning) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "eval" {
			<-l.slow
		}
		return l.answering.ProcessHook(next)(ctx, cmd)
	}
}

func (l *learning) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := l.take(ctx, cmds)
		for _, cmd := range cmds {
			if cmd.Args()[beforeKeys+1] == "new" {
				cmd.SetErr(answer{errors.New("NOSCRIPT No matching script")})
			}
		}
		return err
	}
}

func TestNobodyWaitsForTheScriptOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &learning{slow: make(chan struct{})}
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer client.Close()
		client.AddHook(server)
		s := Over(client)
		for _, word := range []string{"known", "new", "too"} {
			s.waiting = append(s.waiting, requestOf(t.Context(), word))
		}
		requests := slices.Clone(s.waiting)
		s.underWay = len(requests)
		learn := sync.OnceFunc(func() { close(server.slow) })
		defer learn()
		go s.sendWaiting()
		synctest.Wait()
		require.Equal(t, 1, s.underWay)
		<-requests[0].answered
		<-requests[2].answered
		learn()
		<-requests[1].answered
		for n, want := range []string{"known", "new", "too"} {
			answer, err := decode(t.Context(), "test", requests[n].command.Cmd)
			require.NoError(t, err)
			require.Equal(t, want, answer.Word)
		}
		require.Zero(t, s.underWay)
		require.Equal(t, [][]string{{"known", "new", "too"}, {"new"}}, server.batches)
	})
}

// whose is a server that notes whether the goroutine of a test has sent a request.
type whose struct {
	answering
	mine bool
}

func (w *whose) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.mine = bytes.Contains(debug.Stack(), []byte("protocol.sendsItself("))
		return w.answering.ProcessHook(next)(ctx, cmd)
	}
}

//go:noinline
func sendsItself(ctx context.Context, s *Sender, here bool) error {
	call := Script{}.Call(1, "key", "word")
	call.Here = here
	_, err := Query(ctx, s, time.Second, call, Only("word"))
	return err
}

// A goroutine of its own and two wake-ups are what it costs to be able to leave a request.
func TestACallWhoseContextCannotEndIsSentByItsCaller(t *testing.T) {
	cancellable, cancel := context.WithCancel(context.Background())
	defer cancel()
	timed, cancelTimed := context.WithTimeout(context.Background(), time.Hour)
	defer cancelTimed()
	for name, c := range map[string]struct {
		ctx       context.Context
		here      bool
		unbounded bool
		pool      int // 4 if 0
		underWay  int
		want      bool
	}{
		"it cannot end":                           {ctx: context.Background(), want: true},
		"it has values":                           {ctx: context.WithValue(context.Background(), t, 1), want: true},
		"only the issuer ends it":                 {ctx: cancellable, here: true, want: true},
		"its caller may cancel":                   {ctx: cancellable},
		"it has a deadline":                       {ctx: timed},
		"the client does not end with a context":  {ctx: context.Background(), unbounded: true},
		"it would wait for a connection":          {ctx: context.Background(), underWay: 4},
		"so many are quicker in one pipeline":     {ctx: context.Background(), pool: 100, underWay: 8},
		"few are under way":                       {ctx: context.Background(), pool: 100, underWay: 7, want: true},
		"there is one connection that nobody has": {ctx: context.Background(), underWay: 3, want: true},
	} {
		server := new(whose)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: !c.unbounded, PoolSize: cmp.Or(c.pool, 4)})
		client.AddHook(server)
		s := Over(client)
		s.underWay = c.underWay
		require.NoError(t, sendsItself(c.ctx, s, c.here), name)
		require.Equal(t, c.want, server.mine, name)
		require.Equal(t, c.underWay, s.underWay, name)
		require.NoError(t, client.Close())
	}
}

// Such as one whose client has no connection left and waits for one for longer.
func TestACallThatItsCallerSendsEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
		defer client.Close()
		client.AddHook(waits{new(answering)})
		began := time.Now()
		err := sendsItself(context.Background(), Over(client), false)
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorContains(t, err, "no answer from 127.0.0.1:1 within 1s")
		require.Equal(t, time.Second, time.Since(began))
	})
}

// waits is a client that waits for a connection.
type waits struct{ *answering }

func (waits) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

// The client waits for all servers of a pipeline: one that hangs would hold up calls to the others.
func TestCallsToAClusterTravelAlone(t *testing.T) {
	for shares, client := range map[bool]redis.UniversalClient{
		true:  redis.NewClient(&redis.Options{}),
		false: redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
	} {
		require.Equal(t, shares, Over(client).shares)
		require.NoError(t, client.Close())
	}
}

func TestACallThatHasEndedIsNotSent(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		waiting string // "e" has ended
		sent    [][]string
	}{
		{"e", nil},
		{"w", [][]string{{"w"}}},
		{"ew", [][]string{{"w"}}},
		{"ee", nil},
		{"wew", [][]string{{"w", "w"}}},
	} {
		server := new(answering)
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		client.AddHook(server)
		s := Over(client)
		var requests []*request
		for _, word := range strings.Split(c.waiting, "") {
			r := requestOf(t.Context(), word)
			if word == "e" {
				r.ctx = over
			}
			requests = append(requests, r)
		}
		s.underWay = len(requests)
		s.send(requests)
		require.Equal(t, c.sent, server.batches, c.waiting)
		require.Zero(t, s.underWay)
		for _, r := range requests {
			<-r.answered
		}
		require.NoError(t, client.Close())
	}
}
