package fencedb

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// sentinel is an error with an answer for lease.IsLost, which asks errors of both packages although
// neither imports the other.
type sentinel struct {
	text string

	// lost: another holder has the resource, or may have it by now, and nothing was written. If it
	// is false, something was or may have been written, or a retry does not help.
	lost bool
}

func (e *sentinel) Error() string { return e.text }

func (e *sentinel) LeaseLost() bool { return e.lost }

// The errors of this package, for errors.Is. Each comment says what is then true of the data.
// StaleError, WrongResourceError, BusyError, CommitUnknownError and TxEndedError carry values. The
// cause, usually a *pgconn.PgError, stays in the chain for errors.As. lease.IsLost is true if
// another holder has the resource or may have it: ErrStale, ErrLeaseOver, ErrBusy.
var (
	// ErrStale: a newer holder's token has entered for the resource, or the same token under
	// another lease. Nothing was written. The work belongs to the other holder now: drop it, or
	// acquire the lease again. SQLSTATE FN001. (lease.ErrStale is about an answer of Redis.)
	ErrStale error = &sentinel{"fencedb: stale fencing token", true}

	// ErrNoToken: a protected table was written to in a transaction that had not entered a fence.
	// Nothing was written. Wrap the write in [Tx], [Exec] or [SendBatch], or call [Enter] first.
	// SQLSTATE FN002.
	ErrNoToken = errors.New("fencedb: write without a fencing token")

	// ErrWrongResource: a row belongs to a resource whose fence the transaction did not enter.
	// Nothing was written. Pass the grants of all resources that are written to, with [All].
	// SQLSTATE FN003.
	ErrWrongResource = errors.New("fencedb: row of another resource")

	// ErrLeaseOver: the validity of the grant passed before the transaction could commit, and the
	// server ended it. Nothing was written. The text names the resource, and the cause of the
	// lease's end is in the chain (lease.ErrExpired, lease.ErrLost...). Acquire the lease again;
	// write in shorter transactions, or use [Timeout]. SQLSTATE FN004.
	ErrLeaseOver error = &sentinel{"fencedb: the lease is over", true}

	// ErrTooLong: the transaction outlasted the validity that its lease had when it entered (or its
	// [Timeout], or a tighter limit of the role), and the server ended it. The lease was renewed
	// meanwhile and is still valid. Nothing was written. Write in a shorter transaction, or set its
	// time with Timeout. If it waited for a lock of another session, the log of the server names
	// that session (log_lock_waits). SQLSTATE FN006, 25P03, 25P04, and 57014 for a slow statement:
	// Explain cannot tell that from other cancellations, [Tx] and [Entry.Outcome] can.
	ErrTooLong = errors.New("fencedb: the transaction outlasted its time limit: the lease's validity when it entered (Timeout sets another), or a tighter limit of its role; use a shorter transaction")

	// ErrUnsealed: above READ COMMITTED, [Enter] or [EnterSQL] found that the token has not entered
	// yet, or that a newer one has entered since. Nothing was written. Roll back, call [Seal] with
	// the same grant, and begin again; Seal returns [ErrStale] if the grant is stale. [Tx], [Exec],
	// [Query], [QueryRow] and [SendBatch] do this themselves. SQLSTATE 40001.
	ErrUnsealed = errors.New("fencedb: the fence was not sealed before the transaction began")

	// ErrBusy: another open transaction held the fence until the lease, the transaction's time or
	// its context was over. Nothing was written.
	ErrBusy error = &sentinel{"fencedb: the fence is held by an open transaction", true}

	// ErrInvalidGrant: the grant cannot have been issued (nil, no token, no lease id, no resource),
	// does not say when it ends, or was released by its own holder; or the transaction has entered
	// the resource with another grant. Nothing was written. It is a mistake of the caller, so
	// lease.IsLost is false, and a retry does not help.
	ErrInvalidGrant error = &sentinel{"fencedb: invalid grant", false}

	// ErrKeyReused: the idempotency key of [Once] was used before, for another request or by
	// another role. Nothing was written.
	ErrKeyReused = errors.New("fencedb: idempotency key used for another request")

	// ErrAlreadyWritten: [ExplainNoRows] found the token of the grant in the row. The holder has
	// written the row before, and the condition admits one write per token. (If Redis has lost
	// data, the writer may be another lease with the same number.) The statement wrote nothing; the
	// earlier write stands. Compare the lease id as well.
	ErrAlreadyWritten error = &sentinel{"fencedb: the row has this token already, and the condition asks for a greater one", false}

	// ErrCommitUnknown: it is unknown whether the transaction committed, for one of three reasons.
	// The connection was lost during COMMIT, and the server did not report the outcome in time, or
	// has crashed or failed over since. In [Exec], [Query], [QueryRow] and [SendBatch], the
	// connection was lost before the server had answered anything. Or a standby that COMMIT waited
	// for has not answered. The data was written completely or not at all. Ask again later with
	// fencedb.outcome, or acquire the lease again and look: once a higher token has entered, the
	// old transaction cannot commit any more.
	ErrCommitUnknown error = &sentinel{"fencedb: unknown whether the transaction committed", false}

	// ErrTxEnded: a statement of the caller ended the transaction that held the fence (COMMIT,
	// ROLLBACK, PREPARE TRANSACTION, also AND CHAIN or followed by BEGIN), or cleared the setting
	// fencedb.entered (RESET ALL; then the transaction is rolled back). [TxEndedError] has what
	// became of the writes before that statement. The writes after it were outside the fence, and
	// were rolled back unless the caller has committed them too. That includes the rest of a string
	// of statements: Postgres commits it when the string ends. [Tx], [Exec], [Query], [QueryRow]
	// and [SendBatch] refuse a COMMIT that they see. SQLSTATE FN007.
	ErrTxEnded error = &sentinel{"fencedb: a statement ended the transaction that held the fence", false}

	// ErrCommitted: the transaction committed and everything was written. But a result was lost
	// with the connection or could not be read, or [QueryRow] got no row: then pgx.ErrNoRows is in
	// the chain too.
	ErrCommitted error = &sentinel{"fencedb: committed, but a result could not be read", false}
)

