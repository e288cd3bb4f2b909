// Package grant carries a grant to another process, so that it can write under the lease of its
// caller: over HTTP with [Transport] and [Handler], over gRPC with package grant/grpc, and over
// anything else with [Encode] and [Trust.Accept].
//
//	client := &http.Client{Transport: grant.Transport(nil)}
//	err := desk.Do(ctx, "table:12", func(ctx context.Context, h *guard.Holder) error {
//		r, err := http.NewRequestWithContext(grant.NewContext(ctx, h.Grant()), http.MethodPost, url, body)
//		...
//		response, err := client.Do(r)
//		if err != nil {
//			return err
//		}
//		defer response.Body.Close()
//		return grant.Check(response) // a 409 is no error of http.Client
//	})
//
// The other service writes under that grant. The context of its request ends with the grant, or
// when the caller goes away. Its issuer uses the same Redis and Namespace:
//
//	http.Handle("/seats", grant.Handler(seats, grant.Verified(issuer)))
//	...
//	g, ok := grant.FromContext(r.Context())
//	err := fencedb.Tx(r.Context(), pool, g, func(tx pgx.Tx) error { ... })
//
// # The line
//
// A grant is one line of printable ASCII, in an HTTP header with the name Fencing-Grant:
//
//	v1 1795178573132056 0d3f7c3e-5c0b-4a0e-9d5e-0f6f7f0f3c11 9500 1795178573140 table:12
//
// That is six words, with one space between them:
//
//   - the version; a receiver refuses any other
//   - the token, decimal
//   - the lease id, a UUID in lower case, with dashes
//   - the remaining milliseconds when it was sent
//   - the time of sending, in milliseconds since 1970, by the sender's clock
//   - the resource, percent-encoded: at least everything but letters, digits and -_.~:$&+=@
//     (a + stands for itself)
//
// Several grants are joined by commas, or sent as several header fields, of 64 KiB in all. In gRPC
// the line is the metadata fencing-grant.
//
// # Time
//
// The remaining time only gets shorter on the way: by the time since the line was sent, on the
// receiver's clock, and to the maximum that the receiver accepts. A renewal by the holder does not
// reach a line that was sent: call lease.Lease.Extend before a call that takes long. If the
// receiver's clock is ahead by more than the remaining time, it refuses every line; if its clock is
// behind, it accepts a line for as long as the sender said.
//
// # Trust
//
// Anybody who has the line can write until the lease is over. And a forged line with a token that
// is too high shuts the next holders out, because in Postgres the highest token wins. So a receiver
// chooses what it believes, and there is no default. [Verified] asks Redis whether the lease is
// current, at the cost of a round trip, and so refuses forged lines. [Trusted] believes every line,
// and is for a network in which every sender is yours.
//
// # What it does not give you
//
// The line is a credential, like a password: do not log it, and do not put it into a URL. Errors of
// this package do not contain it, and Handler takes it out of the request. Send it over TLS, and to
// your own services only.
//
// A queue must not carry a grant: a line lasts for one call. docs/patterns.md says why.
package grant

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/fencedb/fencedb/fencedb"
)

// ErrMalformed: the text is not a line that Encode makes. The error says what is wrong, without the
// text.
var ErrMalformed = errors.New("grant: malformed")

const (
	version     = "v1"
	maxLine     = 64 << 10 // bytes
	maxResource = 512      // bytes, as in package fencedb
)

// Encode returns the line of a grant, or of all grants that g stands for. Call it anew for each
// request, since the line says how long the grant still lasts; [Transport] does so by itself.
//
// The error is [fencedb.ErrLeaseOver], with the cause that the lease gives, if nothing of it is
// left. It is [fencedb.ErrInvalidGrant] if g cannot be sent: nil, a grant without an end, a permit
// of a semaphore, or more grants than fit into 64 KiB (some 700).
func Encode(g fencedb.Grant) (string, error) {
	var lines []string
	for _, one := range each(g) {
		line, err := encode(one, time.Now())
		if err != nil {
			return "", err
		}
		lines = append(lines, line)
	}
	if lines == nil {
		return "", fmt.Errorf("%w: there is no grant", fencedb.ErrInvalidGrant)
	}
	line := strings.Join(lines, ", ")
	if _, err := Decode(line, time.Hour); errors.Is(err, ErrMalformed) {
		return "", fmt.Errorf("%w: no receiver accepts its line: %v", fencedb.ErrInvalidGrant, err)
	}
	return line, nil
}

// each returns the grants that g stands for.
func each(g fencedb.Grant) []fencedb.Grant {
	if set, ok := g.(interface{ Grants() []fencedb.Grant }); ok {
		return set.Grants()
	}
	return []fencedb.Grant{g}
}

