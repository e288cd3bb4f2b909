package protocol

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnAttemptWithoutAnAnswerDoesNotHideWhatRedisSaid(t *testing.T) {
	for name, attempts := range map[string]func(context.Context, func(context.Context) error) error{
		"Persist": func(ctx context.Context, attempt func(context.Context) error) error {
			return Persist(ctx, 200*time.Millisecond, attempt)
		},
		"Insist": func(ctx context.Context, attempt func(context.Context) error) error {
			return Insist(ctx, 200*time.Millisecond, attempt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := Within(t.Context(), 200*time.Millisecond)
			defer cancel()
			n := 0
			err := attempts(ctx, func(ctx context.Context) error {
				if n++; n == 1 {
					return fmt.Errorf("%w: of the first", ErrBusy)
				}
				<-ctx.Done()
				return unanswered(ctx, ctx.Err())
			})
			require.Greater(t, n, 1)
			require.ErrorIs(t, err, ErrUnreachable)
			require.ErrorIs(t, err, ErrBusy)
		})
	}
}
