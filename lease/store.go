package lease

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// term names one lease exactly. Every operation after the acquisition compares all of it, so that a
// late request of an old lease cannot touch a newer one of the same resource.
type term struct {
	keys  *protocol.Keys
	id    word // of the lease
	token int64
}

// word is a string or a number in an interface, as the client library takes it. The conversion
// costs an allocation, so a value that is sent more than once is kept as a word.
type word any

// mode is what acquire.lua does when it cannot grant at once.
type mode word

var (
	modeTry  mode = "try"  // leave no trace
	modeWait mode = "wait" // join the queue
)

// store makes the requests to one Redis deployment: a server, a Sentinel group, or a Cluster.
type store struct {
	cfg       Config
	client    redis.UniversalClient
	redis     *protocol.Sender     // uses client
	cluster   *redis.ClusterClient // client, if it is one of a Cluster; otherwise nil
	scripts   protocol.Holding     // of leases or of semaphores
	publish   word                 // the command that wakes waiters
	listener  word                 // the name under which this process listens for them
	label     word                 // Config.Holder, escaped
	ttl       word                 // Config.TTL in milliseconds
	retention word                 // Config.FenceRetention in milliseconds
	listeners *listeners
}

func checkClient(client redis.UniversalClient) error {
	switch client.(type) {
	case *redis.AutoPipeliner:
		// If it hides a Cluster, a waiter would listen on one node only, and one script would ask
		// for several resources.
		return protocol.Invalid("a redis.AutoPipeliner hides which client it uses; pass that client itself, on which requests share pipelines anyway")
	case *redis.Ring:
		return protocol.Invalid("a redis.Ring moves a resource to another server when its own fails, and that server does not know its leases; use a Sentinel group or a Cluster")
	case nil, *redis.Client, *redis.ClusterClient:
		return protocol.CheckClient(client)
	}
	// All processes have to publish with the same command, or they do not wake each other's
	// waiters.
	return protocol.Invalid("a %T hides whether its client is one of a Cluster; pass that client itself, and add a hook to it", client)
}

// isSharded reports whether messages stay on the shard that serves their channel. A ClusterClient
// that was given its slots is a client of plain servers, such as a Sentinel group that is read by
// latency: other programs publish to the same servers with a plain client.
func isSharded(client redis.UniversalClient) bool {
	cluster, ok := client.(*redis.ClusterClient)
	return ok && cluster.Options().ClusterSlots == nil
}

func newStore(client redis.UniversalClient, cfg Config) *store {
	s := &store{cfg: cfg, client: client, redis: protocol.Over(client), scripts: protocol.LeaseHolding,
		listeners: &listeners{client: client, byMaster: make(map[*redis.Client]*listener)},
		listener:  uuid.NewString()[:18], label: protocol.EscapeLabel(cfg.Holder), publish: "PUBLISH",
		ttl: cfg.TTL.Milliseconds(), retention: cfg.FenceRetention.Milliseconds()}
	if cfg.permits > 0 {
		s.scripts = protocol.SemaphoreHolding
	}
	s.cluster, _ = client.(*redis.ClusterClient)
	if isSharded(client) {
		s.publish = "SPUBLISH"
	}
	return s
}

// subscribe listens to the messages to waiters of this process.
func (s *store) subscribe(channel, waiter string) *subscription {
	return s.listeners.subscribe(channel+":"+s.listener.(string), waiter)
}

// servers are the servers that grant leases: the primary, or each master of a Cluster.
func (s *store) servers(ctx context.Context) (all []*redis.Client, err error) {
	switch client := s.client.(type) {
	case *redis.Client:
		return []*redis.Client{client}, nil
	case *redis.ClusterClient:
		return protocol.Bounded(ctx, s.redis, "cluster slots", "", func() (masters []*redis.Client, err error) {
			var mu sync.Mutex
			err = client.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				masters = append(masters, master)
				return nil
			})
			return masters, err
		})
	}
	panic("bug: another client was accepted")
}

