package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// term names one lease exactly. Every operation after the acquisition compares all of it, so that a
// late request of an old lease cannot touch a newer one of the same resource.
type term struct {
	keys   protocol.Keys
	id     uuid.UUID
	token  int64
	call   string // the acquisition that got it
	unsure bool   // another request of that call may still be under way
}

// ask is a request for one lease on each of the resources, or none.
type ask struct {
	keys      []protocol.Keys
	id        uuid.UUID
	call      string
	request   int64 // its number, 1 for the first of the call
	mode      mode
	ttl       time.Duration
	retention time.Duration
	abandoned func() (ended func()) // see [protocol.Call]
}

// mode is what acquire.lua does when it cannot grant at once.
type mode string

const (
	try   mode = "try"   // leave no trace
	wait  mode = "wait"  // join the queue
	barge mode = "barge" // leave no trace, and do not let the queue go first
)

// extension is a request to let a term last for ttl from now.
type extension struct {
	term
	ttl       time.Duration
	retention time.Duration
}

// answered is the outcome of one extension.
type answered struct {
	outcome outcome
	err     error
}

// store keeps leases. Each call is one attempt; after [ErrUnreachable] it is unknown whether it was
// carried out.
type store interface {
	acquire(ctx context.Context, a ask) (acquired, error)
	extend(ctx context.Context, batch []extension) []answered            // one answer for each, in order
	release(ctx context.Context, e extension) (outcome, error)           // without its ttl
	withdraw(ctx context.Context, t term, retention time.Duration) error // without its token, which is not known
	verify(ctx context.Context, t term) (Verdict, error)
	revoke(ctx context.Context, k protocol.Keys, id uuid.UUID, from int64, retention time.Duration) (Revocation, error)
	raise(ctx context.Context, k protocol.Keys, floor int64, retention time.Duration) (int64, error)
	regrant(ctx context.Context, old extension, id uuid.UUID, call string, floor int64) (int64, error)
	inspect(ctx context.Context, k protocol.Keys) (Inspection, error)
	servers(ctx context.Context) (all []*redis.Client, spare int, err error) // those that grant; spare ones may fail
	spans(k []protocol.Keys) bool                                            // whether one ask can cover all these resources
	subscribe(channel string) *subscription                                  // nil if waiters cannot be woken, or not now
	stopListening()                                                          // ends idle connections at once
}

// single is the store on one Redis deployment: a server, a Sentinel group, or a Cluster.
type single struct {
	client     redis.UniversalClient
	cluster    *redis.ClusterClient // the same, if it is one
	scripts    protocol.Holding     // of leases or of semaphores
	permits    int                  // how many may hold at once; 0: it is a lease
	publish    string               // the command that wakes waiters
	listener   string               // the name under which this process listens for them
	subscriber subscriber
	replicas   int           // that have to confirm a grant
	within     time.Duration // that time
}

func newSingle(client redis.UniversalClient, cfg Config) *single {
	s := &single{client: client, scripts: protocol.LeaseHolding, permits: cfg.permits, listener: uuid.NewString()[:18],
		replicas: cfg.Replicas, within: cfg.ReplicaTimeout}
	if cfg.permits > 0 {
		s.scripts = protocol.SemaphoreHolding
	}
	if cluster, ok := client.(*redis.ClusterClient); ok {
		masters := &shards{cluster: cluster, byMaster: make(map[*redis.Client]*listener)}
		s.cluster, s.publish, s.subscriber = cluster, "SPUBLISH", masters
	} else {
		s.publish, s.subscriber = "PUBLISH", listenOn(client)
	}
	return s
}

// subscribe listens to what is published for this process's waiters alone.
func (s *single) subscribe(channel string) *subscription {
	return s.subscriber.subscribe(channel + ":" + s.listener)
}

func (s *single) stopListening() { s.subscriber.stopListening() }

func (s *single) servers(ctx context.Context) (all []*redis.Client, spare int, err error) {
	switch client := s.client.(type) {
	case *redis.Client:
		return []*redis.Client{client}, 0, nil
	case *redis.ClusterClient:
		all, err = masters(ctx, client)
		return all, 0, err
	default:
		return nil, 0, fmt.Errorf("%w: check of a %T", errors.ErrUnsupported, client)
	}
}

func masters(ctx context.Context, cluster *redis.ClusterClient) ([]*redis.Client, error) {
	type found struct {
		masters []*redis.Client
		err     error
	}
	f, err := protocol.Bounded(ctx, func() found {
		var mu sync.Mutex
		var all []*redis.Client
		err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, master)
			return nil
		})
		return found{all, err}
	})
	if err != nil {
		return nil, err
	}
	if f.err != nil {
		return nil, protocol.Failed(ctx, "cluster slots", f.err)
	}
	return f.masters, nil
}

// spans is false on a Cluster, where a script sees one slot only; several resources are then
// acquired step by step.
func (s *single) spans(k []protocol.Keys) bool {
	return s.cluster == nil || len(k) == 1
}

