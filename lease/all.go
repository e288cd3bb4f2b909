package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// maxResources bounds one acquisition of several resources, and with it how long one script keeps Redis busy.
const maxResources = 1000

// Leases are held together, in the order of their resources' bytes. They are grants as package fencedb takes them: fencedb.All(leases...).
type Leases []*Lease

// Release gives all of them back, each as [Lease.Release] does and all at once. The error joins what went wrong.
func (ls Leases) Release(ctx context.Context) error {
	return ls.each(func(l *Lease) error { return l.Release(ctx) })
}

// first is nil if there is none.
func (ls Leases) first() *Lease {
	if len(ls) == 0 {
		return nil
	}
	return ls[0]
}

// each calls f for all leases at once, so that one bound holds for all of them, and joins the errors, each with its
// resource.
func (ls Leases) each(f func(*Lease) error) error {
	errs := make([]error, len(ls))
	var all sync.WaitGroup
	for n, l := range ls {
		all.Go(func() {
			if err := f(l); err != nil {
				errs[n] = fmt.Errorf("%q: %w", l.resource, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// TryAcquireAll acquires all resources, or none. It does not wait: [ErrHeld] names the first that is not free. Up to 1000
// resources; one that is named twice counts once.
//
// On one Redis the answer is one script's. On a Cluster, where resources live on different shards, they are acquired one after the
// other, always in the same order, and given back if one is refused.
func (i *Issuer) TryAcquireAll(ctx context.Context, resources []string, opts ...Option) (Leases, error) {
	a, err := i.several(ctx, resources, opts)
	if err != nil {
		return nil, err
	}
	return a.run(ctx, a.tryAll)
}

// AcquireAll acquires all resources, or none, waiting for those that are not free, bounded by ctx and [WaitAtMost] over the whole.
// While it waits for one it holds those that come before it in the order of their bytes; since everyone keeps to that order,
// two acquisitions cannot wait for each other. Otherwise it is like [Issuer.TryAcquireAll].
func (i *Issuer) AcquireAll(ctx context.Context, resources []string, opts ...Option) (Leases, error) {
	a, err := i.several(ctx, resources, opts)
	if err != nil {
		return nil, err
	}
	if a.noWait {
		return a.run(ctx, a.tryAll)
	}
	return a.run(ctx, a.waitAll)
}

// DoAll is [Issuer.Do] for several resources. The context that fn gets ends with any of the leases.
func (i *Issuer) DoAll(ctx context.Context, resources []string, fn func(ctx context.Context, ls Leases) error, opts ...Option) (err error) {
	leases, err := i.AcquireAll(ctx, resources, opts...)
	if err != nil {
		return err
	}
	defer func() {
		if lost := leases.each(func(l *Lease) error { return l.finish(ctx) }); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	work, stop := leases.Bind(ctx)
	defer stop()
	return fn(work, leases)
}

// several puts the resources in the order that everyone keeps to.
func (i *Issuer) several(ctx context.Context, resources []string, opts []Option) (*acquisition, error) {
	resources = slices.Clone(resources)
	slices.Sort(resources)
	resources = slices.Compact(resources)
	switch {
	case len(resources) == 0:
		return nil, protocol.Invalid("no resources")
	case len(resources) > maxResources:
		return nil, protocol.Invalid("%d resources, more than %d: lease what contains them", len(resources), maxResources)
	}
	return i.acquisition(ctx, resources, opts)
}

// waitAll asks for everything, and if that is refused waits for one after the other.
func (a *acquisition) waitAll(ctx context.Context) (Leases, error) {
	waiting, cancel := a.limit(ctx)
	defer cancel()
	leases, err := a.tryAll(a.asking(waiting))
	var held *HeldError
	if !errors.As(err, &held) {
		return leases, err
	}
	if a.call.settled(waiting) {
		leases, err = a.stepByStep(func(step *acquisition) (Leases, error) { return step.wait(waiting) })
		if waiting.Err() == nil || err == nil || !errors.Is(err, ErrUnreachable) && !errors.Is(err, context.Cause(waiting)) {
			return leases, err
		}
	}
	held.Cause = context.Cause(waiting) // the last that was heard
	return nil, held
}

// tryAll asks once for everything, where one script can see it, and otherwise for one after the other.
func (a *acquisition) tryAll(ctx context.Context) (Leases, error) {
	if a.issuer.store.spans(a.keys) {
		return a.try(ctx)
	}
	return a.stepByStep(func(step *acquisition) (Leases, error) { return step.try(ctx) })
}

// stepByStep acquires one after the other, and gives back what it has when one cannot be had.
func (a *acquisition) stepByStep(acquire func(step *acquisition) (Leases, error)) (Leases, error) {
	var leases Leases
	for n := range a.resources {
		l, err := acquire(a.part(n))
		if err == nil {
			leases = append(leases, l...)
			err = leases.lost() // waiting may have taken longer than an earlier one lasts
		}
		if err != nil {
			a.call.giveBack(a.caller, leases)
			return nil, err
		}
	}
	return leases, nil
}

// lost is the reason why one of the leases is over already.
func (ls Leases) lost() error {
	for _, l := range ls {
		if err := l.Err(); err != nil {
			return fmt.Errorf("%q: %w", l.resource, err)
		}
	}
	return nil
}