// StaleError is [ErrStale] with its values. Nothing was written.
type StaleError struct {
	Resource string
	Token    int64 // the token that was refused
	Stored   int64 // the token that has entered since; equal to Token if another lease entered with it
	cause    error
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%v: resource %q: carried %d, stored %d", ErrStale, e.Resource, e.Token, e.Stored)
}

func (e *StaleError) Unwrap() []error { return []error{ErrStale, e.cause} }

// FencePassed returns the resource and the token that has entered, for lease.Config.Seal.
func (e *StaleError) FencePassed() (resource string, last int64) { return e.Resource, e.Stored }

// WrongResourceError is [ErrWrongResource] with its values. Nothing was written.
type WrongResourceError struct {
	Table    string   // the protected table, with its schema
	Resource string   // the resource of the row
	Entered  []string // the resources whose fences the transaction had entered
	cause    error
}

func (e *WrongResourceError) Error() string {
	return fmt.Sprintf("%v: the row of %s belongs to %q, the transaction entered %q", ErrWrongResource, cmp.Or(e.Table, "a protected table"), e.Resource, e.Entered)
}

func (e *WrongResourceError) Unwrap() []error { return []error{ErrWrongResource, e.cause} }

// BusyError is [ErrBusy] with its values. Nothing was written.
type BusyError struct {
	Resources []string // those that the transaction tried to enter
	waited    time.Duration
	cause     error

	// Blockers are the sessions that held the fence when the wait ended: empty if they had ended by
	// then, nil if the server could not be asked, as in a transaction of the caller ([Enter],
	// [EnterSQL]).
	Blockers []Blocker
}

