package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

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

// word is a string, or a number, as the client library takes it. To make one of a string costs an
// allocation, so what is sent more than once is kept as a word.
type word any

// request is for one lease on each of the resources, or none.
type request struct {
	keys   []*protocol.Keys
	id     word // of the leases
	mode   mode
	caller protocol.Caller
}

// mode is what acquire.lua does when it cannot grant at once.
type mode word

var (
	modeTry  mode = "try"  // leave no trace
	modeWait mode = "wait" // join the queue
)

// store keeps leases on one Redis deployment: a server, a Sentinel group, or a Cluster. Each call
// is one attempt; after [ErrUnreachable] it is unknown whether it was carried out.
type store struct {
	cfg       Config
	client    redis.UniversalClient
	redis     *protocol.Sender     // on client
	cluster   *redis.ClusterClient // the same, if it is one
	scripts   protocol.Holding     // of leases or of semaphores
	publish   word                 // the command that wakes waiters
	listener  word                 // the name under which this process listens for them
	label     word                 // of Config.Holder, as it is stored
	ttl       word                 // of the configuration, in milliseconds
	retention word                 // the same
	listeners *listeners
}

func checkClient(client redis.UniversalClient) error {
	switch client.(type) {
	case *redis.AutoPipeliner:
		// On a Cluster a waiter would listen to one node, and several resources be asked for in one
		// script.
		return protocol.Invalid("a redis.AutoPipeliner does not tell what is behind it; take its client, which sends together what is asked at the same time anyway")
	case *redis.Ring:
		return protocol.Invalid("a redis.Ring moves a resource to another server when one fails, which knows nothing of its leases; take a Sentinel group or a Cluster")
	case nil, *redis.Client, *redis.ClusterClient:
		return protocol.CheckClient(client)
	}
	// All processes have to publish in one way, or their waiters do not hear each other.
	return protocol.Invalid("a %T does not tell whether a Cluster is behind it; take the client itself, and add a hook to it", client)
}

// isSharded reports whether messages stay on the shard that serves their channel. A client that was
// given its slots is one of several plain servers, such as those of a Sentinel group that are read
// by latency: others publish to the same servers with a plain client.
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

// subscribe listens to what is published for this process's waiters alone.
func (s *store) subscribe(channel, waiter string) *subscription {
	return s.listeners.subscribe(channel+":"+s.listener.(string), waiter)
}

// servers are those that grant.
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

// spans is false on a Cluster, where a script sees one slot only; several resources are then
// acquired step by step.
func (s *store) spans(k []*protocol.Keys) bool { return s.cluster == nil || len(k) == 1 }

func (s *store) acquire(ctx context.Context, a request) (acquired, error) {
	var room [12]any // for one resource
	words := room[:0]
	for _, k := range a.keys {
		words = append(words, k.Owner, k.Fence, k.Queue, k.Alive)
	}
	keys := len(words)
	words = append(words, a.id, s.label, s.ttl, s.retention, a.mode, s.publish, s.listener)
	if s.cfg.permits > 0 {
		words = append(words, s.cfg.permits)
	}
	call := s.scripts.Acquire.Call(keys, words...)
	call.Caller = a.caller
	decode := func(r protocol.Reply) (acquired, error) { return decodeAcquire(r, len(a.keys)) }
	if s.cfg.Replicas > 0 {
		return s.confirmed(ctx, call, decode)
	}
	return protocol.Query(ctx, s.redis, call, decode)
}

func (s *store) extend(ctx context.Context, batch []*renewal) []protocol.Answer[outcome] {
	calls := make([]protocol.Call, len(batch))
	for i, r := range batch {
		t := r.lease.term
		calls[i] = s.scripts.Extend.Call(3, t.keys.Owner, t.keys.Fence, t.keys.Ended,
			t.id, t.token, r.ttl.Milliseconds(), s.retention)
	}
	return protocol.QueryAll(ctx, s.redis, calls, decodeExtend)
}

