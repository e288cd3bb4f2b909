package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	protocol "github.com/fencedb/fencedb/lease/internal/redis"
)

// quorum is the store on the majority of its members.
type quorum struct {
	members  []*single
	need     int           // a majority
	patience time.Duration // for one member's answer
}

// quorumGrace is how long to wait for slower members once a majority has answered.
const quorumGrace = 50 * time.Millisecond

// vote is what one member answered.
type vote[T any] struct {
	answer T
	err    error
}

// poll asks all members at once and returns the votes in the members' order. It returns when all
// have answered, quorumGrace after a majority has, or when the members' time is over; a vote that
// is missing by then is [ErrUnreachable].
func poll[T any](ctx context.Context, q *quorum, ask func(context.Context, *single) (T, error)) []vote[T] {
	type numbered struct {
		member int
		vote[T]
	}
	answers := make(chan numbered, len(q.members))
	for n, m := range q.members {
		go func() {
			ctx, cancel := context.WithTimeoutCause(ctx, q.patience, errNoVote)
			defer cancel()
			answer, err := ask(ctx, m)
			answers <- numbered{n, vote[T]{answer, err}}
		}()
	}
	votes := make([]vote[T], len(q.members))
	for n := range votes {
		votes[n].err = errNoVote
	}
	var late <-chan time.Time
	for got, good := 0, 0; got < len(votes); got++ {
		select {
		case a := <-answers:
			votes[a.member] = a.vote
			if a.err == nil {
				good++
			}
		case <-late:
			return votes
		}
		if good == q.need {
			late = time.After(quorumGrace)
		}
	}
	return votes
}

var errNoVote = fmt.Errorf("%w: a member of the quorum did not answer in time", ErrUnreachable)

// failure is the error when fewer than a majority could answer at all; nil otherwise.
func failure[T any](q *quorum, votes []vote[T]) error {
	if heard(votes) >= q.need {
		return nil
	}
	return undecided(votes)
}

func heard[T any](votes []vote[T]) (n int) {
	for _, v := range votes {
		if v.err == nil {
			n++
		}
	}
	return n
}

// undecided is the error when the votes that are missing could have decided.
func undecided[T any](votes []vote[T]) error {
	var errs []error
	for _, v := range votes {
		errs = append(errs, v.err)
	}
	return fmt.Errorf("only %d of %d members of the quorum answered: %w", heard(votes), len(votes), protocol.Join(errs...))
}

// decide makes one outcome of many: done if a majority did it, and lost if no majority can have
// done it.
func decide(q *quorum, votes []vote[outcome]) (outcome, error) {
	count := make(map[outcome]int)
	silent := 0
	for _, v := range votes {
		if v.err != nil {
			silent++
		} else {
			count[v.answer]++
		}
	}
	switch {
	case count[done] >= q.need:
		return done, nil
	case count[done]+silent >= q.need:
		return "", undecided(votes)
	case count[revoked] > 0:
		return revoked, nil
	case count[taken] > 0:
		return taken, nil
	}
	return gone, nil
}

// acquire leaves the undoing behind when ctx ends.
func (q *quorum) acquire(ctx context.Context, a ask) (acquired, error) {
	return protocol.Bounded(ctx, func() (acquired, error) { return q.win(ctx, a) }, a.abandoned)
}

// win asks all members and needs a majority.
func (q *quorum) win(ctx context.Context, a ask) (acquired, error) {
	if a.mode == wait {
		a.mode = try // there is no common queue
	}
	votes := poll(ctx, q, func(ctx context.Context, m *single) (acquired, error) { return m.acquire(ctx, a) })
	tokens := make([]int64, len(a.keys))
	won := 0
	refused := acquired{wait: time.Millisecond} // unsure: a request may still reach a member that has not answered
	refused.unsure = slices.ContainsFunc(votes, func(v vote[acquired]) bool { return errors.Is(v.err, ErrUnreachable) })
	for _, v := range votes {
		switch {
		case v.err != nil:
		case v.answer.tokens == nil:
			refused.wait, refused.index, refused.holder = max(refused.wait, v.answer.wait), v.answer.index, v.answer.holder
		default:
			won++
			for n, token := range v.answer.tokens {
				tokens[n] = max(tokens[n], token)
			}
		}
	}
	if won < q.need {
		refused.unsure = !q.undone(ctx, a) || refused.unsure
		return refused, failure(q, votes)
	}
	for n, k := range a.keys {
		result, err := q.confirm(ctx, extension{term{keys: k, text: a.id, token: tokens[n], call: a.call}, a.ttl, a.retention})
		if err != nil {
			return acquired{}, err
		}
		if result != done { // lost again before it was won
			return acquired{wait: time.Millisecond, index: n, unsure: !q.undone(ctx, a) || refused.unsure}, nil
		}
	}
	return acquired{tokens: tokens, unsure: refused.unsure}, nil
}

func (q *quorum) confirm(ctx context.Context, e extension) (outcome, error) {
	return decide(q, poll(ctx, q, func(ctx context.Context, m *single) (outcome, error) { return m.confirm(ctx, e) }))
}

// undone takes back what a minority granted, so that it does not block a rival's next attempt. The
// call goes on. It reports whether every member has answered.
func (q *quorum) undone(ctx context.Context, a ask) bool {
	ctx, cancel := protocol.Detached(ctx, q.patience)
	defer cancel()
	all := true
	for _, k := range a.keys {
		for _, v := range q.withdrawals(ctx, term{keys: k, text: a.id, call: a.call}, a.retention) {
			all = all && v.err == nil
		}
	}
	return all
}

