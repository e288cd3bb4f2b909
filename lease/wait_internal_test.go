package lease

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
)

func newLines() *lines {
	return &lines{subscribe: func(string, string) *subscription { return nil }, byChannel: make(map[string]*line)}
}

func unheard(context.Context) {}

// A place can come to the front at the moment its owner gives up. Then the turn must pass on, or
// the line stands still for ever.
func TestATurnThatComesTooLatePassesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			ls := newLines()
			first, err := ls.join(t.Context(), "a", unheard)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			second := make(chan error)
			go func() {
				turn, err := ls.join(ctx, "a", unheard)
				if err == nil {
					turn.leave()
				}
				second <- err
			}()
			synctest.Wait()
			cancel()
			first.leave()
			if err := <-second; err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
			third, err := ls.join(t.Context(), "a", unheard)
			require.NoError(t, err)
			third.leave()
			time.Sleep(linger)
			synctest.Wait()
			require.Empty(t, ls.byChannel)
		}
	})
}

func TestJoinReportsTheCause(t *testing.T) {
	ls := newLines()
	front, err := ls.join(t.Context(), "a", unheard)
	require.NoError(t, err)
	cause := errors.New("the guest left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	_, err = ls.join(ctx, "a", unheard)
	require.ErrorIs(t, err, cause)
	front.leave()
}

func stays() bool { return false }

// A resource under contention empties its line at each turn, and must not subscribe anew at each.
func TestALineThatHasEmptiedKeepsItsSubscriptionForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ls := newLines()
		subscribed := 0
		listens := newListener(func() connection { panic("nobody runs it") })
		listens.running = true
		ls.subscribe = func(channel, waiter string) *subscription {
			subscribed++
			return listens.subscribe(channel, waiter, stays)
		}
		for range 5 {
			turn, err := ls.join(t.Context(), "a", unheard)
			require.NoError(t, err)
			require.NotNil(t, turn.woken("me"))
			turn.leave()
			time.Sleep(linger - 1)
		}
		require.Equal(t, 1, subscribed)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Empty(t, ls.byChannel)
		require.Nil(t, listens.subscription("a"), "closed with the line")
	})
}

// A subscription to a channel that the connection still has gets no confirmation from Redis; its
// waiter must be woken all the same.
func TestANewSubscriptionWakesItsWaiter(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	l := newListener(func() connection { return connect(client, nil) })
	for range 50 {
		e := l.subscribe("a", "me", stays)
		select {
		case <-e.wake:
		case <-time.After(10 * time.Second):
			t.Fatal("it was never woken")
		}
		e.close()
	}
	old := l.subscribe("a", "me", stays)
	current := l.subscribe("a", "me", stays) // as after a slot has moved back and forth
	old.close()
	require.Same(t, current, l.subscription("a"), "an old subscription does not close its successor")
	current.close()
	require.Nil(t, l.subscription("a"))
}

// Redis may confirm a subscription, and news may come, before the waiter looks at it for the first
// time.
func TestTheFirstNewsOfASubscriptionCounts(t *testing.T) {
	for name, news := range map[string]func(e *subscription){
		"confirmed": (*subscription).wakeToAsk,
		"called":    func(e *subscription) { e.receive("free me") },
	} {
		ls := newLines()
		listens := newListener(func() connection { panic("nobody runs it") })
		listens.running = true
		ls.subscribe = func(channel, waiter string) *subscription {
			e := listens.subscribe(channel, waiter, stays)
			news(e)
			return e
		}
		turn, err := ls.join(t.Context(), "a", unheard)
		require.NoError(t, err)
		require.NotEmpty(t, turn.woken("me"), name)
		require.True(t, turn.subscription.told().ask, name)
	}
}

func TestAStoreThatWakesNobodyIsPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn, err := newLines().join(t.Context(), "a", unheard)
		require.NoError(t, err)
		turn.subscription.listenFor("me")
		require.Nil(t, turn.woken("me"))
		a := &acquisition{call: newCall("me")}
		start := time.Now()
		a.sleep(t.Context(), turn, time.Minute, time.Second)
		require.WithinRange(t, time.Now(), start.Add(time.Second/2), start.Add(1600*time.Millisecond))
		turn.leave()
	})
}

func TestErrorsNameWhatTheyAreAbout(t *testing.T) {
	held := &HeldError{Resource: "table:12", RetryAfter: time.Second}
	require.ErrorContains(t, held, "table:12")
	require.ErrorContains(t, held, "1s")
	held.Cause = context.DeadlineExceeded
	require.ErrorContains(t, held, "table:12")
	require.ErrorContains(t, held, "deadline")
}

