package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Package lease documents what each error means.
var (
	ErrInvalid     = errors.New("lease: invalid")
	ErrCorrupt     = errors.New("lease: corrupt key")
	ErrRefused     = errors.New("lease: redis refuses")
	ErrProtocol    = errors.New("lease: unknown reply")
	ErrUnreachable = errors.New("lease: redis unreachable")
)

// ErrUnasked: nothing was sent, because the context had ended before. The error also has the cause
// of the context. It says nothing about Redis.
var ErrUnasked = errors.New("redis was not asked")

func unasked(ctx context.Context) error {
	cause := context.Cause(ctx)
	return Also(fmt.Errorf("%w: %s", ErrUnasked, WhyEnded(cause)), cause)
}

// ErrNoFunction is the [ErrInvalid] of a call whose function is nil. Redis was not asked.
var ErrNoFunction = Invalid("the function is nil")

// Invalid makes an [ErrInvalid].
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// Outcome is an error that says for lease.IsLost what became of the work.
type Outcome struct {
	text string
	lost bool
}

// Lost makes an error that says: another holder has the resource, or may have it by now.
func Lost(text string) error { return &Outcome{text, true} }

// NotLost makes an error that says: the work was done, or may have been. It is not lost, even if
// the same error also says that the lease was.
func NotLost(text string) error { return &Outcome{text, false} }

func (e *Outcome) Error() string { return e.text }

// LeaseLost is called by lease.IsLost.
func (e *Outcome) LeaseLost() bool { return e.lost }

// ErrReceiverUnknown is in those errors of package grant after which the receiver may have written.
var ErrReceiverUnknown = NotLost("grant: the receiver may have written")

// LostIn returns what the errors in the tree of err say about the work, through their method
// LeaseLost, which errors of other packages may have too. lost: the work was lost. notLost: it was
// done, or may have been, or must not be tried again.
func LostIn(err error) (lost, notLost bool) {
	if e, asked := err.(interface{ LeaseLost() bool }); asked {
		lost, notLost = e.LeaseLost(), !e.LeaseLost()
	}
	var inner []error
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		inner = []error{e.Unwrap()}
	case interface{ Unwrap() []error }:
		inner = e.Unwrap()
	}
	for _, err := range inner {
		l, n := LostIn(err)
		lost, notLost = lost || l, notLost || n
	}
	return lost, notLost
}

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

// Failed turns the error of a request into one of this package: the context of the caller had
// ended, there is no answer, or Redis has answered with an error.
func Failed(ctx context.Context, request string, err error) error {
	switch {
	case errors.Is(err, ErrUnasked):
		return err
	case !answered(err), leftOff(err):
		return unanswered(ctx, err)
	}
	if errors.Is(err, redis.Nil) { // no script answers nil
		return fmt.Errorf("%w: %s answered nothing", ErrProtocol, request)
	}
	for _, refusal := range refusals {
		if refusal.is(err) {
			return &RefusedError{refusal.code, err}
		}
	}
	return fmt.Errorf("lease: redis refused %s: %w", request, err)
}

