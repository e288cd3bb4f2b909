// Package asynq shows a handler of asynq that works under a lease. See ../README.md.
package asynq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// Invoice is the payload of a task. It names its resource, and carries no grant.
type Invoice struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Handler books invoices. asynq keeps its tasks in Redis, so none can be completed within the
// transaction: the id of the task is a key that commits with the data, and a task that comes again
// is replayed.
func Handler(desk *guard.Desk) asynq.HandlerFunc {
	return func(ctx context.Context, task *asynq.Task) error {
		var i Invoice
		if err := json.Unmarshal(task.Payload(), &i); err != nil {
			return fmt.Errorf("%w: %w", asynq.SkipRetry, err)
		}
		id, known := asynq.GetTaskID(ctx)
		if !known { // all such tasks would have one key, and the second would be taken for done
			return errors.New("the context is not that of a server of asynq")
		}
		return desk.Tx(ctx, lease.Resource("customer", i.Customer), func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := fencedb.Once(ctx, tx, "asynq:"+id, task.Payload(), func() ([]byte, error) {
				_, err := tx.Exec(ctx, `
					INSERT INTO accounts AS a (customer, cents) VALUES ($1, $2)
					ON CONFLICT (customer) DO UPDATE SET cents = a.cents + excluded.cents`, i.Customer, i.Cents)
				return nil, err
			})
			return err
		}, lease.NoWait())
	}
}

// idle is how long a customer may be free while its tasks wait: about what their work takes. The
// lease in the way may last for seconds, and be released at any moment.
const idle = 250 * time.Millisecond

// Settings make a task that found its customer held come again soon, without using up a retry.
var Settings = asynq.Config{
	DelayedTaskCheckInterval: idle,

	IsFailure: func(err error) bool { return !lease.IsLost(err) },
	RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
		if held, is := errors.AsType[*lease.HeldError](err); is {
			return min(held.RetryAfter, idle)
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	},
}
