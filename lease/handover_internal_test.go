package lease

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

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
				a := &acquisition{core: i.core, caller: t.Context(), resources: []string{"a"}, keys: []protocol.Keys{{}}, id: uuid.New(), call: newCall(), standing: standing{sent, 2}}
				over, cancel := context.WithCancel(t.Context())
				cancel()
				require.Nil(t, a.handedOver(over, &turn{line: &line{subscription: e}}), "who has given up gives it back")

				leases := a.handedOver(t.Context(), &turn{line: &line{subscription: e}})
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
		require.Zero(t, e.lookAfter(), name)
		e.listenFor("me")
		e.receive("look me 500")
		require.Equal(t, 500*time.Millisecond, e.lookAfter())
		e.wakeToAsk() // the subscription was made anew
		require.Zero(t, e.lookAfter())
	}
}

// News for the waiter before this one must not be taken for this one's.
func TestASubscriptionForgetsNewsForAnother(t *testing.T) {
	e := &subscription{wake: make(chan struct{}, 1)}
	e.listenFor("me")
	e.receive("granted me 2 42 9000")
	require.NotNil(t, e.granted())
	e.listenFor("you")
	require.Nil(t, e.granted())
	require.Empty(t, e.wake)
	e.receive("granted me 2 43 9000")
	require.Nil(t, e.granted())
	require.Empty(t, e.wake)
}
