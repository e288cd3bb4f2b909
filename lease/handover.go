package lease

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// standing is what a waiter knows from the latest answer that let it go on waiting.
type standing struct {
	sent  time.Time // when the request was
	floor int64     // tokens granted since are at least this
}

// grantedTo is the news that a release has given its resource to a waiter.
type grantedTo struct {
	token int64
	ttl   time.Duration
}

// news reads a message: "free <call>", or "granted <call> <token> <ttl in milliseconds>". Nil if it is the first, or
// neither; then the waiter has to ask.
func news(message string) (call string, granted *grantedTo) {
	words := strings.Fields(message)
	if len(words) < 2 {
		return "", nil
	}
	if len(words) != 4 || words[0] != "granted" {
		return words[1], nil
	}
	token, err := strconv.ParseInt(words[2], 10, 64)
	ttl, err2 := strconv.ParseInt(words[3], 10, 64)
	if err != nil || err2 != nil {
		return words[1], nil
	}
	return words[1], &grantedTo{token, time.Duration(ttl) * time.Millisecond}
}

// handedOver is the lease that a release has given to this waiter, if it can be believed in without another request.
//
// When it was granted cannot be known; that it was after the latest refusal can, by its token:
//
//	t0  the waiter asks; refused, the next token will be 42 or more; it waits in the queue
//	t1  the holder's release grants it 57, for ttl from t1
//	t2  the news arrives, late perhaps: 57 >= 42, so t1 > t0, and trusting until t0 + ttl - margin is safe
//
// A grant of before t0 has run out: the waiter would not have been refused otherwise. So a message that was held up that long
// carries a token below 42, and is no more than a reason to ask.
//
// It also asks if its latest request is older than the interval of renewal, for then the lease would begin with a renewal
// overdue; if the one who released counts in another TTL; and if replicas have to confirm.
func (a *acquisition) handedOver(ctx context.Context, t *turn) Leases {
	i, last := a.issuer, a.standing
	granted := t.granted()
	if granted == nil || ctx.Err() != nil || i.cfg.Replicas > 0 {
		return nil
	}
	now := time.Now()
	if granted.token < last.floor || granted.ttl != i.cfg.TTL || now.Sub(last.sent) >= i.cfg.RenewEvery {
		return nil
	}
	return Leases{newLease(a.caller, i, a.resources[0], a.term(a.keys[0], granted.token), last.sent, now)}
}
