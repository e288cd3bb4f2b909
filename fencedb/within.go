package fencedb

import (
	"context"
	"reflect"
)

// within puts the context that a function of Tx gives to a statement into the pair of the transaction. The function was written before
// there was a pair and has the caller's context, so tracers of pgx would see its statements beside the transaction.
func (tx *fencedTx) within(ctx context.Context) context.Context {
	if len(tx.entry.tracers) == 0 {
		return ctx
	}
	return inPair{ctx, tx.caller, tx.ctx}
}

// inPair is a statement's context with the values of the pair, in place of those that come from the caller. What the function has put
// in itself, such as a span of its own, stays.
type inPair struct {
	context.Context
	caller, pair context.Context
}

func (c inPair) Value(key any) any {
	value := c.Context.Value(key)
	if same(value, c.caller.Value(key)) {
		return c.pair.Value(key)
	}
	return value
}

// same is whether two values of contexts are one. Those that cannot be compared count as different.
func same(a, b any) bool {
	if a == nil || b == nil {
		return a == b
	}
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
