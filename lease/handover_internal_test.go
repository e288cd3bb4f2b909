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
)

func TestNews(t *testing.T) {
	for message, want := range map[string]*grantedTo{
		"granted me 57 10000":   {57, 10 * time.Second},
		"free me":               nil,
		"granted me 57":         nil,
		"granted me x 10000":    nil,
		"granted me 57 x":       nil,
		"granted me 57 10000 x": nil,
		"freed me 57 10000":     nil,
	} {
		leaseID, granted := news(message)
		require.Equal(t, "me", leaseID, message)
		require.Equal(t, want, granted, message)
	}
	for _, message := range []string{"", "free", " "} {
		leaseID, granted := news(message)
		require.Empty(t, leaseID)
		require.Nil(t, granted)
	}
}

func nobody(context.Context, string, string) (net.Conn, error) { return nil, net.ErrClosed }

// A waiter was refused at t0, when the next token was to be 42 or more.
func TestWhichGrantsAreBelieved(t *testing.T) {
	for name, test := range map[string]struct {
		message  string
		asked    time.Duration // ago
		change   func(*Config)
		believed bool
	}{
		"as it should be":                   {"granted me 42 9000", time.Second, nil, true},
		"granted before t0, so over since":  {"granted me 41 9000", time.Second, nil, false},
		"no grant":                          {"free me", time.Second, nil, false},
		"another's":                         {"granted you 42 9000", time.Second, nil, false},
		"a renewal is nearly due":           {"granted me 42 9000", 3*time.Second - 1, nil, true},
		"a renewal is due":                  {"granted me 42 9000", 3 * time.Second, nil, false},
		"shorter than what this one trusts": {"granted me 42 8999", time.Second, nil, false},
		"longer than this one blocks":       {"granted me 42 9001", time.Second, nil, false},
		"never renewed":                     {"granted me 42 9000", time.Second, func(c *Config) { c.RenewEvery = Never }, false},
		"replicas have not confirmed":       {"granted me 42 9000", time.Second, func(c *Config) { c.Replicas = 1 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{TTL: 9 * time.Second}
				if test.change != nil {
					test.change(&cfg)
				}
				client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: nobody})
				defer client.Close()
				i, err := New(client, cfg)
				require.NoError(t, err)
				e := &ear{rings: make(chan struct{}, 1)}
				e.listenFor("me")
				e.hear(test.message)
				sent := time.Now().Add(-test.asked)
				a := &acquisition{issuer: i, caller: t.Context(), resources: []string{"a"}, keys: []keys{{}}, id: uuid.New(), call: newCall(), standing: standing{sent, 42}}
				over, cancel := context.WithCancel(t.Context())
				cancel()
				require.Nil(t, a.handedOver(over, &turn{line: &line{ear: e}}), "who has given up gives it back")

				leases := a.handedOver(t.Context(), &turn{line: &line{ear: e}})
				require.Equal(t, test.believed, leases != nil)
				if leases == nil {
					return
				}
				require.EqualValues(t, 42, leases[0].Token())
				require.Equal(t, sent.Add(9*time.Second-i.cfg.Margin), leases[0].ValidUntil(), "trust counts from the asking")
				leases[0].mu.Lock()
				leases[0].end(ErrReleased)
				leases[0].mu.Unlock()
			})
		})
	}
}

// News for the waiter before this one must not be taken for this one's.
func TestAnEarForgetsWhatItHeardForAnother(t *testing.T) {
	e := &ear{rings: make(chan struct{}, 1)}
	e.listenFor("me")
	e.hear("granted me 42 9000")
	require.NotNil(t, e.granted())
	e.listenFor("you")
	require.Nil(t, e.granted())
	require.Empty(t, e.rings)
	e.hear("granted me 43 9000")
	require.Nil(t, e.granted())
	require.Empty(t, e.rings)
}
