package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// quorum is the store on the majority of its members.
type quorum struct {
	members  []*single
	need     int           // a majority
	patience time.Duration // for one member's answer
}

const (
	// quorumGrace is how long to wait for slower members once they can change nothing.
	quorumGrace = 50 * time.Millisecond

	mostPatience = 3 * time.Second
)

// vote is what one member answered.
type vote[T any] = protocol.Answer[T]

// poll asks all members at once and returns the votes in the members' order. It returns when all
// have answered, quorumGrace after the votes that are missing can change nothing, or when the
// members' time is over; a vote that is missing by then is [ErrUnreachable].
func poll[T any](ctx context.Context, q *quorum, enough func([]vote[T]) bool,
	ask func(context.Context, *single) (T, error)) []vote[T] {
	type numbered struct {
		member int
		vote[T]
	}
	answers := make(chan numbered, len(q.members))
	votes := make([]vote[T], len(q.members))
	for n, m := range q.members {
		votes[n].Err = errNoVote
		go func() {
			ctx, cancel := context.WithTimeoutCause(ctx, q.patience, errNoVote)
			defer cancel()
			answer, err := ask(ctx, m)
			answers <- numbered{n, vote[T]{Value: answer, Err: err}}
		}()
	}
	var late <-chan time.Time
	for range votes {
		select {
		case a := <-answers:
			votes[a.member] = a.vote
		case <-late:
			return votes
		}
		if late == nil && enough(votes) {
			late = time.After(quorumGrace)
		}
	}
	return votes
}

// tally makes one answer of the votes. They are enough when they can be counted without an error.
func tally[T, R any](ctx context.Context, q *quorum, count func([]vote[T]) (R, error),
	ask func(context.Context, *single) (T, error)) (R, error) {
	enough := func(votes []vote[T]) bool {
		_, err := count(votes)
		return err == nil
	}
	return count(poll(ctx, q, enough, ask))
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
		if v.Err == nil {
			n++
		}
	}
	return n
}

// undecided is the error when the votes that are missing could have decided.
func undecided[T any](votes []vote[T]) error {
	var errs []error
	for _, v := range votes {
		errs = append(errs, v.Err)
	}
	return fmt.Errorf("only %d of %d members of the quorum answered: %w", heard(votes), len(votes), protocol.Join(errs...))
}

// decide makes one outcome of many: done if a majority did it, and lost if no majority can have
// done it.
func (q *quorum) decide(votes []vote[outcome]) (outcome, error) {
	count := make(map[outcome]int)
	for _, v := range votes {
		if v.Err == nil {
			count[v.Value]++
		}
	}
	silent := len(votes) - heard(votes)
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
	enough := func(votes []vote[acquired]) bool {
		won := wins(votes)
		silent := len(votes) - heard(votes)
		return won >= q.need || won+silent < q.need
	}
	votes := poll(ctx, q, enough, func(ctx context.Context, m *single) (acquired, error) { return m.acquire(ctx, a) })
	tokens := make([]int64, len(a.keys))
	refused := acquired{wait: time.Millisecond} // unsure: a request may still reach a member that has not answered
	refused.unsure = slices.ContainsFunc(votes, func(v vote[acquired]) bool { return errors.Is(v.Err, ErrUnreachable) })
	for _, v := range votes {
		switch {
		case v.Err != nil:
		case v.Value.tokens == nil:
			refused.wait, refused.index, refused.holder = max(refused.wait, v.Value.wait), v.Value.index, v.Value.holder
		default:
			for n, token := range v.Value.tokens {
				tokens[n] = max(tokens[n], token)
			}
		}
	}
	if wins(votes) < q.need {
		refused.unsure = !q.undone(ctx, a) || refused.unsure
		return refused, failure(q, votes)
	}
	for n, confirmed := range together(a.keys, func(n int, k *protocol.Keys) (outcome, error) {
		return q.confirm(ctx, term{keys: k, text: a.id, token: tokens[n], call: a.call})
	}) {
		if confirmed.Err != nil {
			return acquired{}, confirmed.Err
		}
		if confirmed.Value != done { // lost again before it was won
			return acquired{wait: time.Millisecond, index: n, unsure: !q.undone(ctx, a) || refused.unsure}, nil
		}
	}
	return acquired{tokens: tokens, unsure: refused.unsure}, nil
}

// wins is how many members have granted.
func wins(votes []vote[acquired]) (n int) {
	for _, v := range votes {
		if v.Err == nil && v.Value.tokens != nil {
			n++
		}
	}
	return n
}

func (q *quorum) confirm(ctx context.Context, t term) (outcome, error) {
	return tally(ctx, q, q.decide, func(ctx context.Context, m *single) (outcome, error) { return m.confirm(ctx, t) })
}

// undone takes back what a minority granted, so that it does not block a rival's next attempt. The
// call goes on. It reports whether every member has answered.
func (q *quorum) undone(ctx context.Context, a ask) bool {
	ctx, cancel := protocol.Detached(ctx, q.patience)
	defer cancel()
	all := true
	for _, votes := range together(a.keys, func(_ int, k *protocol.Keys) ([]vote[struct{}], error) {
		return q.withdrawals(ctx, term{keys: k, text: a.id, call: a.call}), nil
	}) {
		all = all && heard(votes.Value) == len(q.members)
	}
	return all
}

