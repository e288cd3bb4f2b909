// Package admission limits how often something may happen: so many requests of a key in a window of time, counted in Redis
// by all processes together.
//
//	limiter, err := admission.New(client, admission.Config{
//		Limit: 100, Window: time.Minute, WhenUnjudged: admission.FailOpen,
//	})
//	...
//	d, err := limiter.Allow(ctx, "tenant:7")
//	if !d.Allowed {
//		// tell the caller to come back after d.RetryAfter
//	}
//
// [Middleware] does that for net/http.
//
// # Windows
//
// A fixed window begins with the first request and ends by Redis's clock, whatever comes in between; the next request begins
// the next one. It costs one small key for each name, and admits up to twice the limit around the end of a window:
//
//	limit 2      a.........bc|d                 b, c and d within a moment
//
// A sliding window ([Config.Sliding]) admits a request if fewer than the limit were admitted in the window before it, wherever
// that is laid, so there is no such moment. It keeps one entry for each admission, about 100 bytes, and is limited to
// [MaxSlidingLimit].
//
// Either way one script judges and counts, so no number of callers gets past the limit, and count and expiry are set
// together: there is no key that was counted up and then left behind without its end. RetryAfter is exact: a request that
// comes after that time, before anybody else does, is admitted, and one that comes sooner is not. Refused requests do not count.
//
// # Failures
//
// When there is no judgement, because Redis does not answer within [Config.Timeout] or answers with an error, the request is admitted or
// refused as [Config.WhenUnjudged] says, and [Decision.Unjudged] tells why, with the errors of package lease: one for silence, and
// one for each reason to refuse, such as [lease.ErrOutOfMemory] or [lease.ErrDenied]. There is no default for that: whoever limits
// to protect a downstream system wants [FailClosed], whoever limits for fairness mostly [FailOpen].
//
// A request without an answer, or with a refusal, is not sent again: an answer that comes late is of no use. It may have been counted, so a
// lost reply can cost one place of the window; it never makes one.
//
// # Rights
//
// Those that the client's user needs are listed in docs/leases.md. Who lacks one of them gets [lease.ErrDenied].
//
// # What it does not give you
//
// Limits on what runs at the same time; that is what lease.Semaphore is for. Order or fairness between callers of one key. Limits
// that survive the loss of Redis's data: counting then starts again.
package admission