// answered reports whether err is an answer of Redis.
func answered(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// leftOff reports whether a server of a Cluster has ended a script halfway: the server was moving
// the slot to another one, and the script used a key that the script itself had deleted. What the
// script had written stays, and the same request may succeed once the slot has moved.
func leftOff(err error) bool {
	return redis.HasErrorPrefix(err, "Script attempted to access a non local key")
}

// RefusedError is the [ErrRefused] with its values. Package lease documents it.
type RefusedError struct {
	Code  string
	Cause error
}

func (e *RefusedError) Error() string {
	text := ErrRefused.Error()
	if kind, known := kinds[e.Code]; known {
		text += ": it " + kind.text
	}
	if e.Cause != nil {
		text += fmt.Sprintf(" (%v)", e.Cause)
	}
	return text
}

// Is makes every RefusedError an [ErrRefused], and equal to another one with the same Code.
func (e *RefusedError) Is(target error) bool {
	other, same := target.(*RefusedError)
	return target == ErrRefused || same && other.Code == e.Code
}

func (e *RefusedError) Unwrap() error { return e.Cause }

// Codes of a [RefusedError].
const (
	NoMemory   = "OOM"
	NoReplicas = "NOREPLICAS"
	ReadOnly   = "READONLY"
	Loading    = "LOADING"
	NoSlot     = "CLUSTERDOWN"
	CannotSave = "MISCONF"
	Busy       = "BUSY"
	Denied     = "NOPERM"
)

// kinds are the refusals by a Redis that works. It refuses a script at its first write or before,
// so nothing was changed.
var kinds = map[string]struct {
	text      string // what is wrong, and what to do
	transient bool   // it usually ends soon
}{
	NoMemory:   {"is out of memory; raise maxmemory, or find what fills it", false},
	NoReplicas: {"has too few replicas; bring one back, or ask for fewer", false},
	ReadOnly:   {"is a replica; wait for the end of the fail-over, or correct the client's address", true},
	Loading:    {"is loading its data; wait", true},
	NoSlot:     {"does not serve this part of the Cluster now; wait, and see CLUSTER INFO if it lasts", true},
	CannotSave: {"cannot save its data and refuses writes until it can; see its log and its disk", false},
	Busy:       {"is busy; wait, and see SCRIPT KILL and CLIENT LIST if it lasts", true},
	Denied:     {"denies access; check the client's user, password and ACL", false},
}

var refusals = []struct {
	is   func(error) bool
	code string
}{
	{redis.IsOOMError, NoMemory},
	{redis.IsNoReplicasError, NoReplicas},
	{redis.IsReadOnlyError, ReadOnly},
	{redis.IsMasterDownError, ReadOnly},
	{redis.IsLoadingError, Loading},
	{redis.IsClusterDownError, NoSlot},
	{redis.IsTryAgainError, NoSlot},
	{Moved, NoSlot},
	{coded("MISCONF"), CannotSave},
	{coded("BUSY "), Busy}, // the space excludes BUSYGROUP, which a script of the caller may cause
	{redis.IsMaxClientsError, Busy},
	{redis.IsAuthError, Denied},
	{redis.IsPermissionError, Denied},
	{coded("ACL failure in script"), Denied},               // a command in a script was denied: the error has no code
	{coded("The user executing the script can't"), Denied}, // the same, until Redis 7.0
}

// IsRefused reports whether Redis refuses for that reason.
func IsRefused(err error, code string) bool {
	refused, is := errors.AsType[*RefusedError](err)
	return is && refused.Code == code
}

// coded recognises errors by the code that Redis puts in front of them.
func coded(code string) func(error) bool {
	return func(err error) bool { return redis.HasErrorPrefix(err, code) }
}

// Moved reports whether another server serves the slot, or soon will. A Cluster client follows the
// redirection automatically, unless the request was made to a given server.
func Moved(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, moving := redis.IsAskError(err)
	return moved || moving
}

// Transient reports whether to send the same request again soon.
func Transient(err error) bool { return refused(err) != nil || errors.Is(err, ErrUnreachable) }

// refused is the transient refusal that err is, or nil.
func refused(err error) error {
	if e, is := errors.AsType[*RefusedError](err); is && kinds[e.Code].transient {
		return e
	}
	return nil
}

// Latest returns err, the outcome of the latest attempt, which came after an attempt with the
// outcome before. If the latest had no answer, the result also carries what is known from before:
// the reason of its failure, and since when there was no answer.
func Latest(before, err error) error {
	why := known(before)
	e, silent := err.(*silence)
	switch {
	case !silent && (why == nil || err == nil || known(err) != nil):
		return err
	case !silent:
		return fmt.Errorf("%w; an earlier attempt: %w", err, why)
	}
	all := *e
	if first, is := errors.AsType[*silence](before); is && !first.since.IsZero() && first.since.Before(e.since) {
		all.since, all.took = first.since, e.took+e.since.Sub(first.since)
	}
	if all.last == nil {
		all.last = why
	}
	return &all
}

// known is why an attempt has failed, the refusal or the error of the network; nil if the attempt
// only had no answer in its time.
func known(err error) error {
	if e, is := errors.AsType[*silence](err); is && e.last != nil {
		return e.last
	}
	return refused(err)
}

// silence is the [ErrUnreachable] of one request, or of several attempts, which may or may not have
// been carried out.
type silence struct {
	whom   string        // who did not answer: a server, or the pool of connections to it; "": not known
	since  time.Time     // when the first request without an answer was sent; zero: not known
	took   time.Duration // from since until the caller stopped waiting; 0: not known
	waited bool          // the latest request had no answer in its time
	ended  error         // the cause of the caller's context, if that has ended; it says nothing about Redis
	last   error         // what the client library or Redis said latest; nil: nothing
}

func (e *silence) Error() string {
	if !e.waited {
		said := e.last.Error()
		if e.whom != "" && !strings.Contains(said, e.whom) {
			said = e.whom + ": " + said
		}
		return fmt.Sprintf("%v: %s", ErrUnreachable, said)
	}
	text := fmt.Sprintf("%v: no answer", ErrUnreachable)
	if e.whom != "" {
		text += " from " + e.whom
	}
	if e.took > 0 {
		text += fmt.Sprintf(" within %v", cmp.Or(e.took.Round(time.Millisecond), e.took))
	}
	if e.ended != nil {
		text += ": " + WhyEnded(e.ended)
	}
	if e.last != nil {
		text += fmt.Sprintf("; an earlier attempt: %v", e.last)
	}
	return text
}

func (e *silence) Unwrap() []error {
	return slices.DeleteFunc([]error{ErrUnreachable, e.ended, e.last}, func(err error) bool { return err == nil })
}

// NoAnswer is the [ErrUnreachable] of a request that had no answer in that time.
func NoAnswer(most time.Duration) error { return &silence{waited: true, took: most} }

// WhyEnded says in words why a context of the caller has ended. "context canceled" would not say
// whose context it was.
func WhyEnded(cause error) string {
	switch cause {
	case context.Canceled:
		return "the caller's context ended"
	case context.DeadlineExceeded:
		return "the caller's deadline has passed"
	}
	return cause.Error()
}

// unanswered is the error of a request that may or may not have been carried out.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		cause := context.Cause(ctx)
		if e, ours := cause.(*silence); ours { // a bound of our own
			return e
		}
		return &silence{waited: true, ended: cause}
	}
	if errors.Is(err, ErrUnreachable) {
		return err
	}
	return &silence{last: err}
}

