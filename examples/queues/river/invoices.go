package main

import (
	"context"
	"embed"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

//go:embed *.sql
var files embed.FS

// Migrate brings the database up: the fences, the accounts, the tables of River.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	plain := stdlib.OpenDBFromPool(pool)
	if err := errors.Join(migrations.Apply(ctx, plain, files, "invoices_migrations"), plain.Close()); err != nil {
		return err
	}
	schema, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = schema.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// Invoice is a job: what a customer owes for a month. It names its resource, and carries no grant.
type Invoice struct {
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
}

// Kind is River's name for the job.
func (Invoice) Kind() string { return "invoice" }

// Worker does the jobs of one customer one after the other, in whatever process they come up.
type Worker struct {
	river.WorkerDefaults[Invoice]
	Desk   *guard.Desk
	Render func(ctx context.Context, i Invoice) error // takes a while; ctx ends with the lease
}

// complete ends a job within a transaction.
var complete = river.JobCompleteTx[*riverpgxv5.Driver, pgx.Tx, Invoice]

// Work acquires the customer, renders the invoice, and books it in the transaction that completes
// the job. So a job whose worker was overtaken has booked nothing and is not completed either;
// River brings it up again.
func (w *Worker) Work(ctx context.Context, job *river.Job[Invoice]) error {
	return snoozed(w.Desk.Do(ctx, lease.Resource("customer", job.Args.Customer), func(ctx context.Context, h *guard.Holder) error {
		if err := w.Render(ctx, job.Args); err != nil {
			return err
		}
		return h.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `
				INSERT INTO accounts AS a (customer, cents) VALUES ($1, $2)
				ON CONFLICT (customer) DO UPDATE SET cents = a.cents + excluded.cents`, job.Args.Customer, job.Args.Cents)
			if err != nil {
				return err
			}
			_, err = complete(ctx, tx, job)
			return err
		})
	}, lease.NoWait())) // a call that waits keeps one of the queue's workers from the other customers
}

// snoozed makes a job whose customer is busy come up again. That uses up no attempt of River's. The
// lease in the way may last for seconds and be released at any moment, so the job comes back after
// idle at the latest: that long its customer may be free and nobody at work.
func snoozed(err error) error {
	const idle = 250 * time.Millisecond // a quarter of what the work takes
	if guard.Answer(err) != guard.Busy {
		return err
	}
	return river.JobSnooze(min(guard.RetryAfter(err), idle))
}