func (q *quorum) extend(ctx context.Context, batch []extension) []vote[outcome] {
	answers, _ := tally(ctx, q, func(votes []vote[[]vote[outcome]]) (answers []vote[outcome], err error) {
		for n := range batch {
			each := make([]vote[outcome], len(votes))
			for m, v := range votes {
				if each[m].Err = v.Err; v.Err == nil {
					each[m] = v.Value[n]
				}
			}
			result, undecided := q.decide(each)
			answers = append(answers, vote[outcome]{Value: result, Err: undecided})
			err = cmp.Or(err, undecided)
		}
		return answers, err
	}, func(ctx context.Context, m *single) ([]vote[outcome], error) { return m.extend(ctx, batch), nil })
	return answers
}

func (q *quorum) release(ctx context.Context, t term) (outcome, error) {
	return tally(ctx, q, q.decide, func(ctx context.Context, m *single) (outcome, error) {
		result, err := m.release(ctx, t)
		if err == nil && result == taken {
			// Perhaps by this very lease, if the member granted too late to be asked to confirm.
			err = m.withdraw(ctx, t)
		}
		return result, err
	})
}

func (q *quorum) withdraw(ctx context.Context, t term) error {
	return failure(q, q.withdrawals(ctx, t))
}

func (q *quorum) withdrawals(ctx context.Context, t term) []vote[struct{}] {
	majority := func(votes []vote[struct{}]) bool { return heard(votes) >= q.need }
	return poll(ctx, q, majority, func(ctx context.Context, m *single) (struct{}, error) {
		return struct{}{}, m.withdraw(ctx, t)
	})
}

func (q *quorum) verify(ctx context.Context, t term) (Verdict, error) {
	return tally(ctx, q, q.judge, func(ctx context.Context, m *single) (Verdict, error) { return m.verify(ctx, t) })
}

func (q *quorum) judge(votes []vote[Verdict]) (Verdict, error) {
	count := make(map[Verdict]int)
	for _, v := range votes {
		count[v.Value]++ // 0 for those that did not answer
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

func (q *quorum) revoke(ctx context.Context, k *protocol.Keys, id uuid.UUID, from int64) (Revocation, error) {
	r, err := tally(ctx, q, q.newest, func(ctx context.Context, m *single) (Revocation, error) {
		return m.revoke(ctx, k, id, from)
	})
	if err == nil {
		_, err = q.raise(ctx, k, r.token)
	}
	return r, err
}

// newest is the revocation that has ended the holder with the greatest token.
func (q *quorum) newest(votes []vote[Revocation]) (r Revocation, err error) {
	var passed error
	won := 0
	for _, v := range votes {
		switch {
		case errors.Is(v.Err, ErrStale):
			passed = v.Err
		case v.Err == nil:
			won++
			if v.Value.holderToken >= r.holderToken {
				r.holder, r.holderToken = v.Value.holder, v.Value.holderToken
			}
			r.token = max(r.token, v.Value.token)
		}
	}
	if won < q.need {
		return Revocation{}, cmp.Or(passed, failure(q, votes))
	}
	return r, nil
}

func (q *quorum) raise(ctx context.Context, k *protocol.Keys, floor int64) (int64, error) {
	return q.greatest(ctx, floor, func(ctx context.Context, m *single) (int64, error) { return m.raise(ctx, k, floor) })
}

// greatest is the greatest token that a majority has answered, and not below floor.
func (q *quorum) greatest(ctx context.Context, floor int64,
	ask func(context.Context, *single) (int64, error)) (int64, error) {
	return tally(ctx, q, func(votes []vote[int64]) (int64, error) {
		greatest := floor
		for _, v := range votes {
			greatest = max(greatest, v.Value)
		}
		return greatest, failure(q, votes)
	}, ask)
}

func (q *quorum) regrant(ctx context.Context, old term, id uuid.UUID, call any, floor int64) (int64, error) {
	token, err := q.greatest(ctx, 0, func(ctx context.Context, m *single) (int64, error) {
		return m.regrant(ctx, old, id, call, floor)
	})
	if err != nil {
		return 0, err
	}
	result, err := q.confirm(ctx, term{keys: old.keys, id: id, token: token, call: call})
	if err == nil && result != done {
		err = result.loss()
	}
	return token, err
}

// inspect reports the holder that a majority names, and the greatest token that any member
// remembers.
func (q *quorum) inspect(ctx context.Context, k *protocol.Keys) (Inspection, error) {
	return tally(ctx, q, q.agreed, func(ctx context.Context, m *single) (Inspection, error) {
		return m.inspect(ctx, k)
	})
}

func (q *quorum) agreed(votes []vote[Inspection]) (Inspection, error) {
	count := make(map[uuid.UUID]int)
	var found, last Inspection
	for _, v := range votes {
		if v.Err != nil {
			continue
		}
		if count[v.Value.Holder]++; count[v.Value.Holder] == q.need {
			found = v.Value
		}
		if v.Value.LastToken >= last.LastToken {
			last = v.Value
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

func (q *quorum) spans(k []*protocol.Keys) bool {
	return !slices.ContainsFunc(q.members, func(m *single) bool { return !m.spans(k) })
}

func (q *quorum) subscribe(string, string) *subscription { return nil }