// Blocker is a session that holds a fence in an open transaction. If the resource has no fence yet,
// every session that is changing fences is one. State is that of pg_stat_activity: "idle in
// transaction" means that the client asks for nothing. fencedb adds "active, waits for its client":
// to send the rest of a request or read a result.
type Blocker struct {
	PID         int           // for pg_terminate_backend; 0 is a prepared transaction
	Application string        // its application_name
	State       string        // also "prepared transaction", or "not visible: ..." with the missing grant
	Open        time.Duration // since its transaction began; 0 if it has none, or this is not known
}

func (b Blocker) String() string {
	what := []string{b.Application, b.State}
	if b.Open > 0 {
		what = append(what, fmt.Sprintf("open for %v", b.Open.Round(time.Millisecond)))
	}
	what = slices.DeleteFunc(what, func(word string) bool { return word == "" })
	return fmt.Sprintf("pid %d (%s)", b.PID, strings.Join(what, ", "))
}

func list(blockers []Blocker) string {
	var by []string
	for _, b := range blockers {
		by = append(by, b.String())
	}
	return strings.Join(by, ", ")
}

func (e *BusyError) Error() string {
	nobody := "a session that has ended since"
	if e.Blockers == nil {
		nobody = "a session that was not looked up; see fencedb.blockers"
	}
	return fmt.Sprintf("%v: waited %v for %q, behind %s", ErrBusy, e.waited.Round(time.Millisecond), e.Resources,
		cmp.Or(list(e.Blockers), nobody))
}

func (e *BusyError) Unwrap() []error { return []error{ErrBusy, e.cause} }

// CommitUnknownError is [ErrCommitUnknown] with the values to ask for the outcome.
type CommitUnknownError struct {
	// XID and Epoch are for SELECT fencedb.outcome(xid, epoch) on the present primary: it returns
	// committed, aborted, in progress, or NULL if that is no longer known. They are 0 if the
	// connection was lost before the server had sent them (only in [Exec], [Query], [QueryRow] and
	// [SendBatch]).
	XID   uint64
	Epoch int64
	cause error
}

func (e *CommitUnknownError) Error() string {
	if e.XID == 0 {
		return fmt.Sprintf("%v: %v", ErrCommitUnknown, e.cause)
	}
	return fmt.Sprintf("%v: ask the server with SELECT fencedb.outcome('%d', %d): %v", ErrCommitUnknown, e.XID, e.Epoch, e.cause)
}

func (e *CommitUnknownError) Unwrap() []error { return []error{ErrCommitUnknown, e.cause} }

// TxEndedError is [ErrTxEnded] with its values.
type TxEndedError struct {
	XID uint64 // the transaction that held the fence

	// Outcome is what became of that transaction, in the words of Postgres. "committed": the writes
	// before the statement were committed. "aborted": they were not. "in progress": the transaction
	// is prepared and still holds the fence, until COMMIT PREPARED or ROLLBACK PREPARED.
	Outcome string
	cause   error
}

func (e *TxEndedError) Error() string {
	return fmt.Sprintf("%v: that transaction is %s, and what came after it is rolled back unless it was committed as well: %v",
		ErrTxEnded, e.Outcome, e.cause)
}

func (e *TxEndedError) Unwrap() []error { return []error{ErrTxEnded, e.cause} }

// rejection joins a server's error with the sentinel that it stands for.
type rejection struct {
	sentinel error
	cause    error
}

// Error includes the hint of the server, which says what to do; drivers leave it out. ErrTooLong
// says itself what to do in Go.
func (e *rejection) Error() string {
	text := fmt.Sprintf("%v: %v", e.sentinel, e.cause)
	if hint := answered(e.cause).hint; hint != "" && e.sentinel != ErrTooLong {
		text += "; hint: " + hint
	}
	return text
}

func (e *rejection) Unwrap() []error { return []error{e.sentinel, e.cause} }

