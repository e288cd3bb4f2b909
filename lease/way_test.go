package lease_test

import (
	"context"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease"
)

// stacks is a hook that notes all goroutines when a request goes out, the one that sends first.
// When it is full it notes no more.
type stacks chan string

func (stacks) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s stacks) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			all := make([]byte, 1<<22)
			select {
			case s <- string(all[:runtime.Stack(all, true)]):
			default:
			}
		}
		return next(ctx, cmd)
	}
}

func (stacks) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

var (
	aCall    = regexp.MustCompile(`(?m)^(?:created by )?github\.com/fencedb/fencedb/(\S+?)(?:\([^()]*\)| in goroutine \d+)\n\t(\S+):\d+`)
	aCreator = regexp.MustCompile(`created by github\.com/fencedb/fencedb/\S+ in goroutine (\d+)`)
)

// way is which functions of this module, in which files, a request passes from the call to the
// client. Where another goroutine sends it, it is the way to there, and from there.
func way(all string) (functions, files []string) {
	goroutines := strings.Split(all, "\n\n")
	sends := goroutines[0]
	if creator := aCreator.FindStringSubmatch(sends); creator != nil {
		for _, g := range goroutines {
			if strings.HasPrefix(g, "goroutine "+creator[1]+" ") {
				sends += "\n" + g[strings.Index(g, "github.com/fencedb/fencedb/internal/protocol.(*Sender).exchange("):]
			}
		}
	}
	for _, call := range aCall.FindAllStringSubmatch(sends, -1) {
		if !strings.Contains(call[1], "_test.") {
			functions = append(functions, path.Base(call[1]))
			files = append(files, path.Base(call[2]))
		}
	}
	slices.Reverse(functions)
	if n := slices.Index(functions, "lease.(*watchdog).renew"); n > 0 {
		functions = functions[n:] // before it is a timer
	}
	slices.Sort(files)
	return functions, slices.Compact(files)
}

// Who reads how a lease is acquired, released and renewed reads these functions.
func TestTheWayToTheWireIsShort(t *testing.T) {
	t.Parallel()
	options := *testenv.Redis(t).Options()
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	issuer := func(renewEvery time.Duration) *lease.Issuer {
		i, err := lease.New(client, lease.Config{TTL: time.Minute, RenewEvery: renewEvery, Namespace: testenv.Namespace(t)})
		require.NoError(t, err)
		return i
	}
	// Only one issuer renews, and it has one lease, so each stack is that of the request that it is
	// taken for.
	quiet, renewing := issuer(lease.Never), issuer(10*time.Millisecond)
	ctx := context.Background()
	known, err := quiet.AcquireAll(ctx, []string{"a", "b"})
	require.NoError(t, err)
	require.NoError(t, known.Release(ctx)) // now the server knows the scripts

	sent := make(stacks, 100)
	client.AddHook(sent)
	short := func(what string, most, mostFiles int) {
		functions, files := way(<-sent)
		t.Logf("%s: %d functions in %v: %s", what, len(functions), files, strings.Join(functions, ", "))
		require.NotEmpty(t, functions)
		require.LessOrEqual(t, len(functions), most, what)
		require.LessOrEqual(t, len(files), mostFiles, what)
	}
	several, err := quiet.AcquireAll(ctx, []string{"a", "b"})
	require.NoError(t, err)
	short("AcquireAll of several", 8, 4)
	one, err := quiet.AcquireAll(ctx, []string{"c"})
	require.NoError(t, err)
	short("AcquireAll of one", 8, 4)
	require.NoError(t, one[0].Release(ctx))
	short("Release", 6, 4)
	renewed, err := renewing.Acquire(ctx, "d")
	require.NoError(t, err)
	short("Acquire", 8, 4)
	short("a renewal", 6, 4)
	require.NoError(t, renewed.Release(ctx))
	require.NoError(t, several.Release(ctx))
}