func (s *store) release(ctx context.Context, t term) (outcome, error) {
	return protocol.Query(ctx, s.redis, s.releaseOf(t), decodeRelease)
}

func (s *store) releaseAll(ctx context.Context, all []term) []protocol.Answer[outcome] {
	calls := make([]protocol.Call, len(all))
	for n, t := range all {
		calls[n] = s.releaseOf(t)
	}
	return protocol.QueryAll(ctx, s.redis, calls, decodeRelease)
}

func (s *store) releaseOf(t term) protocol.Call {
	k := t.keys
	return s.scripts.Release.Call(4, k.Owner, k.Queue, k.Alive, k.Ended, t.id, t.token, s.publish)
}

// withdrawal ends what an acquisition may have been granted.
func (s *store) withdrawal(k *protocol.Keys, id word) protocol.Call {
	return s.scripts.Withdraw.Call(3, k.Owner, k.Queue, k.Alive, id, s.publish)
}

// verify compares the lease with what Redis knows of its resource.
func (s *store) verify(ctx context.Context, t term) (Verdict, error) {
	var held []Permit
	var last int64
	var err error
	if s.cfg.permits > 0 { // a newer token is no news where several hold
		var found SemaphoreInspection
		found, err = s.inspectPermits(ctx, t.keys)
		held = found.Permits
	} else {
		var found Inspection
		found, err = s.inspect(ctx, t.keys)
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

func (s *store) revoke(ctx context.Context, k *protocol.Keys, id uuid.UUID, from int64) (Revocation, error) {
	return protocol.Query(ctx, s.redis, protocol.Revoke.Call(5, k.Owner, k.Fence, k.Queue, k.Alive, k.Ended,
		id.String(), from, s.retention, s.publish), decodeRevoke)
}

func (s *store) raise(ctx context.Context, k *protocol.Keys, floor int64) (int64, error) {
	return protocol.Query(ctx, s.redis, protocol.Raise.Call(1, k.Fence, floor, s.retention), decodeRaise)
}

func (s *store) inspect(ctx context.Context, k *protocol.Keys) (Inspection, error) {
	call := s.scripts.Inspect.Call(5, k.Owner, k.Fence, k.Queue, k.Alive, k.Ended)
	return protocol.Query(ctx, s.redis, call, decodeInspect)
}

func (s *store) inspectPermits(ctx context.Context, k *protocol.Keys) (SemaphoreInspection, error) {
	return protocol.Query(ctx, s.redis, s.scripts.Inspect.Call(2, k.Owner, k.Alive), decodeSemaphoreInspect)
}

// confirmed is [protocol.Query] for a grant that replicas have to confirm. On an error the grant
// may stand; the acquisition that fails withdraws it.
func (s *store) confirmed(ctx context.Context, c protocol.Call,
	decode func(protocol.Reply) (acquired, error)) (none acquired, err error) {
	server := s.redis
	if s.cluster != nil {
		// WAIT carries no key, and must go where the script went.
		master, err := protocol.Bounded(ctx, s.redis, c.Name(), c.Key(), func() (*redis.Client, error) {
			return s.cluster.MasterForKey(ctx, c.Key())
		})
		if err != nil {
			return none, err
		}
		server = protocol.Over(master)
	}
	r, confirmed, err := c.RunAndWait(ctx, server, s.cfg.Replicas, s.cfg.ReplicaTimeout)
	if s.cluster != nil && (protocol.Moved(err) || errors.Is(err, ErrUnreachable)) {
		s.cluster.ReloadState(ctx)
	}
	if err != nil {
		return none, err
	}
	if r.Word == "granted" && confirmed < int64(s.cfg.Replicas) {
		return none, &RefusedError{Code: protocol.NoReplicas,
			Cause: fmt.Errorf("%d of %d have the lease after %v", confirmed, s.cfg.Replicas, s.cfg.ReplicaTimeout)}
	}
	return decode(r)
}