func encode(g fencedb.Grant, now time.Time) (string, error) {
	if g == nil || g.Resource() == "" {
		return "", fmt.Errorf("%w: the grant is nil; was the lease acquired?", fencedb.ErrInvalidGrant)
	}
	if permit, ok := g.(interface{ IsPermit() bool }); ok && permit.IsPermit() {
		return "", fmt.Errorf("%w: the grant for %q is a permit of a semaphore, whose holders do not exclude each other", fencedb.ErrInvalidGrant, g.Resource())
	}
	if lease, ok := g.(interface{ Err() error }); ok {
		if over := lease.Err(); over != nil {
			return "", fmt.Errorf("%w: resource %q, before it was sent: %w", fencedb.ErrLeaseOver, g.Resource(), over)
		}
	}
	until := validUntil(g)
	if until.IsZero() {
		return "", fmt.Errorf("%w: the grant for %q, a %T, has no ValidUntil", fencedb.ErrInvalidGrant, g.Resource(), g)
	}
	left := until.Sub(now).Milliseconds()
	if left <= 0 {
		return "", fmt.Errorf("%w: resource %q, before it was sent", fencedb.ErrLeaseOver, g.Resource())
	}
	return fmt.Sprintf("%s %d %s %d %d %s", version, g.Token(), g.LeaseID(), left, now.UnixMilli(), url.PathEscape(g.Resource())), nil
}

// validUntil returns when a grant ends, as the grant says.
func validUntil(g fencedb.Grant) time.Time {
	if bounded, ok := g.(interface{ ValidUntil() time.Time }); ok {
		return bounded.ValidUntil()
	}
	return time.Time{}
}

// Decode returns the grant of a line, or one that stands for the several in it. It lasts for the
// remaining time when the line was sent, less the time since then, but no longer than atMost: so a
// forged or repeated line cannot make transactions last for days. Decode does not ask whether the
// lease is current; servers use [Trust.Accept].
//
// The error is [ErrMalformed], and [fencedb.ErrLeaseOver] if nothing remains.
func Decode(line string, atMost time.Duration) (fencedb.Grant, error) {
	switch {
	case atMost <= 0:
		return nil, fmt.Errorf("grant: atMost is %v, but must be positive; it says for how long a grant is believed at most, such as the TTL of its lease", atMost)
	case len(line) > maxLine:
		return nil, malformed("it has more than %d bytes", maxLine)
	}
	var all []fencedb.Grant
	now := time.Now()
	for one := range strings.SplitSeq(line, ",") {
		g, err := decode(strings.Trim(one, " \t"), now, atMost)
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return join(all), nil
}

// join returns one grant for all grants of a line.
func join(all []fencedb.Grant) fencedb.Grant {
	if len(all) == 1 {
		return all[0]
	}
	return fencedb.All(all...)
}

func decode(line string, now time.Time, atMost time.Duration) (fencedb.Grant, error) {
	words := strings.Split(line, " ")
	if words[0] != version {
		return nil, malformed("it does not begin with %s", version)
	}
	if len(words) != 6 {
		return nil, malformed("it has %d words, not 6", len(words))
	}
	var numbers [3]int64
	for i, word := range []string{words[1], words[3], words[4]} {
		n, err := strconv.ParseUint(word, 10, 63)
		if err != nil {
			return nil, malformed("the %s is not a number", [...]string{"token", "time that remains", "time of sending"}[i])
		}
		numbers[i] = int64(n)
	}
	token, left, sent := numbers[0], numbers[1], numbers[2]
	id, err := uuid.Parse(words[2])
	if err != nil || len(words[2]) != 36 || id == uuid.Nil {
		return nil, malformed("the lease id is not a UUID")
	}
	if token == 0 {
		return nil, malformed("the token is 0")
	}
	resource, err := url.PathUnescape(words[5])
	if err != nil || resource == "" || len(resource) > maxResource || !utf8.ValidString(resource) || strings.ContainsRune(resource, 0) {
		return nil, malformed("the resource is not 1 to %d bytes of UTF-8, percent-encoded", maxResource)
	}
	// In milliseconds, rounded down. A forged line cannot overflow the subtraction, because both
	// numbers are positive.
	left = min(left-max(now.UnixMilli()+1-sent, 0), atMost.Milliseconds())
	if left <= 0 {
		return nil, fmt.Errorf("%w: resource %q, when it arrived; did it wait on its way, or is this clock ahead of the sender's?", fencedb.ErrLeaseOver, resource)
	}
	return fencedb.NewGrant(resource, token, id, now.Add(time.Duration(left)*time.Millisecond)), nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
