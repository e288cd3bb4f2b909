package protocol_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
)

// priced is one call, "<script> <lease id> <call>", and the commands in it, "get 2*set".
type priced struct{ call, commands string }

const (
	third  = "1b9d2c3e-5f1a-4c57-9c57-6b1f0c1d2e3f"
	fourth = "2b9d2c3e-5f1a-4c57-9c57-6b1f0c1d2e3f"
)

// Three wait while the first holds, which calls the one and tells the others when to look. The
// second holder calls the next; the last knows already.
var prices = map[string][]priced{
	protocol.LeaseKind: {
		{"acquire " + holder + " host-1", "exists get time 2*set"},
		{"extend " + holder, "get 2*pexpire"},
		{"acquire " + another + " host-2", "exists get pttl time zadd hset 2*pexpire"},
		{"acquire " + third + " host-3", "exists get pttl time zadd hset 2*pexpire"},
		{"acquire " + fourth + " host-4", "exists get pttl time zadd hset 2*pexpire"},
		{"release " + holder, "zrange get del time hmget 3*publish hset"},
		{"acquire " + another + " host-2", "exists zrange get time 2*set zrem hdel"},
		{"release " + another, "zrange get del time hmget publish hset"},
		{"acquire " + third + " host-3", "exists zrange get time 2*set zrem hdel"},
		{"withdraw " + fourth, "get zrem hdel"},
		{"release " + third, "zrange get del"},
	},
	protocol.SemaphoreKind: {
		{"acquire " + holder + " host-1", "zrangebyscore get zrange time set zremrangebyscore zadd pttl pexpire"},
		{"extend " + holder, "zrangebyscore time zadd pttl 2*pexpire"},
		{"acquire " + another + " host-2", "zrangebyscore get zrange time zadd hset 2*pexpire"},
		{"acquire " + third + " host-3", "zrangebyscore get zrange time zadd hset 2*pexpire"},
		{"acquire " + fourth + " host-4", "zrangebyscore get zrange time zadd hset 2*pexpire"},
		{"release " + holder, "zrangebyscore time zrem zrange hmget 3*publish hset"},
		{"acquire " + another + " host-2", "zrangebyscore get zrange time set zremrangebyscore zadd pttl pexpire zrem hdel"},
		{"release " + another, "zrangebyscore time zrem zrange hmget publish hset"},
		{"acquire " + third + " host-3", "zrangebyscore get zrange time set zremrangebyscore zadd pttl pexpire zrem hdel"},
		{"withdraw " + fourth, "zrangebyscore time zrem hdel zrange"},
		{"release " + third, "zrangebyscore time zrem zrange"},
	},
}

// Counts that do not depend on the machine, so that nobody makes a call dearer by accident.
func TestWhatEachCallCostsRedis(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	ctx := t.Context()
	for kind, steps := range prices {
		k := protocol.KeysOf(kind, "", "r", false)
		for _, listens := range []string{"host-2", "host-3", "host-4"} {
			listener := client.Subscribe(ctx, k.Channel.(string)+":"+listens)
			defer listener.Close()
			_, err := listener.Receive(ctx)
			require.NoError(t, err)
		}
		tokens := make(map[string]any)
		for round := range 2 { // behind the first the scripts and the last token are there
			for _, step := range steps {
				require.NoError(t, client.ConfigResetStat(ctx).Err())
				r, err := callOf(step, kind, k, tokens).Run(ctx, protocol.Over(client))
				require.NoError(t, err, step.call)
				if r.Word == "granted" {
					tokens[strings.Fields(step.call)[1]] = r.Args[0]
				}
				made := commandsIn(client.Info(ctx, "commandstats").Val())
				if round > 0 {
					require.Equal(t, step.counts(), made, "%s: %s: %s", kind, step.call, r.Word)
				}
			}
		}
	}
}

func callOf(s priced, kind string, k *protocol.Keys, tokens map[string]any) protocol.Call {
	words := strings.Fields(s.call)
	id, scripts := words[1], protocol.LeaseHolding
	if kind == protocol.SemaphoreKind {
		scripts = protocol.SemaphoreHolding
	}
	switch words[0] {
	case "acquire":
		args := []any{id, words[2], 60000, 600000, "wait", "PUBLISH", words[2]}
		if kind == protocol.SemaphoreKind {
			args = append(args, 1)
		}
		return scripts.Acquire.Call(4, append([]any{k.Owner, k.Fence, k.Queue, k.Alive}, args...)...)
	case "extend":
		return scripts.Extend.Call(3, k.Owner, k.Fence, k.Ended, id, tokens[id], 120000, 600000)
	case "withdraw":
		return scripts.Withdraw.Call(3, k.Owner, k.Queue, k.Alive, id, "PUBLISH")
	}
	return scripts.Release.Call(4, k.Owner, k.Queue, k.Alive, k.Ended, id, tokens[id], "PUBLISH")
}

// counts are those of the commands, with the script itself.
func (s priced) counts() map[string]int {
	all := map[string]int{"evalsha": 1}
	for _, command := range strings.Fields(s.commands) {
		times, name, several := strings.Cut(command, "*")
		if !several {
			times, name = "1", times
		}
		all[name], _ = strconv.Atoi(times)
	}
	return all
}

// commandsIn are those that INFO commandstats has counted.
func commandsIn(stats string) map[string]int {
	all := make(map[string]int)
	for _, found := range regexp.MustCompile(`cmdstat_([a-z]+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		all[found[1]], _ = strconv.Atoi(found[2])
	}
	return all
}