func (s *single) acquire(ctx context.Context, a ask) (acquired, error) {
	names := make([]string, 0, 4*len(a.keys))
	args := []any{a.id.String(), a.call, a.request, a.ttl.Milliseconds(), a.retention.Milliseconds(), string(a.mode), s.publish, s.listener}
	for _, k := range a.keys {
		names = append(names, k.Owner, k.Fence, k.Queue, k.Alive)
		args = append(args, k.Channel)
	}
	if s.permits > 0 {
		names, args = append(names, a.keys[0].Limit), append(args, s.permits)
	}
	call := s.scripts.Acquire.Call(names, args...)
	call.Abandoned = a.abandoned
	return grants(ctx, s, call, func(r protocol.Reply) (acquired, error) { return decodeAcquire(r, len(a.keys)) })
}

func (s *single) extend(ctx context.Context, batch []extension) []answered {
	calls := make([]protocol.Call, len(batch))
	for i, e := range batch {
		calls[i] = s.scripts.Extend.Call([]string{e.keys.Owner, e.keys.Fence, e.keys.Ended},
			e.id.String(), e.token, e.ttl.Milliseconds(), e.retention.Milliseconds())
	}
	answers := make([]answered, len(batch))
	for i, r := range protocol.RunAll(ctx, s.client, calls) {
		answers[i].err = r.Err
		if r.Err == nil {
			answers[i].outcome, answers[i].err = decodeExtend(r.Reply)
		}
	}
	return answers
}

func (s *single) release(ctx context.Context, e extension) (outcome, error) {
	k := e.keys
	return protocol.Query(ctx, s.client, s.scripts.Release.Call([]string{k.Owner, k.Fence, k.Queue, k.Alive, k.Ended},
		e.id.String(), e.token, e.call, e.sureness(), e.retention.Milliseconds(), s.publish, k.Channel), decodeRelease)
}

func (s *single) withdraw(ctx context.Context, t term, retention time.Duration) error {
	_, err := protocol.Query(ctx, s.client, s.scripts.Withdraw.Call([]string{t.keys.Owner, t.keys.Fence, t.keys.Queue, t.keys.Alive},
		t.id.String(), t.call, t.sureness(), retention.Milliseconds(), s.publish, t.keys.Channel), protocol.Only("withdrawn"))
	return err
}

// sureness is what the scripts call it.
func (t term) sureness() string {
	if t.unsure {
		return "unsure"
	}
	return "sure"
}

func (s *single) verify(ctx context.Context, t term) (Verdict, error) {
	return protocol.Query(ctx, s.client, s.scripts.Verify.Call([]string{t.keys.Owner, t.keys.Fence}, t.id.String(), t.token), decodeVerify)
}

func (s *single) revoke(ctx context.Context, k protocol.Keys, id uuid.UUID, from int64, retention time.Duration) (Revocation, error) {
	return protocol.Query(ctx, s.client, protocol.Revoke.Call([]string{k.Owner, k.Fence, k.Queue, k.Alive, k.Ended},
		id.String(), from, retention.Milliseconds(), s.publish, k.Channel), decodeRevoke)
}

func (s *single) raise(ctx context.Context, k protocol.Keys, floor int64, retention time.Duration) (int64, error) {
	return protocol.Query(ctx, s.client, protocol.Raise.Call([]string{k.Fence}, floor, retention.Milliseconds()), decodeRaise)
}

func (s *single) regrant(ctx context.Context, old extension, id uuid.UUID, call string, floor int64) (int64, error) {
	return grants(ctx, s, protocol.Regrant.Call([]string{old.keys.Owner, old.keys.Fence},
		old.id.String(), old.token, id.String(), call, floor, old.ttl.Milliseconds(), old.retention.Milliseconds()), decodeRegrant)
}

func (s *single) confirm(ctx context.Context, e extension) (outcome, error) {
	return protocol.Query(ctx, s.client, protocol.Confirm.Call([]string{e.keys.Owner, e.keys.Fence},
		e.id.String(), e.token, e.ttl.Milliseconds(), e.retention.Milliseconds()), decodeConfirm)
}

func (s *single) inspect(ctx context.Context, k protocol.Keys) (Inspection, error) {
	return protocol.Query(ctx, s.client, protocol.Inspect.Call([]string{k.Owner, k.Fence, k.Queue, k.Alive, k.Ended}), decodeInspect)
}

// grants is [protocol.Query] for scripts that grant, which replicas have to confirm if the
// configuration says so. On an error the grant may stand; the acquisition that fails withdraws it.
func grants[T any](ctx context.Context, s *single, c protocol.Call, decode func(protocol.Reply) (T, error)) (T, error) {
	var none T
	if s.replicas == 0 {
		return protocol.Query(ctx, s.client, c, decode)
	}
	client := s.client
	if s.cluster != nil {
		// WAIT carries no key, and must go where the script went.
		type found struct {
			master *redis.Client
			err    error
		}
		f, err := protocol.Bounded(ctx, func() found {
			master, err := s.cluster.MasterForKey(ctx, c.Keys[0])
			return found{master, err}
		})
		switch {
		case err != nil:
			return none, err
		case f.err != nil:
			return none, protocol.Failed(ctx, c.Script.Name, f.err)
		}
		client = f.master
	}
	r, confirmed, err := c.RunAndWait(ctx, client, s.replicas, s.within)
	if protocol.Moved(err) {
		s.cluster.ReloadState(ctx)
	}
	if err != nil {
		return none, err
	}
	if r.Word == "granted" && confirmed < int64(s.replicas) {
		return none, fmt.Errorf("%w: %d of %d have the lease after %v", ErrTooFewReplicas, confirmed, s.replicas, s.within)
	}
	return decode(r)
}
