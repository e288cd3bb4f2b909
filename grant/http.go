package grant

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Header is the name of the header field that carries the line.
const Header = "Fencing-Grant"

// Transport sends the grant of the request's context (see [NewContext]) with each request, encoded
// at that moment, and anew if a client tries again. A request without a grant passes unchanged. A
// redirect to another host or scheme gets no grant; if base leaves Response.Request out, no
// redirect gets one. Use it in clients for your own services only. If base is nil,
// http.DefaultTransport is used.
//
// A request whose grant cannot be encoded fails with the error of [Encode], and is not sent.
//
// If the answer, or a part of its body, does not arrive, the receiver may have written, and
// guard.Answer says Unknown for the error. An error from before there was a connection stays as it
// is, since nothing was sent. After any error of a base that reports no connections to httptrace,
// the receiver may have written. The same error replaces a 409 or 503 if net/http itself has sent
// the request again, as it does with an Idempotency-Key when a connection breaks: the receiver may
// have carried out the first one. End a call by its context: http.Client.Timeout replaces the
// error, also where nothing was sent.
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
	var asked atomic.Bool // for a connection; the hooks may run in other goroutines
	var connections atomic.Int32
	over := r.Context().Err() != nil
	r = r.Clone(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connections.Add(1) },
	}))
	r.Header.Set(Header, line)
	answer, err := t.base.RoundTrip(r)
	if err != nil {
		if notSent := connections.Load() == 0 && (asked.Load() || over); notSent {
			return nil, err
		}
		return nil, lostAnswer{err}
	}
	claimsNothing := answer.StatusCode == http.StatusConflict || answer.StatusCode == http.StatusServiceUnavailable
	if claimsNothing && connections.Load() > 1 { // it speaks of the last attempt only
		if answer.Body != nil {
			_ = answer.Body.Close()
		}
		return nil, lostAnswer{fmt.Errorf("net/http has sent the request again, and that was answered %q", answer.Status)}
	}
	if answer.Body != nil && answer.StatusCode != http.StatusSwitchingProtocols { // whose body is a Writer too
		answer.Body = body{answer.Body}
	}
	return answer, nil
}

// body is the body of an answer.
type body struct{ io.ReadCloser }

func (b body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = lostAnswer{err}
	}
	return n, err
}

// lostAnswer is the error of a request that the receiver may have.
type lostAnswer struct{ error }

func (e lostAnswer) Error() string {
	return fmt.Sprintf("%v, and its answer was lost: %v", protocol.ErrReceiverUnknown, e.error)
}

func (e lostAnswer) Unwrap() []error { return []error{protocol.ErrReceiverUnknown, e.error} }

// Timeout is for url.Error.
func (e lostAnswer) Timeout() bool {
	late, is := errors.AsType[net.Error](e.error)
	return is && late.Timeout()
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

// Handler puts the grant of a request into its context for next; see [FromContext]. The context
// ends with the grant, or when the caller goes away. The header is removed, so that next cannot log
// it. A request without a grant reaches next without one.
//
// If trust does not believe a grant, next is not called. The status is 400 for a malformed line,
// 409 if the lease is over or not current, 503 if Redis could not be asked, and 500 for the zero
// [Trust]. The body depends on the status only, because anybody may send a line, and an error can
// name the address of Redis. For the error, call [Trust.Accept] instead.
func Handler(next http.Handler, trust Trust) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := r.Header.Values(Header)
		if len(lines) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel, err := trust.Accept(r.Context(), strings.Join(lines, ","))
		if err != nil {
			status := status(err)
			http.Error(w, refusals[status], status)
			return
		}
		defer cancel()
		parsed := r.MultipartForm != nil // by somebody who may still read it
		r = r.Clone(ctx)
		r.Header.Del(Header)
		defer func() { // as net/http does for its own request
			if !parsed && r.MultipartForm != nil {
				_ = r.MultipartForm.RemoveAll()
			}
		}()
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

var refusals = map[int]string{
	http.StatusBadRequest:          "grant: malformed line",
	http.StatusConflict:            "grant: the lease is over or not current",
	http.StatusServiceUnavailable:  "grant: the receiver could not ask whether the lease is current",
	http.StatusInternalServerError: "grant: the receiver has not chosen whom it trusts",
}

// Check returns what a response says to the caller of a service that answers with the statuses of
// [Handler] and of guard.Outcome. It is nil below 400. From 400 on it is an error, of which
// guard.Answer says Busy after 409, Unavailable after 503, Unknown after 502 and 504, and Refused
// otherwise. Check does not read the body.
//
// 502 comes from a proxy, which may have passed the call on. 503 is taken for the receiver's own,
// after which nothing was written. Some proxies, such as Envoy, also answer 503 when a connection
// breaks, and so does http.TimeoutHandler in the receiver while the handler goes on. And a 409 or
// 503 is only about the last request where a proxy has sent it again, as httputil.ReverseProxy does
// with one that has an Idempotency-Key and no body. Behind these, give the call a key for
// [fencedb.Once].
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
	http.StatusBadGateway:         fmt.Errorf("%w, behind a proxy", protocol.ErrReceiverUnknown),
	http.StatusGatewayTimeout:     fmt.Errorf("%w, and does not know it", protocol.ErrReceiverUnknown),
}
