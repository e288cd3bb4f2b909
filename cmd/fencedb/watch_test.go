package main

import (
	"bufio"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// watching is a command that goes on until it is interrupted.
type watching struct {
	*testing.T
	out, errOut chan string // lines
	interrupt   context.CancelFunc
	code        chan int
}

func (c *console) start(args ...string) *watching {
	c.Helper()
	ctx, interrupt := context.WithCancel(c.Context())
	w := &watching{c.T, make(chan string, 100), make(chan string, 100), interrupt, make(chan int, 1)}
	c.Cleanup(interrupt)
	out, errOut := w.pipe(w.out), w.pipe(w.errOut)
	if slices.Contains(args, "with") { // it ends processes that this one starts
		command, _ := c.process(args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(c.answer), out, errOut
		go func() {
			_ = command.Run()
			_, _ = out.Close(), errOut.Close()
			w.code <- command.ProcessState.ExitCode()
		}()
		return w
	}
	a := &app.State{In: strings.NewReader(c.answer), Out: out, ErrOut: errOut, Screen: c.screen, Watched: c.watched}
	go func() {
		code := run(ctx, a, append(append([]string{"fencedb"}, c.flags...), args...))
		_, _ = out.Close(), errOut.Close()
		w.code <- code
	}()
	return w
}

func (w *watching) pipe(lines chan string) *io.PipeWriter {
	r, out := io.Pipe()
	w.Cleanup(func() { _ = r.Close() })
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return out
}

// next is the next line that is no notice of a slow server, which a busy machine may cause.
func (w *watching) next(lines chan string) string {
	w.Helper()
	for {
		if line := w.line(lines); !strings.Contains(line, "s: waiting for ") {
			return line
		}
	}
}

func (w *watching) line(lines chan string) string {
	w.Helper()
	select {
	case line, more := <-lines:
		if !more {
			require.Fail(w, "it has ended", "exit code %d", <-w.code)
		}
		return line
	case <-time.After(2 * time.Minute): // only what hangs
		require.Fail(w, "no line")
	}
	return ""
}

// publishing is the world's issuer and a way to write, with the feed switched on. done returns once
// everything is published.
func (w *world) publishing() (i *lease.Issuer, write func(fencedb.Grant) error, done func()) {
	w.Helper()
	events := feed.New(w.redis, feed.Namespace(w.namespace), feed.Worker("worker-7"))
	w.Cleanup(func() { _ = events.Close(context.Background()) })
	i = newIssuer(w.T, w.redis, lease.Config{Namespace: w.namespace, Tracers: []lease.Tracer{events}})
	db := fencedb.With(w.pool, fencedb.Trace(events))
	write = func(g fencedb.Grant) error {
		asked := fencedb.NewGrant(g.Resource(), g.Token(), g.LeaseID(), fencedb.NoEnd)
		_, err := fencedb.Exec(w.Context(), db, asked, `INSERT INTO seats VALUES (1, 'Ann')`)
		return err
	}
	return i, write, func() { require.NoError(w, events.Close(w.Context())) }
}

// refusedOnce leaves the events of two leases and a stale write in the feed, and returns the
// tokens.
func (w *world) refusedOnce() (stale, stored int64) {
	w.Helper()
	i, write, done := w.publishing()
	first, err := i.Acquire(w.Context(), "seat:1", lease.NoWait())
	require.NoError(w, err)
	_, err = i.Acquire(w.Context(), "seat:1", lease.NoWait())
	require.ErrorIs(w, err, lease.ErrHeld)
	require.NoError(w, first.Release(w.Context()))
	second, err := i.Acquire(w.Context(), "seat:1", lease.NoWait())
	require.NoError(w, err)
	require.NoError(w, write(second))
	require.ErrorIs(w, write(first), fencedb.ErrStale)
	done()
	return first.Token(), second.Token()
}

func TestWatchTellsWhatHappenedAndLeavesQuietly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stale, stored := w.refusedOnce()

	watching := w.start("watch", "--since", "1h")

	var lines []string
	for range 6 {
		lines = append(lines, watching.next(watching.out))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`worker-7  granted    seat:1    ` + term.TokenText(stale) + `  for 5\d\.\ds`,
		`worker-7  held       seat:1 .* worker-8@host-7:4711 holds it`,
		`worker-7  released   seat:1    ` + term.TokenText(stale) + `  held for `,
		`worker-7  granted    seat:1    ` + term.TokenText(stored),
		`worker-7  committed  seat:1    ` + term.TokenText(stored),
		`worker-7  refused    seat:1    ` + term.TokenText(stale) + `  stale, ` + term.TokenText(stored) + ` is stored`,
	} {
		require.Regexp(t, want, all)
	}
	watching.interrupt()
	require.Equal(t, app.ExitDone, <-watching.code)
}

func TestWatchFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refusedOnce()

	watching := w.start("--json", "watch", "--since", "1h", "--kind", "released,refused")
	var seen []feed.Kind
	for range 2 {
		var e feed.Event
		w.decode("event", &e, watching.next(watching.out))
		seen = append(seen, e.Kind)
	}
	require.ElementsMatch(t, []feed.Kind{feed.Released, feed.Refused}, seen)

	other := w.start("--json", "watch", "table:", "--since", "1h")
	event := feed.New(w.redis, feed.Namespace(w.namespace))
	i := newIssuer(t, w.redis, lease.Config{Namespace: w.namespace, Tracers: []lease.Tracer{event}})
	_, err := i.Acquire(t.Context(), "table:12", lease.NoWait())
	require.NoError(t, err)
	require.NoError(t, event.Close(t.Context()))
	require.Contains(t, other.next(other.out), `"table:12"`)
}

func TestWatchFromNowOnSurvivesARestartOfRedis(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, "--appendonly", "yes")
	tell := func(resource string) {
		f := feed.New(server.Client())
		grants := []fencedb.Grant{fencedb.NewGrant(resource, 41, [16]byte{1}, fencedb.NoEnd)}
		f.TraceWriteEnd(t.Context(), fencedb.TraceEnd{
			TraceStart: fencedb.TraceStart{Op: fencedb.OpWrite, Grants: grants},
		})
		require.NoError(t, f.Close(t.Context()))
		require.Zero(t, f.Dropped())
	}
	tell("before:1")
	watching := newConsole(t, "--redis", "redis://"+server.Addr()).start("watch")
	awaitReader(t, server.Client())

	tell("seat:1")
	require.Contains(t, watching.next(watching.out), "seat:1")
	server.Kill()
	require.Contains(t, watching.next(watching.errOut), "Redis does not answer")
	server.Restart()
	tell("seat:2")
	require.Contains(t, watching.next(watching.out), "seat:2")
}

// awaitReader returns once somebody waits in XREAD.
func awaitReader(t *testing.T, client *redis.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, err := client.InfoMap(t.Context(), "clients").Result()
		return err == nil && n["Clients"]["blocked_clients"] != "0"
	}, time.Minute, time.Millisecond)
}

func TestWatchSaysHowToSwitchTheFeedOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	hint := w.start("watch")
	require.Contains(t, hint.next(hint.errOut), "no program has published any")
}

func TestWatchIsLeftWithoutAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	left, leave := context.WithCancel(t.Context())
	leave()
	a := &app.State{Out: io.Discard, ErrOut: io.Discard}
	require.Equal(t, app.ExitDone, run(left, a, append(append([]string{"fencedb"}, w.flags...), "watch")))
}
