package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
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
		case <-time.After(time.Minute):
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
		require.True(t, turn.subscription.latest().ask, name)
	}
}

func TestAStoreThatWakesNobodyIsPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn, err := newLines().join(t.Context(), "a", unheard)
		require.NoError(t, err)
		turn.listenFor("me")
		require.Nil(t, turn.woken("me"))
		a := (&acquisition{core: new(core), text: "me", keys: []*protocol.Keys{nil}, resources: []string{"a"}}).newStep(0, 1)
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
	l, err := i.Acquire(t.Context(), "a", NoWait())
	require.NoError(t, err)
	l.tick()
	require.Empty(t, l.expiring)
	require.NoError(t, l.Release(t.Context()))
	l.tick()
	require.Empty(t, l.expiring)
}

// Who is told to look later is not to sleep past a call that came as well, in whatever order.
func TestACallCountsForMoreThanALook(t *testing.T) {
	for name, messages := range map[string][]string{"look last": {"free me", "look me 500"}, "look first": {"look me 500", "free me"}} {
		e := &subscription{wake: make(chan struct{}, 1)}
		e.listenFor("me")
		for _, m := range messages {
			e.receive(m)
		}
		require.True(t, e.latest().ask, name)
		e.listenFor("me")
		e.receive("look me 500")
		require.Equal(t, notice{look: 500 * time.Millisecond}, e.latest())
		e.wakeToAsk() // the subscription was made anew
		require.True(t, e.latest().ask)
	}
}

// News for the waiter before this one must not be taken for this one's.
func TestASubscriptionForgetsNewsForAnother(t *testing.T) {
	e := &subscription{wake: make(chan struct{}, 1)}
	e.listenFor("me")
	e.receive("free me")
	require.True(t, e.latest().ask)
	e.listenFor("you")
	require.False(t, e.latest().ask)
	require.Empty(t, e.wake)
	e.receive("free me")
	require.False(t, e.latest().ask)
	require.Empty(t, e.wake)
}

// Who gives up marks its place, wherever that is; the others come to the front in their order, and
// places that were given up do not pile up behind a front that stays.
func TestPlacesThatWereGivenUpAreSkipped(t *testing.T) {
	ls := newLines()
	front, err := ls.join(t.Context(), "a", unheard)
	require.NoError(t, err)
	places := make([]*place, 1000)
	for n := range places {
		_, places[n] = ls.enter("a")
	}
	for n, p := range places {
		if n%10 != 3 {
			require.True(t, front.quit(p))
		}
	}
	require.Less(t, len(front.later), 250, "100 wait")
	for n := 3; n < len(places); n += 10 {
		front.leave()
		<-places[n].front
		require.False(t, front.quit(places[n]), "it is the front")
	}
	front.leave()
	require.Empty(t, ls.byChannel)
}

func BenchmarkTwentyThousandGiveUp(b *testing.B) {
	for b.Loop() {
		ls := newLines()
		front, _ := ls.join(b.Context(), "a", unheard)
		places := make([]*place, 20000)
		for n := range places {
			_, places[n] = ls.enter("a")
		}
		for n := range places {
			front.quit(places[len(places)-1-n])
		}
	}
}
