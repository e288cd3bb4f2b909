package semaphore

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease/internal/script"
)

var (
	//go:embed scripts/inspect.lua
	inspectLua string
	//go:embed scripts/limit.lua
	limitLua string
	//go:embed scripts/revoke.lua
	revokeLua string

	inspectScript = scriptOf("inspect", inspectLua)
	limitScript   = scriptOf("limit", limitLua)
	revokeScript  = scriptOf("revoke", revokeLua)
)

// maxResource is that of package lease, in bytes.
const maxResource = 512

func (s *Semaphore) check(resource string) error {
	switch {
	case s == nil || s.client == nil:
		return script.Invalid("the Semaphore was not made by semaphore.New")
	case resource == "":
		return script.Invalid("resource is empty; name what is shared, such as %q", "tenant:7")
	}
	return script.CheckName("resource", resource, maxResource)
}

// prefix is what the keys of a resource begin with; the part after it is as in package lease.
func (s *Semaphore) prefix(resource string) string {
	return kindName + ":v1:" + script.Tag(s.cfg.Lease.Namespace, resource, s.cfg.Lease.HashResources) + ":"
}

// limitKey is beside the key of the holders.
func limitKey(owner string) string { return strings.TrimSuffix(owner, "owner") + "limit" }

// Inspection is what Redis knows about a resource. It is about the past by the time it arrives.
type Inspection struct {
	Limit   int      // in force
	Waiters int      // in Redis's queue: one for each process that waits
	Holders []Holder // by the end of their time, the first in front
}

// Holder is one who has a place.
type Holder struct {
	LeaseID   uuid.UUID
	Token     int64
	ExpiresIn time.Duration // unless it is renewed
}

// Inspect tells who holds the resource. It changes nothing.
func (s *Semaphore) Inspect(ctx context.Context, resource string) (found Inspection, err error) {
	if err := s.check(resource); err != nil {
		return Inspection{}, err
	}
	prefix := s.prefix(resource)
	found, err = script.Ask(ctx, s.client,
		inspectScript.Call([]string{prefix + "owner", prefix + "alive", prefix + "limit"}, s.cfg.Limit), decodeInspect)
	if err != nil {
		return Inspection{}, fmt.Errorf("semaphore: inspect %q: %w", resource, err)
	}
	return found, nil
}

// SetLimit changes how many may hold the resource at once, for all programs from now on and whatever they are configured with. It
// lasts until it is changed again. Holders above a lower limit keep their places until they leave; for a higher one
// the first waiter is woken.
//
// After [lease.ErrUnreachable] the limit may have been changed or not; setting it again does no harm.
func (s *Semaphore) SetLimit(ctx context.Context, resource string, limit int) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	return s.setLimit(ctx, resource, limit)
}

// ResetLimit gives the limit back to each program's [Config].
func (s *Semaphore) ResetLimit(ctx context.Context, resource string) error {
	return s.setLimit(ctx, resource, 0)
}

func (s *Semaphore) setLimit(ctx context.Context, resource string, limit int) error {
	if err := s.check(resource); err != nil {
		return err
	}
	prefix := s.prefix(resource)
	_, err := script.Ask(ctx, s.client,
		limitScript.Call([]string{prefix + "limit", prefix + "queue", prefix + "alive"}, limit, s.publish(), prefix+"wake"), script.Only("set"))
	if err != nil {
		return fmt.Errorf("semaphore: limit of %q: %w", resource, err)
	}
	return nil
}

// Revoke ends the holder with that lease id, one of those that [Semaphore.Inspect] lists. Its place is free at once, and the first waiter
// is woken. Its context ends with [lease.ErrRevoked] at its next renewal; until then it works beside as many as the limit
// lets in.
//
// It answers false, and has changed nothing, if nobody holds with that id. A request that goes unanswered is repeated; after
// [lease.ErrUnreachable] it may have taken effect, and asking again does no harm.
func (s *Semaphore) Revoke(ctx context.Context, resource string, leaseID uuid.UUID) (held bool, err error) {
	if err := s.check(resource); err != nil {
		return false, err
	}
	prefix := s.prefix(resource)
	held, err = script.Ask(ctx, s.client, revokeScript.Call([]string{prefix + "owner", prefix + "ended", prefix + "queue", prefix + "alive"},
		leaseID.String(), s.publish(), prefix+"wake"), decodeRevoke)
	if err != nil {
		return false, fmt.Errorf("semaphore: revoke %v of %q: %w", leaseID, resource, err)
	}
	return held, nil
}

func decodeRevoke(r script.Reply) (held bool, err error) {
	switch {
	case r.Is("revoked", 0):
		return true, nil
	case r.Is("gone", 0):
		return false, nil
	}
	return false, r.Unknown()
}

// publish is the command that wakes waiters.
func (s *Semaphore) publish() string {
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		return "SPUBLISH"
	}
	return "PUBLISH"
}

// decodeInspect reads the limit, the number of waiters, and two words for each holder.
func decodeInspect(r script.Reply) (Inspection, error) {
	if r.Word != "inspected" || len(r.Args) < 2 || len(r.Args)%2 != 0 {
		return Inspection{}, r.Unknown()
	}
	limit, err := r.Number(0, 1)
	waiters, err2 := r.Number(1, 0)
	if err != nil || err2 != nil {
		return Inspection{}, r.Unknown()
	}
	found := Inspection{Limit: int(limit), Waiters: int(waiters)}
	for i := 2; i < len(r.Args); i += 2 {
		h, err := decodeHolder(r, i)
		if err != nil {
			return Inspection{}, err
		}
		found.Holders = append(found.Holders, h)
	}
	return found, nil
}

// decodeHolder reads "<lease id>:<token>:<calls>" and the milliseconds left.
func decodeHolder(r script.Reply, i int) (Holder, error) {
	name, rest, _ := strings.Cut(r.Args[i], ":")
	number, _, _ := strings.Cut(rest, ":") // and the calls
	id, err := uuid.Parse(name)
	token, err2 := script.Reply{Script: r.Script, Args: []string{number}}.Number(0, 1)
	left, err3 := r.Number(i+1, 1)
	if err != nil || err2 != nil || err3 != nil {
		return Holder{}, r.Unknown()
	}
	return Holder{id, token, time.Duration(left) * time.Millisecond}, nil
}
