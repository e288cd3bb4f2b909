package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// reply is what a script answered: an outcome in one word, and what belongs to it.
type reply struct {
	script string
	word   string
	args   []string
}

// decode reads the form that all scripts share, and the answers that any of them may give.
func decode(ctx context.Context, script string, cmd *redis.Cmd) (reply, error) {
	if err := cmd.Err(); err != nil {
		return reply{}, failed(ctx, script, err)
	}
	words, err := cmd.StringSlice()
	if err != nil || len(words) == 0 {
		return reply{}, fmt.Errorf("%w: %s answered %v", ErrProtocol, script, cmd.Val())
	}
	r := reply{script: script, word: words[0], args: words[1:]}
	if r.is("corrupt", 2) {
		return reply{}, &CorruptError{Key: r.args[0], Problem: r.args[1]}
	}
	return r, nil
}

func (r reply) is(word string, args int) bool { return r.word == word && len(r.args) == args }

func (r reply) unknown() error {
	return fmt.Errorf("%w: %s answered %q %q", ErrProtocol, r.script, r.word, r.args)
}

// failed sorts what went wrong: the caller's context, no answer, or an error that Redis answered.
func failed(ctx context.Context, script string, err error) error {
	var answered redis.Error
	if !errors.As(err, &answered) {
		return unanswered(ctx, err)
	}
	for _, refusal := range refusals {
		if refusal.is(err) {
			return fmt.Errorf("%w: %w", refusal.as, err)
		}
	}
	return fmt.Errorf("lease: redis refused %s: %w", script, err)
}

// refusals are answers of a Redis that works, but not for us now. A script is refused with them at its first write or before, so
// nothing was changed.
var refusals = []struct {
	is        func(error) bool
	as        error
	transient bool // soon over, as a rule
}{
	{redis.IsOOMError, ErrOutOfMemory, false},
	{redis.IsNoReplicasError, ErrTooFewReplicas, false},
	{redis.IsReadOnlyError, ErrReadOnly, true},
	{redis.IsMasterDownError, ErrReadOnly, true},
	{redis.IsLoadingError, ErrLoading, true},
	{redis.IsClusterDownError, ErrClusterDown, true},
	{redis.IsTryAgainError, ErrClusterDown, true},
	{moved, ErrClusterDown, true},
	{coded("MISCONF"), ErrCannotSave, false},
	{coded("BUSY"), ErrBusy, true},
	{redis.IsMaxClientsError, ErrBusy, true},
	{redis.IsAuthError, ErrDenied, false},
	{redis.IsPermissionError, ErrDenied, false},
}

// coded tells errors by the word that Redis puts before them.
func coded(code string) func(error) bool {
	return func(err error) bool { return redis.HasErrorPrefix(err, code) }
}

// moved: the slot is, or soon will be, served elsewhere. A Cluster client follows by itself, except where it was told the server.
func moved(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, moving := redis.IsAskError(err)
	return moved || moving
}

// transient: the same request is worth sending again soon, and safe to.
func transient(err error) bool {
	for _, refusal := range refusals {
		if refusal.transient && errors.Is(err, refusal.as) {
			return true
		}
	}
	return errors.Is(err, ErrUnreachable)
}

// unanswered is the error of a request that may or may not have been carried out.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// acquired is the answer of acquire.lua: a token for each resource, or how long to wait and for which of them.
type acquired struct {
	tokens []int64 // nil when refused
	wait   time.Duration
	index  int
	floor  int64 // no smaller token is granted on that resource from now on
}

func decodeAcquire(r reply, resources int) (acquired, error) {
	switch {
	case r.is("granted", resources):
		tokens := make([]int64, resources)
		for i := range tokens {
			var err error
			if tokens[i], err = r.number(i); err != nil {
				return acquired{}, err
			}
		}
		return acquired{tokens: tokens}, nil
	case r.is("held", 3):
		wait, err := r.number(0)
		n, err2 := r.number(1)
		floor, err3 := r.number(2)
		if err != nil || err2 != nil || err3 != nil || n > int64(resources) {
			return acquired{}, r.unknown()
		}
		return acquired{wait: time.Duration(wait) * time.Millisecond, index: int(n) - 1, floor: floor}, nil
	case r.is("exhausted", 0):
		return acquired{}, ErrExhausted
	}
	return acquired{}, r.unknown()
}

