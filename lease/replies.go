package lease

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Standing is what [Lease.Verify] has found.
type Standing int

const (
	// Current: the lease holds its resource and no newer token was issued.
	Current Standing = iota + 1
	// LeaseLost: the lease does not hold its resource any more.
	LeaseLost
	// FenceStale: the lease holds its resource, but a newer token was issued or the last token was
	// raised above its own.
	FenceStale
)

var standings = map[Standing]string{Current: "current", LeaseLost: "lease lost", FenceStale: "fence stale"}

func (s Standing) String() string { return cmp.Or(standings[s], fmt.Sprintf("Standing(%d)", int(s))) }

// Revocation is the new last token of a resource whose lease was ended. fencedb.Seal takes it as a
// grant: after that, the former holder cannot write.
type Revocation struct {
	resource    string
	id          uuid.UUID
	token       int64
	holder      uuid.UUID
	holderToken int64
}

// Resource is the resource whose lease was ended.
func (r *Revocation) Resource() string { return r.resource }

// Token is the new last token: greater than the former holder's, smaller than the next holder's.
func (r *Revocation) Token() int64 { return r.token }

// LeaseID identifies this revocation, as a lease id identifies a lease.
func (r *Revocation) LeaseID() uuid.UUID { return r.id }

// Holder returns the id and the token of the lease that this revocation has ended. held is false if
// nobody held the resource.
func (r *Revocation) Holder() (id uuid.UUID, token int64, held bool) {
	return r.holder, r.holderToken, r.holderToken > 0
}

// Inspection is what Redis knows about a resource. It is out of date when it arrives.
type Inspection struct {
	Resource      string
	Holder        uuid.UUID     // zero: nobody
	Token         int64         // of the holder; 0: nobody
	Label         string        // of the holder, its [Config.Holder]; "": nobody, or not known
	ExpiresIn     time.Duration // of the holder's lease, without renewal
	LastToken     int64         // 0: not known
	RememberedFor time.Duration // how long Redis keeps LastToken; negative: for ever, or it is not known
	Waiters       int           // processes that wait
	Revoked       uuid.UUID     // the lease that was revoked last, if Redis still knows; zero: none
	RevokedTo     int64         // the token of that revocation; equals LastToken if nobody has acquired since; 0: none
}

// acquired is the answer of acquire.lua: a token for each resource; or which resource is held, by
// whom, and after what time to ask again.
type acquired struct {
	tokens []int64   // nil when refused
	sent   time.Time // when the request was sent
	again  bool      // an earlier attempt has failed, and may yet be carried out
	wait   time.Duration
	index  int    // of the resource
	holder string // the label of the holder; "" if it is not known
}

// decodeAcquire decodes the answer to a request about that number of resources. After an error the
// grant may stand in Redis; the acquisition fails and withdraws it.
func (s *store) decodeAcquire(r protocol.Reply, resources int) (acquired, error) {
	switch {
	case r.Is("granted", resources) && r.Confirmed < s.cfg.Replicas:
		return acquired{}, &RefusedError{Code: protocol.NoReplicas,
			Cause: fmt.Errorf("%d of %d have the lease after %v", r.Confirmed, s.cfg.Replicas, s.cfg.ReplicaTimeout)}
	case r.Is("granted", resources):
		tokens := make([]int64, resources)
		for i := range tokens {
			tokens[i] = r.Number(i, 1)
		}
		return acquired{tokens: tokens, sent: r.Sent, again: r.Again}, r.Err()
	case r.Is("held", 3):
		held := acquired{sent: r.Sent, again: r.Again,
			wait: r.Milliseconds(0, 1), index: int(r.Number(1, 1)) - 1, holder: protocol.ReadLabel(r.Args[2])}
		if held.index < resources {
			return held, r.Err()
		}
	case r.Is("exhausted", 0):
		return acquired{}, ErrExhausted
	}
	return acquired{}, r.Unknown()
}

// outcome is the answer of extend.lua and release.lua about one exact lease.
type outcome string

const (
	done    outcome = "done"
	gone    outcome = "gone"
	taken   outcome = "taken"
	revoked outcome = "revoked"
)

var (
	decodeExtend    = outcomeOf("extended")
	decodeGivenBack = outcomeOf("released", "withdrawn")
	decodeRan       = outcomeOf("ran")
)

func outcomeOf(successes ...string) func(protocol.Reply) (outcome, error) {
	words := map[string]outcome{"gone": gone, "taken": taken, "revoked": revoked}
	for _, success := range successes {
		words[success] = done
	}
	return protocol.OneOf(words)
}

// loss is the error for a lease that Redis found to be over.
func (o outcome) loss() error {
	switch o {
	case taken:
		return errTaken
	case revoked:
		return ErrRevoked
	default:
		return fmt.Errorf("%w: redis no longer has it", ErrLost)
	}
}

var errTaken = fmt.Errorf("%w: taken by another holder", ErrLost)

// decodeEval returns the result of the caller's script, or why it was not run.
func decodeEval(ctx context.Context, r protocol.Reply) (any, outcome, error) {
	if err, failed := r.Value.(error); failed { // the script has returned an error as its result
		return nil, done, protocol.Failed(ctx, r.Script, err)
	}
	if r.Is("stale", 1) {
		return nil, "", passed(r)
	}
	result, err := decodeRan(r)
	return r.Value, result, err
}

// passed is the [ErrStale] of a reply that carries the last token.
func passed(r protocol.Reply) error {
	last := r.Number(0, 0)
	return cmp.Or(r.Err(), fmt.Errorf("%w: the last token is %d", ErrStale, last))
}

func decodeRevoke(r protocol.Reply) (Revocation, error) {
	switch {
	case r.Is("revoked", 3):
		return Revocation{token: r.Number(0, 1), holder: r.ID(1), holderToken: r.Number(2, 0)}, r.Err()
	case r.Is("passed", 1):
		return Revocation{}, passed(r)
	case r.Is("exhausted", 0):
		return Revocation{}, ErrExhausted
	}
	return Revocation{}, r.Unknown()
}

func decodeRaise(r protocol.Reply) (int64, error) {
	if !r.Is("raised", 1) {
		return 0, r.Unknown()
	}
	return r.Number(0, 1), r.Err()
}

func decodeInspect(r protocol.Reply) (Inspection, error) {
	if !r.Is("inspected", 8) {
		return Inspection{}, r.Unknown()
	}
	found := Inspection{
		Token:         r.Number(1, -2),
		ExpiresIn:     r.Milliseconds(2, -2),
		LastToken:     r.Number(3, -2),
		RememberedFor: r.Milliseconds(4, -2),
		Waiters:       int(r.Number(5, -2)),
		Label:         protocol.ReadLabel(r.Args[7]),
	}
	if r.Args[0] != "" {
		found.Holder = r.ID(0)
	}
	if r.Args[6] == "" {
		return found, r.Err()
	}
	ended := r.Parts(6, 4)
	found.Revoked, found.RevokedTo = ended.ID(0), ended.Number(3, 1)
	return found, cmp.Or(r.Err(), ended.Err())
}
