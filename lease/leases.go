package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Leases are leases that are held together, in the byte order of their resources. Package fencedb
// takes them as grants: fencedb.All(leases...).
type Leases []*Lease

// Extend renews all of them at once, each as [Lease.Extend] does. The error joins those of the
// leases.
func (ls Leases) Extend(ctx context.Context) error {
	return ls.each(func(l *Lease) error { return l.Extend(ctx) })
}

// Release releases all of them at once, each as [Lease.Release] does. The error joins those of the
// leases.
func (ls Leases) Release(ctx context.Context) error {
	return ls.each(func(l *Lease) error { return l.Release(ctx) })
}

// GiveBack releases all of them as [Issuer.Do] does: it waits for the first attempt only, and not
// at all for a lease that is over; more attempts go on in the background. It is for work that
// outlasts a function, such as rows that are read under the leases.
func (ls Leases) GiveBack(ctx context.Context) {
	_ = ls.each(func(l *Lease) error { return l.finish(ctx) })
}

// first is the first lease; nil if there is none.
func (ls Leases) first() *Lease {
	if len(ls) == 0 {
		return nil
	}
	return ls[0]
}

// each calls f for all leases at once, so that one time limit holds for all, and joins the errors,
// each with its resource. If a tracer panics in f, so does each, after f has returned for all.
func (ls Leases) each(f func(*Lease) error) error {
	if len(ls) == 1 {
		return named(ls[0], f(ls[0]))
	}
	errs := make([]error, len(ls))
	panicked := make(chan any, len(ls))
	var all sync.WaitGroup
	for n, l := range ls {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil { // the caller can recover it only on its own goroutine
					panicked <- p
				}
			}()
			errs[n] = named(l, f(l))
		})
	}
	all.Wait()
	select {
	case p := <-panicked:
		panic(p)
	default:
	}
	return protocol.Join(errs...)
}

// named adds the resource to an error.
func named(l *Lease, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%q: %w", l.Resource(), err)
}

// lost returns why one of the leases is over already; nil if none is.
func (ls Leases) lost() error {
	for _, l := range ls {
		if err := named(l, l.Err()); err != nil {
			return err
		}
	}
	return nil
}

// Bind returns a context for the work under the lease. It ends with ctx or with the lease,
// whichever is first, and [context.Cause] returns the reason. Its deadline and values are those of
// ctx. Call the function when the work has ended: it ends the returned context, with
// [context.Canceled], but neither ctx nor the lease. [Issuer.Do] does all this by itself.
func (l *Lease) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return Leases{l}.Bind(ctx)
}

// Bind is [Lease.Bind] for several leases: the context ends with the first of them that ends.
func (ls Leases) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(ctx)
	stops := make([]func() bool, len(ls))
	for n, l := range ls {
		if over := l.Err(); over != nil { // Err is right even if the timers have not run yet after a stop of the process
			cancel(over)
		}
		stops[n] = context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) })
	}
	return work, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// do runs the work under the leases and releases them, even if the work panics. It does not run the
// work if a lease is over already: the process may have been stopped since they were granted.
func (ls Leases) do(ctx context.Context, fn func(context.Context) error) (err error) {
	defer func() { err = ls.finish(ctx, err) }()
	if over := ls.lost(); over != nil {
		return fmt.Errorf("lease: fn was not run: %w", over)
	}
	work, stop := ls.Bind(ctx)
	defer stop()
	return fn(work)
}

// finish releases the leases after the work, which returned err.
func (ls Leases) finish(ctx context.Context, err error) error {
	lost := ls.each(func(l *Lease) error {
		cause := l.finish(ctx)
		if cause != nil && errors.Is(err, cause) { // err contains it already
			return nil
		}
		return cause
	})
	switch {
	case lost == nil:
		return err
	case err == nil:
		return &WorkDoneError{lost}
	}
	return protocol.Join(err, lost)
}

// finish releases the lease after the work. It waits for the first attempt, which a working Redis
// answers; more attempts go on in the background. If the lease was over, all attempts do. The error
// is why the lease ended before the work, or why Redis did not release it.
func (l *Lease) finish(ctx context.Context) error {
	if err := l.granted(); err != nil {
		return err
	}
	over := l.Err()
	o, begun := l.beginRelease(ctx, ErrReleased)
	switch {
	case begun && over != nil:
		o.goOn()
	case begun:
		o.tryHere(ctx)
	}
	switch {
	case errors.Is(over, ErrReleased) && !errors.Is(over, ErrClosed): // by fn itself
		return nil
	case over != nil:
		return over
	case o.wait(ctx, protocol.Grace) != nil, protocol.Transient(o.last):
		return nil
	}
	return o.outcome(o.last)
}

// endTracing ends the tracing of an acquisition with the first lease, if there is one.
func (ls Leases) endTracing(t *tracing, err error) {
	var validFor time.Duration
	if first := ls.first(); first != nil {
		t.start.LeaseID, t.start.Token, validFor = first.id, first.term.token, time.Until(first.ValidUntil())
	}
	t.end(validFor, byCaller(t.ctx, err))
}
