package grant

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Trust says which lines a receiver believes: [Verified] or [Trusted]. The zero Trust believes
// none.
type Trust struct {
	issuer *lease.Issuer // nil: nobody is asked
	atMost time.Duration
}

// Verified asks the Redis of issuer whether the lease of a grant is current. It believes the grant
// for as long as Redis would keep the lease without renewal, or as the line says, whichever is
// shorter. issuer must have the Namespace of the sender's issuer. This costs a round trip to Redis
// for each resource.
//
// Like every answer of Redis, this one may be out of date when it arrives: the fence decides at the
// write.
func Verified(issuer *lease.Issuer) Trust {
	if issuer == nil {
		return Trust{}
	}
	return Trust{issuer, math.MaxInt64}
}

// Trusted believes every line, for no longer than atMost: the TTL of the sender's leases is enough.
// Whoever can send a line can write to every resource, and can shut its next holders out with a
// token that is too high. So it is for services that only your own programs reach, and for leases
// of other issuers.
func Trusted(atMost time.Duration) Trust { return Trust{nil, max(atMost, 0)} }

// errNoTrust is the error of the zero Trust.
var errNoTrust = errors.New("grant: the Trust is neither Verified nor Trusted; choose one")

// Accept reads the line that came with a call. The context that it returns carries the grant, for
// [FromContext], and ends with ctx or with the grant, with [fencedb.ErrLeaseOver] as its cause.
// Call the CancelFunc when the call is over.
//
// The error is [ErrMalformed]; fencedb.ErrLeaseOver if nothing of the grant remains;
// [lease.ErrLost], [lease.ErrRevoked] or [lease.ErrStale] if Redis says that the lease is not
// current; or that of asking Redis, such as [lease.ErrUnreachable]. Then nothing was written.
// Cancelling ctx ends the wait for Redis.
func (t Trust) Accept(ctx context.Context, line string) (context.Context, context.CancelFunc, error) {
	if t == (Trust{}) {
		return nil, nil, errNoTrust
	}
	g, err := Decode(line, t.atMost)
	if err != nil {
		return nil, nil, err
	}
	var all []fencedb.Grant
	var end time.Time
	for _, one := range each(g) {
		if t.issuer != nil {
			if one, err = t.verify(ctx, one); err != nil {
				return nil, nil, err
			}
		}
		if until := validUntil(one); end.IsZero() || until.Before(end) {
			end = until
		}
		all = append(all, one)
	}
	g = join(all)
	over := protocol.Also(fmt.Errorf("grant: the line on %q has run out; its lease stands if it was renewed: send the call again, with a new line",
		g.Resource()), fencedb.ErrLeaseOver)
	if !time.Now().Before(end) { // Redis took too long to answer
		return nil, nil, over
	}
	ctx, cancel := context.WithDeadlineCause(ctx, end, over)
	return NewContext(ctx, g), cancel, nil
}

// verify asks Redis for the lease. Its remaining time counts from before the request.
func (t Trust) verify(ctx context.Context, g fencedb.Grant) (fencedb.Grant, error) {
	asked := time.Now()
	found, err := t.issuer.Inspect(ctx, g.Resource())
	current := found.Holder == g.LeaseID() && found.Token == g.Token()
	switch {
	case err != nil:
		return nil, fmt.Errorf("grant: %w", err)
	case current && found.LastToken <= g.Token():
		if until := asked.Add(found.ExpiresIn); until.Before(validUntil(g)) {
			g = fencedb.NewGrant(g.Resource(), g.Token(), g.LeaseID(), until)
		}
		return g, nil
	case current:
		err = lease.ErrStale
	case found.Revoked == g.LeaseID():
		err = lease.ErrRevoked
	default:
		err = lease.ErrLost
	}
	return nil, fmt.Errorf("grant: the lease on %q is not current: %w", g.Resource(), err)
}

type key struct{}

// NewContext returns a context that carries g, for [Transport] and the clients of grant/grpc to
// send.
func NewContext(ctx context.Context, g fencedb.Grant) context.Context {
	return context.WithValue(ctx, key{}, g)
}

// FromContext returns the grant of [NewContext], or the one that a call came with, and whether
// there is one. Without one it is nil, which every function of package fencedb refuses. A call that
// is made with that context, over [Transport] or grant/grpc, carries it on.
func FromContext(ctx context.Context) (fencedb.Grant, bool) {
	g, ok := ctx.Value(key{}).(fencedb.Grant)
	return g, ok
}
