package protocol

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Package lease documents what each of them means.
var (
	ErrInvalid        = errors.New("lease: invalid")
	ErrCorrupt        = errors.New("lease: corrupt key")
	ErrOutOfMemory    = errors.New("lease: redis is out of memory")
	ErrReadOnly       = errors.New("lease: redis is a replica")
	ErrLoading        = errors.New("lease: redis is loading its data")
	ErrClusterDown    = errors.New("lease: redis cluster does not serve the resource")
	ErrTooFewReplicas = errors.New("lease: too few redis replicas")
	ErrCannotSave     = errors.New("lease: redis cannot save its data and refuses writes until it can; see its log and its disk")
	ErrBusy           = errors.New("lease: redis is busy")
	ErrDenied         = errors.New("lease: redis denies access; check the client's user, password and ACL")
	ErrProtocol       = errors.New("lease: unknown reply")
	ErrUnreachable    = errors.New("lease: redis unreachable")
)

// ErrUnasked: nothing was sent, because the context was over before. Its cause is in the error too.
// It says nothing about Redis.
var ErrUnasked = errors.New("redis was not asked")

func unasked(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrUnasked, context.Cause(ctx)) }

// Invalid is an [ErrInvalid].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Outcome is an error that answers lease.IsLost.
type Outcome struct {
	text string
	lost bool
}

// Lost says that another holder has the resource, or may have it by now.
func Lost(text string) error { return &Outcome{text, true} }

// Settled says that the work was done, or may have been: what else the error says about the lease
// does not make it lost work.
func Settled(text string) error { return &Outcome{text, false} }

func (e *Outcome) Error() string { return e.text }

// LeaseLost is for lease.IsLost.
func (e *Outcome) LeaseLost() bool { return e.lost }

// Join is errors.Join on one line.
func Join(errs ...error) error {
	joined := errors.Join(errs...)
	if joined == nil {
		return nil
	}
	return oneLine{joined}
}

type oneLine struct{ error }

func (e oneLine) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }
func (e oneLine) Unwrap() error { return e.error }

// Failed sorts what went wrong with a request: the caller's context, no answer, or an error that
// Redis answered.
func Failed(ctx context.Context, request string, err error) error {
	if !answered(err) {
		return unanswered(ctx, err)
	}
	if errors.Is(err, redis.Nil) { // which is no error of Redis's, and no answer of a script's
		return fmt.Errorf("%w: nothing, to %s", ErrProtocol, request)
	}
	for _, refusal := range refusals {
		if refusal.is(err) {
			return fmt.Errorf("%w: %w", refusal.as, err)
		}
	}
	return fmt.Errorf("lease: redis refused %s: %w", request, err)
}

// answered reports whether err is what Redis has answered.
func answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// refusals are answers of a Redis that works but refuses this request now. It refuses a script at
// its first write or before, so nothing was changed.
var refusals = []struct {
	is        func(error) bool
	as        error
	transient bool // usually over soon
}{
	{redis.IsOOMError, ErrOutOfMemory, false},
	{redis.IsNoReplicasError, ErrTooFewReplicas, false},
	{redis.IsReadOnlyError, ErrReadOnly, true},
	{redis.IsMasterDownError, ErrReadOnly, true},
	{redis.IsLoadingError, ErrLoading, true},
	{redis.IsClusterDownError, ErrClusterDown, true},
	{redis.IsTryAgainError, ErrClusterDown, true},
	{Moved, ErrClusterDown, true},
	{coded("MISCONF"), ErrCannotSave, false},
	{coded("BUSY "), ErrBusy, true}, // not BUSYGROUP, of a script of the caller
	{redis.IsMaxClientsError, ErrBusy, true},
	{redis.IsAuthError, ErrDenied, false},
	{redis.IsPermissionError, ErrDenied, false},
	{coded("ACL failure in script"), ErrDenied, false},               // of a command within a script, which has no code
	{coded("The user executing the script can't"), ErrDenied, false}, // the same until Redis 7.0
}

// coded recognises errors by the code that Redis puts in front of them.
func coded(code string) func(error) bool {
	return func(err error) bool { return redis.HasErrorPrefix(err, code) }
}

// Moved reports whether the slot is, or soon will be, served by another server. A Cluster client
// follows automatically, unless it was given the server.
func Moved(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, moving := redis.IsAskError(err)
	return moved || moving
}

// Transient reports whether to send the same request again soon.
func Transient(err error) bool { return refused(err) != nil || errors.Is(err, ErrUnreachable) }

// refused is the transient refusal that err is, or nil.
func refused(err error) error {
	for _, refusal := range refusals {
		if refusal.transient && errors.Is(err, refusal.as) {
			return refusal.as
		}
	}
	return nil
}

// Latest is err, the outcome of the latest attempt. If that had no answer, it also carries what is
// known from an attempt before.
func Latest(before, err error) error {
	if why := known(before); why != nil && err != nil && known(err) == nil {
		return &later{err, why}
	}
	return err
}

// later is the error of an attempt without an answer, after one that has failed for a reason.
type later struct{ error, before error }

func (e *later) Error() string   { return fmt.Sprintf("%v; before that, %v", e.error, e.before) }
func (e *later) Unwrap() []error { return []error{e.error, e.before} }

// known is why an attempt has failed, the refusal or what the network said; nil if it had no answer
// in its time.
func known(err error) error {
	if e, ok := errors.AsType[*later](err); ok {
		return e.before
	}
	if e, ok := errors.AsType[*unreachable](err); ok {
		return e.cause
	}
	return refused(err)
}

// unreachable is the [ErrUnreachable] of a request that the client library could not carry out.
type unreachable struct{ cause error }

func (e *unreachable) Error() string   { return fmt.Sprintf("%v: %v", ErrUnreachable, e.cause) }
func (e *unreachable) Unwrap() []error { return []error{ErrUnreachable, e.cause} }

// unanswered is the error of a request that may or may not have been carried out.
func unanswered(ctx context.Context, err error) error {
	ended := ctx.Err() != nil
	if ended {
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, ErrUnreachable): // by a bound of our own
		return err
	case ended:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return &unreachable{err}
}