// spans reports whether one script can see all these resources. On a Cluster it sees one slot only,
// so several resources are acquired one after the other.
func (s *store) spans(k []*protocol.Keys) bool { return s.cluster == nil || len(k) == 1 }

// acquire asks for a lease with that id on each of the resources, or for none.
func (s *store) acquire(k []*protocol.Keys, id word, how mode) protocol.Call {
	var room [12]any // for one resource
	words := room[:0]
	for _, k := range k {
		words = append(words, k.Owner, k.Fence, k.Queue, k.Alive)
	}
	keys := len(words)
	words = append(words, id, s.label, s.ttl, s.retention, how, s.publish, s.listener)
	if s.cfg.permits > 0 {
		words = append(words, s.cfg.permits)
	}
	call := s.scripts.Acquire.Call(keys, words...)
	call.Replicas, call.Within = s.cfg.Replicas, s.cfg.ReplicaTimeout
	return call
}

func (s *store) extend(t term, ttl time.Duration) protocol.Call {
	return s.scripts.Extend.Call(3, t.keys.Owner, t.keys.Fence, t.keys.Ended,
		t.id, t.token, ttl.Milliseconds(), s.retention)
}

func (s *store) release(t term) protocol.Call {
	k := t.keys
	return s.scripts.Release.Call(4, k.Owner, k.Queue, k.Alive, k.Ended, t.id, t.token, s.publish)
}

// withdraw ends what an acquisition may have been granted.
func (s *store) withdraw(k *protocol.Keys, id word) protocol.Call {
	return s.scripts.Withdraw.Call(3, k.Owner, k.Queue, k.Alive, id, s.publish)
}

// standing compares the lease with r, the reply to inspect.
func (s *store) standing(t term, r protocol.Reply) (Standing, error) {
	var held []Permit
	var last int64
	var err error
	if s.cfg.permits > 0 { // last stays 0: a newer token does not make a permit stale
		var found SemaphoreInspection
		found, err = decodeSemaphoreInspect(r)
		held = found.Permits
	} else {
		var found Inspection
		found, err = decodeInspect(r)
		held, last = []Permit{{LeaseID: found.Holder, Token: found.Token}}, found.LastToken
	}
	is := func(p Permit) bool { return p.LeaseID.String() == t.id && p.Token == t.token }
	switch {
	case err != nil:
		return 0, err
	case !slices.ContainsFunc(held, is):
		return LeaseLost, nil
	case last > t.token:
		return FenceStale, nil
	}
	return Current, nil
}

func (s *store) eval(ctx context.Context, t term, script string, keys []string, args []any) (any, outcome, error) {
	words := []any{t.keys.Owner, t.keys.Fence, t.keys.Ended}
	for _, key := range keys {
		words = append(words, key)
	}
	words = append(append(words, t.id, t.token, len(keys), len(args)), args...)
	r, err := protocol.Eval(script).Call(3+len(keys), words...).Run(ctx, s.redis)
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		return nil, "", protocol.Invalid("on a Cluster the keys %q must be in the slot of the lease, so give them its tag, as in %q; nothing was written",
			keys, "data:"+t.keys.Tag())
	}
	if err != nil {
		return nil, "", err
	}
	return decodeEval(ctx, r)
}

func (s *store) revoke(k *protocol.Keys, id uuid.UUID, from int64) protocol.Call {
	return protocol.Revoke.Call(5, k.Owner, k.Fence, k.Queue, k.Alive, k.Ended, id.String(), from, s.retention, s.publish)
}

func (s *store) raise(k *protocol.Keys, floor int64) protocol.Call {
	return protocol.Raise.Call(1, k.Fence, floor, s.retention)
}

func (s *store) inspect(k *protocol.Keys) protocol.Call {
	if s.cfg.permits > 0 {
		return s.scripts.Inspect.Call(2, k.Owner, k.Alive)
	}
	return s.scripts.Inspect.Call(5, k.Owner, k.Fence, k.Queue, k.Alive, k.Ended)
}
