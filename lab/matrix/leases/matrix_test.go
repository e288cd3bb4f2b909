// Package leases asks every call what becomes of it under every fault, and judges the answer by
// what the servers have afterwards.
package leases

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lab/matrix"
	"github.com/fencedb/fencedb/lease"
)

func TestMain(m *testing.M) {
	logging.Disable() // the clients complain of the faults
	testenv.Main(m)
}

const readTimeout = 500 * time.Millisecond // of the clients that faults are in front of

// atOnce is how many cells there are at a time. Most of their time they wait; but a bound in time
// is of a machine that is not held up.
var atOnce = map[bool]int{false: 16, true: 48}[matrix.Full]

// TestLeases is the matrix: each call, on each deployment, with each fault of each script that it
// sends, and each end of the context.
//
//	go test ./lab/matrix/leases -run 'TestLeases/single/Acquire_held/withdraw/reply_lost_once/queued'
func TestLeases(t *testing.T) {
	leaks := []goleak.Option{
		goleak.IgnoreCurrent(),
		// Of a FailoverClient that is closed while it subscribes to its sentinel. We do not use these.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initHealthCheck.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initMsgChan.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*sentinelFailover).listen"),
	}
	var all errgroup.Group
	table := matrix.NewTable(atOnce)
	for _, d := range deployments {
		all.Go(func() error {
			t.Run(d.name, func(t *testing.T) { newLeaseWorld(t, table, d).run(t) })
			return nil
		})
	}
	_ = all.Wait()
	var left error
	for begin := time.Now(); time.Since(begin) < time.Minute; { // a listener lingers
		if left = goleak.Find(leaks...); left == nil {
			return
		}
	}
	t.Error(left)
}

// anyScript stands for all of them.
const anyScript = "all"

