package once

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/fencedb/fencedb/lease"
)

// DoJSON is [Once.Do] for a request and a result that encoding/json can write and read. A nil request compares with
// everything.
func DoJSON[T any](ctx context.Context, o *Once, key string, request any, fn func(ctx context.Context, claim *lease.Lease) (T, error), opts ...Option) (result T, replayed bool, err error) {
	var asked []byte
	if request != nil {
		if asked, err = json.Marshal(request); err != nil {
			return result, false, fmt.Errorf("once: the request of %q: %w", key, err)
		}
	}
	var own T
	answer, replayed, err := o.Do(ctx, key, asked, func(ctx context.Context, claim *lease.Lease) ([]byte, error) {
		var err error
		if own, err = fn(ctx, claim); err != nil {
			return nil, err
		}
		return json.Marshal(own)
	}, opts...)
	if err != nil || !replayed {
		return own, false, err
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return result, true, fmt.Errorf("once: the recorded result of %q is no %T: %w", key, result, err)
	}
	return result, true, nil
}