// The timer may have fired just before a renewal set it anew.
func TestATickThatComesTooEarlyWarnsNobody(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	i, err := New(client, Config{TTL: time.Minute})
	require.NoError(t, err)
	l, err := i.TryAcquire(t.Context(), "a")
	require.NoError(t, err)
	l.tick()
	require.Empty(t, l.expiring)
	require.NoError(t, l.Release(t.Context()))
	l.tick()
	require.Empty(t, l.expiring)
}

func nobody(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }

// A waiter's request 2 was refused; it stands in the queue.
func TestWhichGrantsAreBelieved(t *testing.T) {
	for name, test := range map[string]struct {
		message string
		asked   time.Duration // ago
		change  func(*Config)
		until   time.Duration // from the asking; 0: it is not believed
	}{
		"as it should be":                   {"granted me 2 42 2000", time.Second, nil, 1980 * time.Millisecond},
		"to a request before":               {"granted me 1 42 2000", time.Second, nil, 0},
		"to a request that was not refused": {"granted me 3 42 2000", time.Second, nil, 0},
		"with any token":                    {"granted me 2 1 2000", time.Second, nil, 1980 * time.Millisecond},
		"no grant":                          {"free me", time.Second, nil, 0},
		"another's":                         {"granted you 2 42 2000", time.Second, nil, 0},
		"a little is left":                  {"granted me 2 42 2000", 1950 * time.Millisecond, nil, 1980 * time.Millisecond},
		"nothing is left":                   {"granted me 2 42 2000", 1980 * time.Millisecond, nil, 0},
		"the news was held up for long":     {"granted me 2 42 2000", time.Hour, nil, 0},
		"Redis's clock was set forward":     {"granted me 2 42 2500", time.Second, nil, 0},
		"never renewed":                     {"granted me 2 42 2000", time.Second, func(c *Config) { c.RenewEvery = Never }, 1980 * time.Millisecond},
		"a margin longer than is left for":  {"granted me 2 42 2000", time.Second, func(c *Config) { c.Margin = 3600 * time.Millisecond }, 1200 * time.Millisecond},
		"replicas have not confirmed":       {"granted me 2 42 2000", time.Second, func(c *Config) { c.Replicas = 1 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{TTL: 9 * time.Second, Margin: 90 * time.Millisecond}
				if test.change != nil {
					test.change(&cfg)
				}
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: nobody})
				defer client.Close()
				i, err := New(client, cfg)
				require.NoError(t, err)
				e := &subscription{wake: make(chan struct{}, 1)}
				e.listenFor("me")
				e.receive(test.message)
				sent := time.Now().Add(-test.asked)
				a := &acquisition{core: i.core, caller: t.Context(), resources: []string{"a"}, keys: []*protocol.Keys{{}}, id: uuid.New(), call: newCall("me"), standing: standing{sent, 2}}
				over, cancel := context.WithCancel(t.Context())
				cancel()
				require.Nil(t, a.handedOver(over, &line{subscription: e}), "who has given up gives it back")

				leases := a.handedOver(t.Context(), &line{subscription: e})
				require.Equal(t, test.until > 0, leases != nil)
				if leases == nil {
					return
				}
				require.Equal(t, sent.Add(test.until), leases[0].validity(), "trust counts from the asking")
				leases[0].mu.Lock()
				leases[0].end(ErrReleased)
				leases[0].mu.Unlock()
			})
		})
	}
}

// Who is told to look later is not to sleep past a call that came as well, in whatever order.
func TestACallCountsForMoreThanALook(t *testing.T) {
	for name, messages := range map[string][]string{"look last": {"free me", "look me 500"}, "look first": {"look me 500", "free me"}} {
		e := &subscription{wake: make(chan struct{}, 1)}
		e.listenFor("me")
		for _, m := range messages {
			e.receive(m)
		}
		require.True(t, e.told().ask, name)
		e.listenFor("me")
		e.receive("look me 500")
		require.Equal(t, notice{look: 500 * time.Millisecond}, e.told())
		e.wakeToAsk() // the subscription was made anew
		require.True(t, e.told().ask)
	}
}

// News for the waiter before this one must not be taken for this one's.
func TestASubscriptionForgetsNewsForAnother(t *testing.T) {
	e := &subscription{wake: make(chan struct{}, 1)}
	e.listenFor("me")
	e.receive("granted me 2 42 9000")
	require.NotNil(t, e.told().granted)
	e.listenFor("you")
	require.Nil(t, e.told().granted)
	require.Empty(t, e.wake)
	e.receive("granted me 2 43 9000")
	require.Nil(t, e.told().granted)
	require.Empty(t, e.wake)
}
