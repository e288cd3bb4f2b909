package grant

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Header is the name of the header field that carries the line.
const Header = "Fencing-Grant"

// Transport sends the grant of the request's context (see NewContext) with each request, encoded at
// that moment, and anew if a client tries again. A request without a grant passes unchanged. A
// redirect to another host or scheme gets no grant; if base leaves Response.Request out, no
// redirect gets one. Use it in clients for your own services only. If base is nil,
// http.DefaultTransport is used.
//
// A request whose grant cannot be encoded fails with the error of Encode, and is not sent.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return transport{base}
}

type transport struct{ base http.RoundTripper }

// RoundTrip is for http.Client.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	g, ok := FromContext(r.Context())
	if !ok || elsewhere(r) {
		return t.base.RoundTrip(r)
	}
	line, err := Encode(g)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set(Header, line)
	return t.base.RoundTrip(r)
}

// elsewhere reports whether r follows a redirect to another host or scheme than that of the first
// request, or whether this is unknown, because the RoundTripper below leaves Response.Request out.
func elsewhere(r *http.Request) bool {
	first := r
	for first.Response != nil {
		if first = first.Response.Request; first == nil {
			return true
		}
	}
	return first.URL.Scheme != r.URL.Scheme || first.URL.Host != r.URL.Host
}

// Handler puts the grant of a request into its context for next; see FromContext. The context ends
// with the grant, or when the caller goes away. The header is removed, so that next cannot log it.
// A request without a grant reaches next without one.
//
// If trust does not believe a grant, next is not called. The status is 400 for a malformed line,
// 409 if the lease is over or not current, 503 if Redis could not be asked, and 500 for the zero
// Trust.
func Handler(next http.Handler, trust Trust) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := r.Header.Values(Header)
		if len(lines) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel, err := trust.Accept(r.Context(), strings.Join(lines, ","))
		if err != nil {
			http.Error(w, err.Error(), status(err))
			return
		}
		defer cancel()
		r = r.Clone(ctx)
		r.Header.Del(Header)
		next.ServeHTTP(w, r)
	})
}

func status(err error) int {
	switch {
	case errors.Is(err, errNoTrust):
		return http.StatusInternalServerError
	case errors.Is(err, ErrMalformed):
		return http.StatusBadRequest
	case errors.Is(err, fencedb.ErrLeaseOver), lease.IsLost(err):
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

// Check returns what a response says to the caller of a service that answers with the statuses of
// Handler and of guard.Outcome. It is nil below 400. Otherwise it is an error for which
// guard.Answer says Busy after 409, Unavailable after 503, Unknown after 504, and else Refused. It
// does not read the body.
//
// After 409 look at your own context first: if it has ended, its cause is the answer.
func Check(r *http.Response) error {
	kind, known := answers[r.StatusCode]
	switch {
	case r.StatusCode < http.StatusBadRequest:
		return nil
	case known:
		return fmt.Errorf("%w: it answered %q", kind, r.Status)
	}
	return fmt.Errorf("grant: the receiver refused the call: it answered %q", r.Status)
}

var answers = map[int]error{
	http.StatusConflict:           protocol.Lost("grant: the receiver is busy, or takes the lease for lost; it wrote nothing"),
	http.StatusServiceUnavailable: fmt.Errorf("grant: the receiver is unavailable; it wrote nothing: %w", lease.ErrUnreachable),
	http.StatusGatewayTimeout:     protocol.NotLost("grant: the receiver does not know whether it has written"),
}
