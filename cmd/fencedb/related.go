package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/lease/once"
	"github.com/fencedb/fencedb/observe/feed"
)

// places are the permits of a semaphore.
type places struct {
	Limit   *int     `json:"limit"` // set in Redis; nil: each program has its own
	Waiters int      `json:"waiters"`
	Holders []holder `json:"holders"`
}

// recorded is the result of a once: key.
type recorded struct {
	Bytes           int    `json:"bytes"`
	RememberedForMS *int64 `json:"remembered_for_ms"` // nil: for ever
}

// lookAround adds what does not matter for who can write: refusals, permits and results.
func (o *operation) lookAround(ctx context.Context, found *inspection) (err error) {
	if found.Refusals, err = o.readRefusals(ctx); err != nil {
		return fmt.Errorf("redis: the feed: %w", err)
	}
	if found.Semaphore, err = o.readPlaces(ctx); err != nil {
		return err
	}
	found.Once, err = o.readResult(ctx)
	return err
}

// limitOfNobody is a limit that no program uses.
const limitOfNobody = lease.MaxLimit

func newSemaphore(s *servers) (*lease.Semaphore, error) {
	return lease.NewSemaphore(s.client, lease.SemaphoreConfig{Limit: limitOfNobody,
		Lease: lease.Config{TTL: time.Minute, Namespace: s.names.namespace, HashResources: s.names.hashed}})
}

func (o *operation) readPlaces(ctx context.Context) (*places, error) {
	s, err := newSemaphore(o.servers)
	if err != nil {
		return nil, err
	}
	known, err := s.Inspect(ctx, o.resource)
	if err != nil || len(known.Permits)+known.Waiters == 0 {
		return nil, err
	}
	found := &places{Waiters: known.Waiters, Holders: []holder{}}
	if known.Limit != limitOfNobody {
		found.Limit = &known.Limit
	}
	for _, h := range known.Permits {
		found.Holders = append(found.Holders, placeOf(h))
	}
	return found, nil
}

func placeOf(h lease.Permit) holder {
	return holder{h.LeaseID, h.Token, issuedAt(h.Token), h.ExpiresIn.Milliseconds(), h.Label}
}

// onceResources are those of package once.
const onceResources = "once:"

func (o *operation) readResult(ctx context.Context) (*recorded, error) {
	key, ok := strings.CutPrefix(o.resource, onceResources)
	if !ok || key == "" {
		return nil, nil
	}
	keys, err := once.New(o.client, once.Config{Namespace: o.names.namespace, HashKeys: o.names.hashed})
	if err != nil {
		return nil, err
	}
	state, err := keys.State(ctx, key)
	if err != nil || state.Phase != once.Done {
		return nil, err
	}
	r := &recorded{Bytes: len(state.Result)}
	if ms := state.ExpiresIn.Milliseconds(); ms >= 0 {
		r.RememberedForMS = &ms
	}
	return r, nil
}

func (s *places) String() string {
	taken := strconv.Itoa(len(s.Holders))
	if s.Limit != nil {
		taken += fmt.Sprintf(" of %d", *s.Limit)
	}
	return fmt.Sprintf("places: %s taken, %d waiting", taken, s.Waiters)
}

func (r *recorded) String() string {
	text := fmt.Sprintf("done, with a result of %d bytes", r.Bytes)
	if r.RememberedForMS != nil {
		text += ", remembered for " + span(time.Duration(*r.RememberedForMS)*time.Millisecond)
	}
	return text
}

func printPlaces(p page, s *places) {
	if s == nil || len(s.Holders) == 0 {
		return
	}
	rows := make([][]string, len(s.Holders))
	for i, h := range s.Holders {
		rows[i] = []string{fmt.Sprint(h.Token), since(h.IssuedAt), span(time.Duration(h.ExpiresInMS) * time.Millisecond), h.LeaseID.String(), visible(h.Label)}
	}
	fmt.Fprintln(p.out)
	p.table([]string{"PLACE", "HELD FOR", "ENDS IN", "LEASE", "HOLDER"}, rows)
}

// refused is a write with a stale token.
type refused struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	Token  int64     `json:"token"`
	Stored int64     `json:"stored"`
}

const mostRefusals = 5

// readRefusals reads the feed. It returns nil if no program publishes, or if permission to read was
// denied.
func (o *operation) readRefusals(ctx context.Context) ([]refused, error) {
	var found []refused
	name, digits := o.resource, feed.Hashed(o.resource)
	err := feed.Replay(ctx, o.client, "0", func(e feed.Event) error {
		if found == nil {
			found = []refused{}
		}
		if e.Kind == feed.Refused && (e.Resource == name || e.Resource == digits) {
			found = append(found, refused{e.At.UTC(), e.Worker, e.Token, e.Stored})
			found = found[max(0, len(found)-mostRefusals):]
		}
		return nil
	}, feed.Namespace(o.names.namespace))
	if redis.IsPermissionError(err) {
		return nil, nil
	}
	slices.Reverse(found)
	return found, err
}

func printRefusals(p page, all []refused) {
	if len(all) == 0 {
		return
	}
	rows := make([][]string, len(all))
	for i, r := range all {
		rows[i] = []string{span(max(0, time.Since(r.At))) + " ago", visible(r.Worker), fmt.Sprint(r.Token), fmt.Sprint(r.Stored)}
	}
	fmt.Fprintln(p.out)
	p.table([]string{"REFUSED", "WORKER", "CARRIED", "STORED"}, rows)
}
