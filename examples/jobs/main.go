// Command jobs runs long jobs, each owned by one worker at a time. See README.md.
//
//	jobs add REPORT...   # enqueues a job for each report
//	jobs failed          # lists what was given up, and why
//	jobs retry ID...     # lets it be tried again
//	jobs [NAME]          # works until it is interrupted; start as many as you like
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/lease"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	db, err := pgxpool.New(ctx, os.Getenv("FENCEDB_POSTGRES_URL"))
	if err != nil || os.Getenv("FENCEDB_POSTGRES_URL") == "" {
		return errors.New("FENCEDB_POSTGRES_URL must be the URL of a database, such as postgres://user:password@host:5432/database")
	}
	defer db.Close()
	options, err := redis.ParseURL(os.Getenv("FENCEDB_REDIS_URL"))
	if err != nil {
		return errors.New("FENCEDB_REDIS_URL must be the URL of a Redis, such as redis://user:password@host:6379/0")
	}
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("JOBS_TTL"), "10s"))
	if err != nil {
		return fmt.Errorf("JOBS_TTL: %w", err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	leases, err := lease.New(client, lease.Config{TTL: ttl, Namespace: "jobs"})
	if err != nil {
		return err
	}
	queue, err := OpenQueue(ctx, db, leases)
	if err != nil {
		return err
	}
	name := fmt.Sprint("worker ", os.Getpid())
	if len(args) > 0 {
		name = args[0]
	}
	if operate[name] != nil {
		err = operate[name](ctx, queue, args[1:])
	} else {
		work(ctx, queue, name)
	}
	// So that the next worker need not wait for a lease to expire.
	return errors.Join(err, leases.Close(context.WithoutCancel(ctx)))
}

// operate are the commands beside working.
var operate = map[string]func(ctx context.Context, queue *Queue, args []string) error{
	"add": func(ctx context.Context, queue *Queue, reports []string) error {
		for _, report := range reports {
			if _, err := queue.Enqueue(ctx, report); err != nil {
				return err
			}
		}
		return nil
	},
	"failed": func(ctx context.Context, queue *Queue, _ []string) error {
		failed, err := queue.Failed(ctx)
		for _, job := range failed {
			fmt.Println(job.ID, job.Report, job.Error)
		}
		return err
	},
	"retry": func(ctx context.Context, queue *Queue, ids []string) error {
		for _, text := range ids {
			id, err := uuid.Parse(text)
			if err == nil {
				err = queue.Retry(ctx, id)
			}
			if err != nil {
				return fmt.Errorf("job %s: %w", text, err)
			}
		}
		return nil
	},
}

// work runs one job after the other, and looks again every second when there is none. On an error
// the job is free for the next worker.
func work(ctx context.Context, queue *Queue, name string) {
	for again := time.NewTicker(time.Second); ctx.Err() == nil; {
		ran, err := queue.RunOne(ctx, func(ctx context.Context, run *Run) (string, error) {
			return render(ctx, run, name)
		})
		if err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		if ran && err == nil {
			continue
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// render stands for work that takes half a minute.
func render(ctx context.Context, run *Run, name string) (string, error) {
	log.Printf("%s: %s: RUNNING, attempt %d, token %d", name, run.Report, run.Attempt, run.Token)
	for percent := 10; percent <= 90; percent += 10 {
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if err := run.Progress(ctx, percent); err != nil {
			return "", err
		}
	}
	log.Printf("%s: %s: rendered", name, run.Report)
	return run.Report + ", rendered by " + name, nil
}