// SQLSTATEs of the storage contract; see migrations/sql.
const (
	codeStale         = "FN001"
	codeWrongResource = "FN003"
	codeLeaseOver     = "FN004"
	codeTooLong       = "FN006"
	codeTxEnded       = "FN007"
)

// SQLSTATEs of Postgres that mean something of their own in a fenced transaction.
const (
	codeLockNotAvailable     = "55P03"
	codeSerializationFailure = "40001"
	codeQueryCanceled        = "57014" // statement_timeout
	codeIdleInTransaction    = "25P03"
	codeTransactionTimeout   = "25P04"

	codeInvalidParameter      = "22023"
	codeInvalidSchema         = "3F000"
	codeUndefinedFunction     = "42883"
	codeUndefinedTable        = "42P01"
	codeInsufficientPrivilege = "42501"
	codeReadOnly              = "25006"

	codeFailedTransaction = "25P02" // refused because a statement before was

	codePreparedTwice = "42P05"
	codeNotPrepared   = "26000"
)

// Explain returns err as the error of this package that its SQLSTATE stands for: [ErrStale],
// [ErrNoToken], [ErrWrongResource], [ErrLeaseOver], [ErrTooLong] or [ErrTxEnded], with err in its
// chain. It returns any other error, and nil, as it is. ErrTxEnded comes without a [TxEndedError]:
// only the server has its values, which [Entry.Outcome] asks for.
func Explain(err error) error {
	if alreadyTyped(err) {
		return err
	}
	a := answered(err)
	switch a.code {
	case codeStale:
		var d struct {
			Resource      string
			Token, Stored int64
		}
		a.values(&d)
		return &StaleError{Resource: d.Resource, Token: d.Token, Stored: d.Stored, cause: err}
	case codeWrongResource:
		wrong := &WrongResourceError{cause: err}
		a.values(wrong)
		return wrong
	}
	if sentinel, known := withoutValues[a.code]; known {
		return &rejection{sentinel, err}
	}
	return err
}

// withoutValues are the errors without values, by SQLSTATE.
var withoutValues = map[string]error{
	"FN002": ErrNoToken, codeLeaseOver: ErrLeaseOver, codeTxEnded: ErrTxEnded,
	codeTooLong: ErrTooLong, codeIdleInTransaction: ErrTooLong, codeTransactionTimeout: ErrTooLong,
}

func alreadyTyped(err error) bool { return outcomeOf(err) != "error" || errors.Is(err, ErrKeyReused) }

// answer is the part of a server's error that a client needs.
type answer struct {
	code   string // SQLSTATE
	detail string // DETAIL, a JSON object for the SQLSTATEs that carry values
	hint   string // HINT
}

// answered returns the answer of the server in err. If there is none, as for a broken connection,
// its code is "".
//
// Drivers share no type for it. lib/pq and pgdriver return fields by their letters in the protocol,
// with different methods; others have the SQLSTATE only.
func answered(err error) answer {
	var (
		pgErr    *pgconn.PgError
		pq       interface{ Get(field byte) string }
		pgdriver interface{ Field(field byte) string }
		other    interface{ SQLState() string }
	)
	switch {
	case errors.As(err, &pgErr):
		return answer{pgErr.Code, pgErr.Detail, pgErr.Hint}
	case errors.As(err, &pq):
		return answer{pq.Get('C'), pq.Get('D'), pq.Get('H')}
	case errors.As(err, &pgdriver):
		return answer{pgdriver.Field('C'), pgdriver.Field('D'), pgdriver.Field('H')}
	case errors.As(err, &other):
		return answer{code: other.SQLState()}
	}
	return answer{}
}

// values decodes the detail. The values stay zero if the driver, the server or something between
// them has dropped the detail: the SQLSTATE alone decides what the error is.
func (a answer) values(into any) { _ = json.Unmarshal([]byte(a.detail), into) }
