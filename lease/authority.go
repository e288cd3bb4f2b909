package lease

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Revoke ends the lease on the resource and issues a new last token. The first waiter is called.
// The former holder's context ends at its next renewal, with [ErrRevoked]. To stop its writes at
// once, seal the revocation where the data lives.
//
// A request without an answer is repeated, and takes effect once. After [ErrUnreachable] it may
// have taken effect, or may yet do so and then end the lease of a later holder: look with
// [Issuer.Inspect] before you revoke again.
func (i *Issuer) Revoke(ctx context.Context, resource string) (*Revocation, error) {
	return i.revoke(ctx, resource, 0)
}

// TakeOver is [Issuer.Revoke] on condition that no token above the given one was issued for the
// resource. It is for a supervisor that has found the holder dead. Of two that take over from the
// same token, one succeeds; the other gets [ErrStale] and has changed nothing.
func (i *Issuer) TakeOver(ctx context.Context, resource string, token int64) (*Revocation, error) {
	if token < 1 || token > protocol.MaxNumber {
		return nil, protocol.Invalid("token (%d) must be from 1 to %d", token, int64(protocol.MaxNumber))
	}
	return i.revoke(ctx, resource, token)
}

func (i *Issuer) revoke(ctx context.Context, resource string, from int64) (*Revocation, error) {
	if err := i.ready(resource); err != nil {
		return nil, err
	}
	id := uuid.New()
	t := i.trace(ctx, TraceStart{Op: OpRevoke, Resource: resource, LeaseID: id})
	r, err := about(t.ctx, i.core, "revoke", resource, i.store.revoke(i.keys(resource), id, from), decodeRevoke)
	t.start.Token = r.token
	t.end(0, err)
	if err != nil {
		return nil, err
	}
	r.resource, r.id = resource, id
	return &r, nil
}

// Raise raises the last token of a resource to at least floor, and returns it; the next token is
// greater. Call it when the data store has seen higher tokens than Redis remembers. The holder
// keeps its lease, but is stale if the last token is now above its own: it must release and acquire
// again. With [Config.Seal], an acquisition does all of this by itself.
func (i *Issuer) Raise(ctx context.Context, resource string, floor int64) (int64, error) {
	if err := i.ready(resource); err != nil {
		return 0, err
	}
	return i.raise(ctx, resource, floor)
}

func (c *core) raise(ctx context.Context, resource string, floor int64) (int64, error) {
	if floor < 1 || floor > protocol.MaxNumber {
		return 0, protocol.Invalid("floor (%d) must be a token, from 1 to %d", floor, int64(protocol.MaxNumber))
	}
	t := c.trace(ctx, TraceStart{Op: OpRaise, Resource: resource})
	last, err := about(t.ctx, c, "raise", resource, c.store.raise(c.keys(resource), floor), decodeRaise)
	t.start.Token = last
	t.end(0, err)
	return last, err
}

// Inspect returns what Redis knows about a resource. It changes nothing.
func (i *Issuer) Inspect(ctx context.Context, resource string) (Inspection, error) {
	if err := i.ready(resource); err != nil {
		return Inspection{}, err
	}
	found, err := about(ctx, i.core, "inspect", resource, i.store.inspect(i.keys(resource)), decodeInspect)
	if err == nil {
		found.Resource = resource
	}
	return found, err
}

// about makes a request about a resource, with [protocol.Ask]. An error names the request and the
// resource.
func about[T any](ctx context.Context, c *core, what, resource string, call protocol.Call,
	decode func(protocol.Reply) (T, error)) (T, error) {
	answer, err := protocol.Ask(ctx, c.store.redis, protocol.Patience, call, decode)
	if err != nil {
		err = fmt.Errorf("lease: %s %q: %w", what, resource, err)
	}
	return answer, err
}