// Unanswered is the [ErrUnreachable] of a caller whose ctx has ended. It names the server of the
// key, which has not answered since that time.
func (s *Sender) Unanswered(ctx context.Context, key string, since time.Time) error {
	return s.silent(unanswered(ctx, ctx.Err()), key, since)
}

// silent adds to an [ErrUnreachable] the server of the key, which has not answered since that time.
// It returns other errors as they are.
func (s *Sender) silent(err error, key string, since time.Time) error {
	e, is := err.(*silence)
	if !is {
		return err
	}
	named := *e
	named.whom, named.since, named.took = s.whom(key, e), since, time.Since(since)
	return &named
}

// whom names the server of the key, or the pool of connections to it if that is used up. Without a
// key, it names all servers of a Cluster.
func (s *Sender) whom(key string, e *silence) string {
	client, known := s.client.(*redis.Client)
	if s.cluster != nil && key == "" {
		return strings.Join(s.cluster.Options().Addrs, ", ")
	}
	if s.cluster != nil {
		over, cancel := context.WithCancel(context.Background())
		cancel() // so that the look-up sends nothing
		master, err := s.cluster.MasterForKey(over, key)
		if err != nil {
			return strings.Join(s.cluster.Options().Addrs, ", ")
		}
		client, known = master, true
	}
	if !known {
		return "redis"
	}
	addr, size, stats := Address(client), client.Options().PoolSize, client.PoolStats()
	if errors.Is(e.last, redis.ErrPoolTimeout) || int(stats.TotalConns)-int(stats.IdleConns) >= size {
		return fmt.Sprintf("the pool of %d connections to %s, which is used up", size, addr)
	}
	return addr
}

// Address names the server of a client for people. A client of Sentinels does not show its address.
func Address(client *redis.Client) string {
	if client.Options().Addr == "FailoverClient" { // the client library's name for it
		return "the primary of the Sentinel group"
	}
	return client.Options().Addr
}

// Also wraps err so that errors.Is(err, other) holds; the text stays that of err.
func Also(err, other error) error { return &also{err, other} }

type also struct {
	error
	other error
}

func (e *also) Unwrap() []error { return []error{e.error, e.other} }