func (q *quorum) extend(ctx context.Context, batch []extension) []answered {
	votes := poll(ctx, q, func(ctx context.Context, m *single) ([]answered, error) { return m.extend(ctx, batch), nil })
	answers := make([]answered, len(batch))
	for n := range batch {
		each := make([]vote[outcome], len(votes))
		for m, v := range votes {
			each[m].err = v.err
			if v.err == nil {
				each[m] = vote[outcome]{v.answer[n].outcome, v.answer[n].err}
			}
		}
		answers[n].outcome, answers[n].err = decide(q, each)
	}
	return answers
}

func (q *quorum) release(ctx context.Context, e extension) (outcome, error) {
	return decide(q, poll(ctx, q, func(ctx context.Context, m *single) (outcome, error) {
		result, err := m.release(ctx, e)
		if err == nil && result == taken {
			// Perhaps by this very lease, if the member granted too late to be asked to confirm.
			err = m.withdraw(ctx, e.term, e.retention)
		}
		return result, err
	}))
}

func (q *quorum) withdraw(ctx context.Context, t term, retention time.Duration) error {
	return failure(q, q.withdrawals(ctx, t, retention))
}

func (q *quorum) withdrawals(ctx context.Context, t term, retention time.Duration) []vote[struct{}] {
	return poll(ctx, q, func(ctx context.Context, m *single) (struct{}, error) {
		return struct{}{}, m.withdraw(ctx, t, retention)
	})
}

func (q *quorum) verify(ctx context.Context, t term) (Verdict, error) {
	votes := poll(ctx, q, func(ctx context.Context, m *single) (Verdict, error) { return m.verify(ctx, t) })
	count := make(map[Verdict]int)
	for _, v := range votes {
		count[v.answer]++ // 0 for those that did not answer
	}
	switch {
	case count[Current] >= q.need:
		return Current, nil
	case count[LeaseLost] > len(q.members)-q.need:
		return LeaseLost, nil
	case count[Current]+count[0] >= q.need, count[0] > 0 && count[Current]+count[FenceStale] < q.need:
		return 0, undecided(votes)
	}
	return FenceStale, nil
}

func (q *quorum) eval(context.Context, term, string, []string, []any) (any, outcome, error) {
	return nil, "", protocol.Invalid("this lease is of a quorum, whose members have no data in common; write where one Redis decides")
}

func (q *quorum) revoke(ctx context.Context, k *protocol.Keys, id uuid.UUID, from int64, retention time.Duration) (Revocation, error) {
	votes := poll(ctx, q, func(ctx context.Context, m *single) (Revocation, error) {
		return m.revoke(ctx, k, id, from, retention)
	})
	var r Revocation
	var passed error
	won := 0
	for _, v := range votes {
		switch {
		case errors.Is(v.err, ErrStale):
			passed = v.err
		case v.err == nil:
			won++
			if v.answer.holderToken >= r.holderToken {
				r.holder, r.holderToken = v.answer.holder, v.answer.holderToken
			}
			r.token = max(r.token, v.answer.token)
		}
	}
	if won < q.need {
		if passed != nil {
			return Revocation{}, passed
		}
		return Revocation{}, failure(q, votes)
	}
	_, err := q.raise(ctx, k, r.token, retention)
	return r, err
}

func (q *quorum) raise(ctx context.Context, k *protocol.Keys, floor int64, retention time.Duration) (int64, error) {
	votes := poll(ctx, q, func(ctx context.Context, m *single) (int64, error) { return m.raise(ctx, k, floor, retention) })
	last := floor
	for _, v := range votes {
		last = max(last, v.answer)
	}
	return last, failure(q, votes)
}

func (q *quorum) regrant(ctx context.Context, old extension, id uuid.UUID, call any, floor int64) (int64, error) {
	votes := poll(ctx, q, func(ctx context.Context, m *single) (int64, error) { return m.regrant(ctx, old, id, call, floor) })
	var token int64
	for _, v := range votes {
		token = max(token, v.answer)
	}
	if err := failure(q, votes); err != nil {
		return 0, err
	}
	result, err := q.confirm(ctx, extension{term{keys: old.keys, id: id, token: token, call: call}, old.ttl, old.retention})
	if err == nil && result != done {
		err = result.loss()
	}
	return token, err
}

// inspect reports the holder that a majority names, and the greatest token that any member
// remembers.
func (q *quorum) inspect(ctx context.Context, k *protocol.Keys) (Inspection, error) {
	votes := poll(ctx, q, func(ctx context.Context, m *single) (Inspection, error) { return m.inspect(ctx, k) })
	count := make(map[uuid.UUID]int)
	var found, last Inspection
	for _, v := range votes {
		if v.err != nil {
			continue
		}
		if count[v.answer.Holder]++; count[v.answer.Holder] == q.need {
			found = v.answer
		}
		if v.answer.LastToken >= last.LastToken {
			last = v.answer
		}
	}
	found.LastToken, found.RememberedFor = last.LastToken, last.RememberedFor
	if n := heard(votes); n < len(votes) && count[found.Holder] < q.need {
		return found, undecided(votes)
	}
	return found, nil
}

func (q *quorum) servers(ctx context.Context) (all []*redis.Client, spare int, err error) {
	for _, m := range q.members {
		some, _, memberErr := m.servers(ctx)
		all, err = append(all, some...), protocol.Join(err, memberErr)
	}
	return all, len(q.members) - q.need, err
}

func (q *quorum) spans([]*protocol.Keys) bool { return true }

func (q *quorum) subscribe(string, string) *subscription { return nil }

func (q *quorum) stopListening() {}
