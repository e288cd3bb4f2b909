package lease

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// Verdict is what Redis says about a lease.
type Verdict int

const (
	// Current: the lease holds its resource and no newer token was issued.
	Current Verdict = iota + 1
	// LeaseLost: the lease does not hold its resource any more.
	LeaseLost
	// FenceStale: the lease holds its resource, but a newer token was issued or the fence was
	// raised above it.
	FenceStale
)

func (v Verdict) String() string {
	switch v {
	case Current:
		return "current"
	case LeaseLost:
		return "lease lost"
	case FenceStale:
		return "fence stale"
	}
	return fmt.Sprintf("Verdict(%d)", int(v))
}

// Revocation is the new last token of a resource whose holder was ended. It is a grant as package
// fencedb takes it: sealed there, it keeps the former holder from writing.
type Revocation struct {
	resource    string
	id          uuid.UUID
	token       int64
	holder      uuid.UUID
	holderToken int64
}

// Resource is what was revoked.
func (r *Revocation) Resource() string { return r.resource }

// Token is the new last token: greater than the former holder's, smaller than the next holder's.
func (r *Revocation) Token() int64 { return r.token }

// LeaseID identifies this revocation, as a lease id does a lease.
func (r *Revocation) LeaseID() uuid.UUID { return r.id }

// Holder is the lease that this revocation has ended, and its token. It answers false if nobody
// held the resource.
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
	RememberedFor time.Duration // the last token; negative: it never expires, or is not known
	Waiters       int           // processes that wait
	Revoked       uuid.UUID     // the lease that was revoked lately; zero: none
	RevokedTo     int64         // the token of that revocation; equals LastToken if nobody has acquired since; 0: none
}

// acquired is the answer of acquire.lua: a token for each resource, or how long to wait and for
// which of them.
type acquired struct {
	tokens []int64 // nil when refused
	unsure bool    // a member of a quorum has not answered
	wait   time.Duration
	index  int
	holder string // its label; "" if it is not known
}

func decodeAcquire(r protocol.Reply, resources int) (acquired, error) {
	switch {
	case r.Is("granted", resources):
		tokens := make([]int64, resources)
		for i := range tokens {
			var err error
			if tokens[i], err = r.Number(i, 1); err != nil {
				return acquired{}, err
			}
		}
		return acquired{tokens: tokens}, nil
	case r.Is("held", 3):
		wait, err := r.Number(0, 1)
		n, err2 := r.Number(1, 1)
		if err != nil || err2 != nil || n > int64(resources) {
			return acquired{}, r.Unknown()
		}
		return acquired{wait: time.Duration(wait) * time.Millisecond, index: int(n) - 1, holder: protocol.HolderOf(r.Args[2])}, nil
	case r.Is("over", 0):
		return acquired{}, errOver
	case r.Is("exhausted", 0):
		return acquired{}, ErrExhausted
	}
	return acquired{}, r.Unknown()
}

// errOver is the answer to a request that arrives after its call was given up. Usually nobody waits
// for it.
var errOver = fmt.Errorf("%w: the acquisition was given up before", ErrLost)

// maxToken is the largest token: what Lua's doubles hold exactly.
const maxToken = protocol.MaxNumber

// outcome is the answer of extend.lua and release.lua about one exact lease.
type outcome string

const (
	done    outcome = "done"
	gone    outcome = "gone"
	taken   outcome = "taken"
	revoked outcome = "revoked"
)

func decodeExtend(r protocol.Reply) (outcome, error) { return decodeOutcome(r, "extended") }

func decodeConfirm(r protocol.Reply) (outcome, error) { return decodeOutcome(r, "confirmed") }

func decodeRelease(r protocol.Reply) (outcome, error) { return decodeOutcome(r, "released") }

func decodeOutcome(r protocol.Reply, success string) (outcome, error) {
	switch {
	case r.Is(success, 0):
		return done, nil
	case r.Is("gone", 0), r.Is("taken", 0), r.Is("revoked", 0):
		return outcome(r.Word), nil
	}
	return "", r.Unknown()
}

