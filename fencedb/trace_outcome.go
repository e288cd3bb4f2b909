package fencedb

import "errors"

// outcomes are the words for errors, in the order in which they are asked: an error can be several.
var outcomes = []struct {
	err  error
	word string
}{
	{ErrCommitted, "committed"},
	{ErrTxEnded, "tx_ended"},
	{ErrStale, "stale"},
	{ErrNoToken, "no_token"},
	{ErrWrongResource, "wrong_resource"},
	{ErrLeaseOver, "lease_over"},
	{ErrTooLong, "too_long"},
	{ErrUnsealed, "unsealed"},
	{ErrBusy, "busy"},
	{ErrCommitUnknown, "commit_unknown"},
	{ErrInvalidGrant, "invalid_grant"},
}

// Outcome is the word for Err in metrics, logs and events: one of [Outcomes], whatever the error
// is. It is "committed" also if the write committed and its result could not be read, and "error"
// for an error that is none of this package's.
func (e TraceEnd) Outcome() string {
	if e.Err == nil {
		return "committed"
	}
	for _, known := range outcomes {
		if errors.Is(e.Err, known.err) {
			return known.word
		}
	}
	return "error"
}

// Outcomes lists the words that [TraceEnd.Outcome] can return.
func Outcomes() []string {
	var words []string
	for _, known := range outcomes {
		words = append(words, known.word)
	}
	return append(words, "error")
}

// Subject returns the grant that the end of a write is about: the one that was refused as stale,
// with the token that Postgres has stored, otherwise the first, with 0.
func (e TraceEnd) Subject() (grant Grant, stored int64) {
	var stale *StaleError
	if !errors.As(e.Err, &stale) {
		return e.Grants[0], 0
	}
	for _, g := range e.Grants {
		if g.Resource() == stale.Resource {
			return g, stale.Stored
		}
	}
	return e.Grants[0], stale.Stored // the server did not say which
}
