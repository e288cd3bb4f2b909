package admission

import (
"context"
	"slices"
	"testing"
	"time"

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/redis/go-redis/v9"
)

func BenchmarkParts(b *testing.B) {
	c := dc(b)
	ns := testenv.Namespace(b)
	slim := redis.NewScript(`
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return {'admitted','1',ARGV[2]} end
local left = redis.call('PTTL', KEYS[1])
return {'admitted', tostring(n), tostring(left+1)}`)
	empty := redis.NewScript(`return {'admitted','1','1'}`)
	slim.Load(b.Context(), c)
	empty.Load(b.Context(), c)
	fixedScript.Run(b.Context(), c, []string{ns + "y"}, 1000000000, 3600000)
	
	l, _ := New(c, Config{Limit: MaxLimit, Window: time.Hour, WhenUnjudged: FailOpen, Namespace: ns, Timeout: time.Minute})
	ctx1, cc := context.WithTimeout(b.Context(), time.Minute)
	defer cc()
	d := map[string][]time.Duration{}
	for b.Loop() {
		run := func(name string, f func()) { s := time.Now(); f(); d[name] = append(d[name], time.Since(s)) }
		run("incr", func() { c.Incr(b.Context(), ns+"a") })
		run("empty", func() { empty.EvalSha(b.Context(), c, []string{ns + "z"}) })
		run("slim", func() { slim.EvalSha(b.Context(), c, []string{ns + "x"}, 1000000000, 3600000) })
		run("full-direct", func() { fixedScript.RunDirect(b.Context(), c, []string{ns + "y"}, 1000000000, 3600000) })
		run("full-direct-deadline", func() { ctx, cc := context.WithTimeout(b.Context(), time.Minute); defer cc(); fixedScript.RunDirect(ctx, c, []string{ns + "y"}, 1000000000, 3600000) })
		run("full-direct-deadline1", func() { fixedScript.RunDirect(ctx1, c, []string{ns + "y"}, 1000000000, 3600000) })
		run("allow", func() { l.Allow(b.Context(), "a") })
		run("full-run", func() { fixedScript.Run(b.Context(), c, []string{ns + "y"}, 1000000000, 3600000) })
	}
	for k, v := range d {
		slices.Sort(v)
		b.ReportMetric(float64(v[len(v)/2].Nanoseconds())/1000, k)
	}
}

func dc(b *testing.B) *redis.Client {
	o := *testenv.Redis(b).Options()
	o.ContextTimeoutEnabled = true
	return redis.NewClient(&o)
}