type deployment struct {
	name   string
	ttl    time.Duration // of the leases that are judged
	sample bool          // of the calls and faults
	open   func(t *testing.T) connector
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// connector makes the client that an issuer takes.
type connector = func(dial dialer, readTimeout time.Duration) redis.UniversalClient

var deployments = []deployment{
	{name: "single", ttl: 3 * time.Second, open: func(t *testing.T) connector {
		server := testenv.OwnRedis(t)
		return func(dial dialer, readTimeout time.Duration) redis.UniversalClient {
			return redis.NewClient(&redis.Options{
				Addr: server.Addr(), Dialer: dial, ReadTimeout: readTimeout, PoolSize: 2 * atOnce,
				MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
			})
		}
	}},
	{name: "sentinel", ttl: 3 * time.Second, sample: true, open: func(t *testing.T) connector {
		servers := testenv.Sentinel(t)
		return func(dial dialer, readTimeout time.Duration) redis.UniversalClient {
			options := servers.Options()
			options.Dialer, options.ReadTimeout, options.PoolSize = dial, readTimeout, 2*atOnce
			return redis.NewFailoverClient(options)
		}
	}},
	{name: "cluster", ttl: 3 * time.Second, sample: true, open: func(t *testing.T) connector {
		servers := testenv.Cluster(t)
		return func(dial dialer, readTimeout time.Duration) redis.UniversalClient {
			options := servers.Options()
			options.Dialer, options.ReadTimeout, options.PoolSize = dial, readTimeout, 2*atOnce
			return redis.NewClusterClient(options)
		}
	}},
}

// has says which cells there are. Of a sample, a call ends by itself under a fault, and at one end
// of the context, which is not the same for all faults.
func (d deployment) has(call leaseCall, script string, f leaseFault, end ending) bool {
	switch {
	case call.only != nil && !call.only(script, f, end):
		return false
	case f.stops && script != anyScript, f.times > 0 && script == anyScript,
		f.verdict.Fate == faulty.Pass && script != anyScript:
		return false
	case call.behind(script) && end.name != "queued" && end.name != "deadline":
		return false // is not sent otherwise
	case end.name == "queued" && !call.waits, f.stops && (end.name == "in flight" || end.name == "backing off"):
		return false
	case matrix.Full && !d.sample:
		return true
	}
	hash := fnv.New32()
	fmt.Fprint(hash, d.name, call.name, script, f.name)
	pick := hash.Sum32()
	some := uint32(5) // one of so many
	if script == anyScript && !f.stops || d.sample {
		some = 30
	}
	if !matrix.Full && pick/16%some != 0 {
		return false
	}
	return end.name == endings[0].name || end.name == endings[pick%uint32(len(endings))].name
}

// leaseWorld is one deployment.
type leaseWorld struct {
	deployment
	table     *matrix.Table
	t         *testing.T
	connect   connector
	direct    redis.UniversalClient // that no fault is in front of
	namespace string
	rival     *lease.Issuer // over direct
	db        func() *pgxpool.Pool
	pulse
	count   atomic.Int64
	reapers sync.WaitGroup

	unstruck sync.Map // whether a call has not yet sent a script that faults are for
}

func newLeaseWorld(t *testing.T, table *matrix.Table, d deployment) *leaseWorld {
	w := &leaseWorld{deployment: d, table: table, t: t, connect: d.open(t), namespace: "matrix"}
	var direct net.Dialer
	w.direct = w.connect(direct.DialContext, 10*time.Second)
	t.Cleanup(func() { _ = w.direct.Close() })
	w.watch(t, w.direct)
	w.rival = w.issuer(t, w.direct, lease.Config{TTL: time.Minute, RenewEvery: lease.Never})
	w.db = sync.OnceValue(func() *pgxpool.Pool {
		pool := testenv.Postgres(t)
		_, err := pool.Exec(t.Context(), `CREATE TABLE done (cell text PRIMARY KEY)`)
		require.NoError(t, err)
		return pool
	})
	return w
}

// run plays all cells.
func (w *leaseWorld) run(t *testing.T) {
	w.teach(t)
	var cells []matrix.Cell
	for _, call := range leaseCalls {
		for _, script := range append(call.scripts, anyScript) {
			for _, fault := range leaseFaults {
				for _, end := range endings {
					if !w.has(call, script, fault, end) {
						continue
					}
					name := strings.Join([]string{call.name, script, fault.name, end.name}, "/")
					cells = append(cells, matrix.Cell{Name: name, Play: func(t *testing.T) {
						if script != anyScript && !call.behind(script) && end.name != "before" { // or it need not be sent
							w.unstruck.LoadOrStore(call.name+"/"+script, true)
						}
						w.try(t, call, script, fault, end)
					}})
				}
			}
		}
	}
	w.table.Play(t, cells)
	w.reapers.Wait()
	w.unstruck.Range(func(cell, unstruck any) bool {
		if unstruck == true {
			t.Errorf("no fault of %v has struck anything", cell)
		}
		return true
	})
}

// teach lets the proxies see each script once, whatever cells are to run.
func (w *leaseWorld) teach(t *testing.T) {
	for _, call := range leaseCalls {
		if !call.renews {
			w.try(t, call, "", leaseFaults[0], endings[0])
		}
	}
}

// try plays a cell. What it finds does not count while the machine holds the servers up, since
// nearly all is about what comes in time.
func (w *leaseWorld) try(t *testing.T, call leaseCall, script string, fault leaseFault, end ending) {
	w.table.Try(t, func(a *matrix.Attempt) {
		begin := time.Now()
		defer func() {
			if w.faint(begin) {
				a.Late()
			}
		}()
		w.cell(a, call, script, fault, end).play()
	})
}

// pulse watches this machine, and the server that no fault is in front of.
type pulse struct {
	mu   sync.Mutex    // held while the server is asked
	late time.Time     // when it last answered late; under mu
	most time.Duration // how late at most; under mu
}

func (p *pulse) watch(t *testing.T, server redis.UniversalClient) {
	const every, late = 10 * time.Millisecond, 100 * time.Millisecond
	require.NoError(t, server.Exists(t.Context(), "pulse").Err()) // connects
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	t.Cleanup(func() { cancel(); watching.Wait() })
	watching.Go(func() {
		for last := time.Now(); ctx.Err() == nil; last = time.Now() {
			<-time.After(every)
			p.mu.Lock()
			_ = server.Exists(ctx, "pulse").Err()
			now := time.Now()
			p.most = max(p.most, now.Sub(last)-every)
			if now.Sub(last) > every+late {
				p.late = now
			}
			p.mu.Unlock()
		}
	})
}

// faint reports whether it has been late since begin.
func (p *pulse) faint(begin time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late.After(begin)
}

// lag is what a bound in time has to allow here: a request has four stations on its way.
func (p *pulse) lag() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 200*time.Millisecond + 4*p.most
}

func (w *leaseWorld) issuer(t require.TestingT, client redis.UniversalClient, cfg lease.Config) *lease.Issuer {
	cfg.Namespace = w.namespace
	i, err := lease.New(client, cfg)
	require.NoError(t, err)
	return i
}