// number reads a positive whole number below 2^53, sent as a decimal string.
func (r reply) number(i int) (int64, error) { return r.numberFrom(1, i) }

func (r reply) numberFrom(least int64, i int) (int64, error) {
	n, err := strconv.ParseInt(r.args[i], 10, 64)
	if err != nil || n < least || n > maxToken {
		return 0, r.unknown()
	}
	return n, nil
}

// maxToken is the largest token: what Lua's doubles hold exactly.
const maxToken = 1<<53 - 1

// outcome is the answer of extend.lua and release.lua about one exact lease.
type outcome string

const (
	done    outcome = "done"
	gone    outcome = "gone"
	taken   outcome = "taken"
	revoked outcome = "revoked"
)

func decodeExtend(r reply) (outcome, error)  { return decodeOutcome(r, "extended") }
func decodeConfirm(r reply) (outcome, error) { return decodeOutcome(r, "confirmed") }
func decodeRelease(r reply) (outcome, error) { return decodeOutcome(r, "released") }

func decodeOutcome(r reply, success string) (outcome, error) {
	if len(r.args) != 0 {
		return "", r.unknown()
	}
	switch r.word {
	case success:
		return done, nil
	case "gone", "taken", "revoked":
		return outcome(r.word), nil
	}
	return "", r.unknown()
}

// loss is why a lease that was thought to be held is not.
func (o outcome) loss() error {
	switch o {
	case taken:
		return fmt.Errorf("%w: taken by another holder", ErrLost)
	case revoked:
		return ErrRevoked
	default:
		return fmt.Errorf("%w: redis no longer has it", ErrLost)
	}
}

func decodeWithdraw(r reply) (struct{}, error) {
	if !r.is("withdrawn", 0) {
		return struct{}{}, r.unknown()
	}
	return struct{}{}, nil
}

func decodeRevoke(r reply) (Revocation, error) {
	switch {
	case r.is("revoked", 3):
		token, err := r.number(0)
		holder, err2 := uuid.Parse(r.args[1])
		held, err3 := r.numberFrom(0, 2)
		if err != nil || err2 != nil || err3 != nil {
			return Revocation{}, r.unknown()
		}
		return Revocation{token: token, holder: holder, holderToken: held}, nil
	case r.is("passed", 1):
		last, err := r.numberFrom(0, 0)
		if err != nil {
			return Revocation{}, err
		}
		return Revocation{}, fmt.Errorf("%w: the last token is %d", ErrStale, last)
	case r.is("exhausted", 0):
		return Revocation{}, ErrExhausted
	}
	return Revocation{}, r.unknown()
}

func decodeRaise(r reply) (int64, error) {
	if !r.is("raised", 1) {
		return 0, r.unknown()
	}
	return r.number(0)
}

func decodeRegrant(r reply) (int64, error) {
	switch {
	case r.is("granted", 1):
		return r.number(0)
	case r.is("gone", 0), r.is("taken", 0):
		return 0, outcome(r.word).loss()
	case r.is("exhausted", 0):
		return 0, ErrExhausted
	}
	return 0, r.unknown()
}

func decodeInspect(r reply) (Inspection, error) {
	if !r.is("inspected", 7) {
		return Inspection{}, r.unknown()
	}
	var n [5]int64
	for i := range n {
		var err error
		if n[i], err = r.numberFrom(-2, i+1); err != nil {
			return Inspection{}, err
		}
	}
	found := Inspection{
		Token:         n[0],
		ExpiresIn:     time.Duration(n[1]) * time.Millisecond,
		LastToken:     n[2],
		RememberedFor: time.Duration(n[3]) * time.Millisecond,
		Waiters:       int(n[4]),
	}
	var err error
	if r.args[0] != "" {
		found.Holder, err = uuid.Parse(r.args[0])
	}
	if revoked, _, ok := strings.Cut(r.args[6], ":"); ok && err == nil {
		found.Revoked, err = uuid.Parse(revoked)
	}
	if err != nil {
		return Inspection{}, r.unknown()
	}
	return found, nil
}

func decodeVerify(r reply) (Verdict, error) {
	switch {
	case r.is("current", 0):
		return Current, nil
	case r.is("lost", 0):
		return LeaseLost, nil
	case r.is("stale", 1):
		_, err := r.number(0)
		return FenceStale, err
	}
	return 0, r.unknown()
}
