package lease

import "context"

// Bind returns ctx with an end for the work that the lease covers: it ends with ctx or with the lease, whichever is first, and
// [context.Cause] tells which and why, as the cause of [Lease.Context] does. Deadline and values are those of ctx. The function
// frees what it takes, and ends it with [context.Canceled]; it neither ends ctx nor the lease. [Issuer.Do] binds by itself.
func (l *Lease) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	return Leases{l}.Bind(ctx)
}

// Bind is [Lease.Bind] for several: the context ends with the first of them.
func (ls Leases) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(ctx)
	stops := make([]func() bool, len(ls))
	for n, l := range ls {
		if over := l.Err(); over != nil { // also for one whose timers have not run yet: the process was stopped
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