// leaseCell is one call under one fault.
type leaseCell struct {
	*matrix.Attempt
	*leaseWorld
	call   leaseCall
	script string
	fault  leaseFault
	end    ending

	proxy     *faulty.RedisProxy
	client    redis.UniversalClient // through the proxy
	own       *lease.Issuer         // over it
	kind      string
	resources []string
	name      string

	arrived, struck, queued, returned func() // when the context ends; may be nil
	cancel                            context.CancelFunc
	deadline                          time.Time // zero: none
	left                              func()    // waits for the rival that is to leave; may be nil
	endedAt                           atomic.Pointer[time.Time]

	mu   sync.Mutex
	seen int // requests that the fault is for; under mu
	sent int // requests; under mu

	before   map[string]facts // by resource
	mine     lease.Leases     // held through the proxy before the call, or got by it
	theirs   lease.Leases     // held by rivals
	doubtful lease.Leases     // held by rivals, or not any more
	floor    int64            // a token that later ones are above
	late     bool             // requests have come that were late: what they get is gone after its time
	ran      int              // how often the work was
	err      error
	took     time.Duration
}

func (w *leaseWorld) cell(a *matrix.Attempt, call leaseCall, script string, fault leaseFault, end ending) *leaseCell {
	c := &leaseCell{Attempt: a, leaseWorld: w, call: call, script: script, fault: fault, end: end, kind: "lease", proxy: new(faulty.RedisProxy)}
	c.client = w.connect(c.proxy.Dial, readTimeout)
	a.Cleanup(func() { w.reap(c) })
	n := w.count.Add(1)
	c.name = fmt.Sprintf("%s, cell %d", a.Name(), n)
	for i := range max(call.resources, 1) {
		c.resources = append(c.resources, fmt.Sprintf("%s%d-%d", call.prefix, n, i))
	}
	cfg := lease.Config{TTL: w.ttl, RenewEvery: lease.Never}
	if call.renews {
		cfg.RenewEvery = 0
	}
	c.own = w.issuer(a, c.client, cfg)
	// Connects, which is not what is judged.
	require.Eventually(a, func() bool { return c.client.Exists(a.Context(), c.key(c.resources[0])+"owner").Err() == nil }, 20*readTimeout, time.Millisecond)
	return c
}

// key is what the names of a resource's keys begin with.
func (c *leaseCell) key(resource string) string {
	return c.kind + ":v1:{" + c.namespace + "/" + resource + "}:"
}

// cancelled is a context that over ends.
func (c *leaseCell) cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	c.Cleanup(cancel)
	c.cancel = cancel
	return ctx
}

func (c *leaseCell) over() {
	now := time.Now()
	c.endedAt.CompareAndSwap(nil, &now)
	c.cancel()
}

// strike is the proxy's judge.
func (c *leaseCell) strike(call faulty.Call) faulty.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent++
	script := call.Script[strings.LastIndexByte(call.Script, '_')+1:] // semaphore_acquire is an acquire
	if script != c.script && c.script != anyScript {
		return faulty.Verdict{}
	}
	c.seen++
	c.unstruck.Store(c.call.name+"/"+c.script, false)
	first := c.seen == 1
	if first && c.arrived != nil {
		c.arrived()
	}
	if c.fault.times > 0 && c.seen > c.fault.times {
		return faulty.Verdict{}
	}
	v := c.fault.verdict
	if first {
		v.Then = c.struck
	}
	return v
}

func (c *leaseCell) requests() (sent, seen int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent, c.seen
}

func (c *leaseCell) play() {
	c.call.prepare(c)
	c.before = c.look()
	ctx := c.end.begin(c)
	c.proxy.OnScript(c.strike)
	done := make(chan struct{})
	switch {
	case c.queued != nil:
		go func() {
			if c.awaitWaiter(done) {
				if c.fault.stops {
					c.proxy.Stop()
				}
				c.queued()
			}
		}()
	case c.fault.stops:
		c.proxy.Stop()
	}
	begin := time.Now()
	c.err = c.call.run(c, ctx)
	back := time.Now()
	close(done)
	c.took = back.Sub(begin)
	if !c.deadline.IsZero() && back.After(c.deadline) {
		c.endedAt.Store(&c.deadline)
	}
	c.judgeTime(back)
	if c.returned != nil {
		c.returned()
	}
	c.judge()
}
