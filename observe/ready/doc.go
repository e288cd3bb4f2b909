// Package ready answers a load balancer's or an orchestrator's question whether this process can do its work now: whether
// leases can be had and fenced writes can commit.
//
//	handler, err := ready.New(ready.Config{Checks: []ready.Check{
//		ready.Leases(issuer),
//		ready.Fences(stdlib.OpenDBFromPool(pool)),
//	}})
//	...
//	mux.Handle("/readyz", handler)
//
// # Failing closed
//
// The answer is 200 only if every check has returned nil in time. One that returns an error, panics, takes longer than
// [Config.Timeout], or still hangs from an earlier question makes it 503 with Retry-After. There is no state before the first
// answer: whoever asks first waits for it.
//
//	{"ready":false,"checks":{"leases":"ok","fences":"failed"}}
//
// Nothing else is told, because who asks is not known here; [Config.Failed] hears the reasons, and [Config.Details] shows them.
//
// # Many questions
//
// The checks run side by side, at most once at a time and once in [Config.Fresh], however many ask; all of them get the same
// answer. They do not end with the request that caused them, because others wait for them too.
//
// # What it is not for
//
// Liveness. A process that is not ready because Redis is away does not get better by being restarted; let the liveness probe ask
// something else.
package ready
