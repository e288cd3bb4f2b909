package lease

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// term names one lease exactly. Every operation after the acquisition compares all of it, so that a late request of an old
// lease cannot touch a newer one of the same resource.
type term struct {
	keys  keys
	id    uuid.UUID
	token int64
}

// ask is a request for a lease.
type ask struct {
	keys      keys
	id        uuid.UUID
	mode      mode
	ttl       time.Duration
	retention time.Duration
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

// extended is what became of one extension.
type extended struct {
	outcome outcome
	err     error
}

// store keeps leases. Each call is one attempt; an error that is [ErrUnreachable] leaves open whether it was carried out.
type store interface {
	acquire(ctx context.Context, a ask) (acquired, error)
	extend(ctx context.Context, batch []extension) []extended // one answer for each, in order
	release(ctx context.Context, t term) (outcome, error)
	withdraw(ctx context.Context, k keys, id uuid.UUID) error
	verify(ctx context.Context, t term) (Verdict, error)
	listen(channel string) *ear // nil if waiters are not woken, or not now
}

// single is the store on one Redis deployment: a server, a Sentinel group, or a Cluster.
type single struct {
	client  redis.UniversalClient
	publish string // the command that wakes waiters
	ears    func(channel string) *ear
}

func newSingle(client redis.UniversalClient) *single {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		s := &shards{cluster: cluster, byAddr: make(map[string]*listener)}
		return &single{client: client, publish: "SPUBLISH", ears: s.open}
	}
	return &single{client: client, publish: "PUBLISH", ears: listenOn(client).open}
}

func (s *single) listen(channel string) *ear { return s.ears(channel) }

func (s *single) acquire(ctx context.Context, a ask) (acquired, error) {
	k := a.keys
	r, err := run(ctx, s.client, call{acquireScript, []string{k.owner, k.fence, k.queue, k.alive},
		[]any{a.id.String(), a.ttl.Milliseconds(), a.retention.Milliseconds(), string(a.mode), s.publish, k.channel}})
	if err != nil {
		return acquired{}, err
	}
	return decodeAcquire(r)
}

func (s *single) extend(ctx context.Context, batch []extension) []extended {
	calls := make([]call, len(batch))
	for i, e := range batch {
		calls[i] = extendCall(e)
	}
	answers := make([]extended, len(batch))
	for i, r := range runAll(ctx, s.client, calls) {
		answers[i].err = r.err
		if r.err == nil {
			answers[i].outcome, answers[i].err = decodeExtend(r.reply)
		}
	}
	return answers
}

func extendCall(e extension) call {
	return call{extendScript, []string{e.keys.owner, e.keys.fence, e.keys.ended},
		[]any{e.id.String(), e.token, e.ttl.Milliseconds(), e.retention.Milliseconds()}}
}

func (s *single) release(ctx context.Context, t term) (outcome, error) {
	k := t.keys
	r, err := run(ctx, s.client, call{releaseScript, []string{k.owner, k.queue, k.alive, k.ended},
		[]any{t.id.String(), t.token, s.publish, k.channel}})
	if err != nil {
		return "", err
	}
	return decodeRelease(r)
}

func (s *single) withdraw(ctx context.Context, k keys, id uuid.UUID) error {
	r, err := run(ctx, s.client, call{withdrawScript, []string{k.owner, k.queue, k.alive},
		[]any{id.String(), s.publish, k.channel}})
	if err != nil {
		return err
	}
	return decodeWithdraw(r)
}

func (s *single) verify(ctx context.Context, t term) (Verdict, error) {
	r, err := run(ctx, s.client, call{verifyScript, []string{t.keys.owner, t.keys.fence},
		[]any{t.id.String(), t.token}})
	if err != nil {
		return 0, err
	}
	return decodeVerify(r)
}
