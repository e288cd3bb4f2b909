package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/observe/feed"
)

// fromFeed is what programs have published of one resource.
type fromFeed struct {
	refusals []Refused // newest first; nil if no program publishes, or if permission to read was denied
	proven   int64     // the highest token of the last day that is known to have entered, or to be a revocation's
	renewal  renewal   // of the last lease
	replaced bool      // the key of the feed is not a stream
}

const feedReplaced = "the key of the feed of events %s is not a stream. See docs/runbook/redis.md, events are missing."

// Refused is a write with a stale token.
type Refused struct {
	At     time.Time `json:"at"`
	Worker string    `json:"worker"`
	Token  int64     `json:"token"`
	Stored int64     `json:"stored"`
}

// renewal is the last one of a lease, or its grant if it has not been renewed.
type renewal struct {
	At    time.Time `json:"at"`
	TTLMS int64     `json:"ttl_ms"` // that the holder had from then on
	First bool      `json:"first"`  // it is the grant
	// No program publishes it: it is worked out, for the default of lease.Config.FenceRetention.
	Assumed bool `json:"assumed"`

	token int64
}

// renewalOf is what an event of kind granted or extended tells.
func renewalOf(e feed.Event) renewal {
	return renewal{At: e.At.UTC(), TTLMS: e.TTL.Milliseconds(), First: e.Kind == feed.Granted, token: e.Token}
}

func (r renewal) text(p term.Page) string {
	what := "renewed"
	if r.First {
		what = "not renewed since it was granted"
	}
	text := what + " " + term.Ago(p.Ahead.SinceRedis(r.At)) + ", for " + term.Millis(r.TTLMS)
	if r.Assumed {
		text += fmt.Sprintf(", if FenceRetention is %g hours as by default", protocol.FenceRetention.Hours())
	}
	return text
}

const mostRefusals = 5

func readFeed(ctx context.Context, s *conn.Servers, resource string) (found fromFeed, err error) {
	digits := feed.Hashed(resource)
	err = feed.Replay(ctx, s.Client, "0", func(e feed.Event) error {
		if found.refusals == nil {
			found.refusals = []Refused{}
		}
		if e.Resource != resource && e.Resource != digits {
			return nil
		}
		switch {
		case e.Kind == feed.Refused:
			found.refusals = append(found.refusals, Refused{e.At.UTC(), e.Worker, e.Token, e.Stored})
			found.refusals = found.refusals[max(0, len(found.refusals)-mostRefusals):]
		case (e.Kind == feed.Granted || e.Kind == feed.Extended) && e.Token >= found.renewal.token:
			found.renewal = renewalOf(e)
		case proves(e) && time.Since(e.At) < provenWithin:
			found.proven = max(found.proven, e.Token)
		}
		return nil
	}, feed.Namespace(s.Names.Namespace))
	if replaced := redis.HasErrorPrefix(err, "WRONGTYPE"); replaced || redis.IsPermissionError(err) {
		return fromFeed{replaced: replaced}, nil
	}
	slices.Reverse(found.refusals)
	return found, err
}

// ErrPublished is what Published returns where programs publish.
var ErrPublished = errors.New("there are events")

// Published returns errPublished if the stream has an event.
func Published(ctx context.Context, client redis.UniversalClient, stream feed.Option) error {
	return feed.Replay(ctx, client, "0", func(feed.Event) error { return ErrPublished }, stream)
}

// provenWithin is how far back events prove something: no fence is forgotten that is younger.
const provenWithin = term.Day

// proves tells whether a token has entered, or is that of a revocation.
func proves(e feed.Event) bool {
	return e.Kind == feed.Revoked || e.Kind == feed.Sealed || e.Kind == feed.Committed
}

// happened describes an event in a few words.
func happened(e feed.Event) string {
	switch e.Kind {
	case feed.Waiting:
		return "it is taken"
	case feed.Granted:
		return "for " + term.Span(e.TTL) + unlessZero(", waited ", e.Took)
	case feed.Held:
		return term.Visible(cmp.Or(e.Holder, "another")) + " holds it" + unlessZero(", waited ", e.Took)
	case feed.Extended:
		return "for " + term.Span(e.TTL)
	case feed.Released:
		return "held for " + term.Span(e.Took)
	case feed.Lost:
		return strings.TrimSpace(term.Visible(e.Cause) + unlessZero(" after ", e.Took))
	case feed.Revoked:
		return "older leases have ended; their writes are refused once this token has entered"
	case feed.Sealed:
		return "earlier tokens are refused from now on"
	case feed.Committed:
		return strings.TrimSpace(unlessZero("in ", e.Took))
	}
	switch stale := e.Kind == feed.Refused || e.Cause == "stale"; {
	case stale && e.Token == e.Stored:
		return "another lease entered with the same token"
	case stale:
		return fmt.Sprintf("stale, %d is stored", e.Stored)
	}
	return term.Visible(cmp.Or(causes[e.Cause], e.Cause))
}

// causes say in words why a write or a seal failed.
var causes = map[string]string{
	"no_token":       "a row was written without a token",
	"wrong_resource": "a row belongs to another resource",
	"lease_over":     "the lease was over",
	"too_long":       "the transaction outlasted its time limit",
	"tx_ended":       "a statement ended the transaction",
	"unsealed":       "the token was not sealed before",
	"busy":           "an open transaction holds the fence",
	"commit_unknown": "COMMIT was not answered, and the outcome is unknown",
	"invalid_grant":  "the grant is invalid",
	"error":          "an error of the program or of Postgres",
}

func unlessZero(before string, d time.Duration) string {
	if d < time.Millisecond {
		return ""
	}
	return before + term.Span(d)
}