// loss is why a lease is not held any more.
func (o outcome) loss() error {
	switch o {
	case taken:
		return fmt.Errorf("%w: taken by another holder", ErrLost)
	case revoked:
		return ErrRevoked
	default:
		return fmt.Errorf("%w: redis no longer has it", ErrLost)
	}
}

// decodeEval returns the result of the caller's script, or why it was not run.
func decodeEval(ctx context.Context, r protocol.Reply) (any, outcome, error) {
	switch {
	case r.Is("ran", 0):
		if err, failed := r.Value.(error); failed { // the script has returned it
			return nil, done, protocol.Failed(ctx, r.Script, err)
		}
		return r.Value, done, nil
	case r.Is("stale", 1):
		last, err := r.Number(0, 1)
		if err != nil {
			return nil, "", err
		}
		return nil, "", fmt.Errorf("%w: the last token is %d", ErrStale, last)
	}
	result, err := decodeOutcome(r, "")
	return nil, result, err
}

func decodeRevoke(r protocol.Reply) (Revocation, error) {
	switch {
	case r.Is("revoked", 3):
		token, err := r.Number(0, 1)
		holder, err2 := uuid.Parse(r.Args[1])
		held, err3 := r.Number(2, 0)
		if err != nil || err2 != nil || err3 != nil {
			return Revocation{}, r.Unknown()
		}
		return Revocation{token: token, holder: holder, holderToken: held}, nil
	case r.Is("passed", 1):
		last, err := r.Number(0, 0)
		if err != nil {
			return Revocation{}, err
		}
		return Revocation{}, fmt.Errorf("%w: the last token is %d", ErrStale, last)
	case r.Is("exhausted", 0):
		return Revocation{}, ErrExhausted
	}
	return Revocation{}, r.Unknown()
}

func decodeRaise(r protocol.Reply) (int64, error) {
	if !r.Is("raised", 1) {
		return 0, r.Unknown()
	}
	return r.Number(0, 1)
}

func decodeRegrant(r protocol.Reply) (int64, error) {
	switch {
	case r.Is("granted", 1):
		return r.Number(0, 1)
	case r.Is("gone", 0), r.Is("taken", 0):
		return 0, outcome(r.Word).loss()
	case r.Is("exhausted", 0):
		return 0, ErrExhausted
	}
	return 0, r.Unknown()
}

func decodeInspect(r protocol.Reply) (Inspection, error) {
	if !r.Is("inspected", 8) {
		return Inspection{}, r.Unknown()
	}
	var n [5]int64
	for i := range n {
		var err error
		if n[i], err = r.Number(i+1, -2); err != nil {
			return Inspection{}, err
		}
	}
	found := Inspection{
		Token:         n[0],
		ExpiresIn:     time.Duration(n[1]) * time.Millisecond,
		LastToken:     n[2],
		RememberedFor: time.Duration(n[3]) * time.Millisecond,
		Waiters:       int(n[4]),
		Label:         protocol.HolderOf(r.Args[7]),
	}
	var err error
	if r.Args[0] != "" {
		found.Holder, err = uuid.Parse(r.Args[0])
	}
	if latest := strings.Split(r.Args[6], ":"); len(latest) == 5 && err == nil {
		found.Revoked, err = uuid.Parse(latest[0])
		found.RevokedTo, _ = strconv.ParseInt(latest[3], 10, 64)
	}
	if err != nil || (r.Args[6] != "" && found.RevokedTo < 1) {
		return Inspection{}, r.Unknown()
	}
	return found, nil
}

func decodeVerify(r protocol.Reply) (Verdict, error) {
	switch {
	case r.Is("current", 0):
		return Current, nil
	case r.Is("lost", 0):
		return LeaseLost, nil
	case r.Is("stale", 1):
		_, err := r.Number(0, 1)
		return FenceStale, err
	}
	return 0, r.Unknown()
}
