// Package stories tells what fencedb is for on two real processes, and checks what it tells.
//
// A story is a script: requests to two workers of package worker, signals to their processes, and
// between them what Redis and Postgres hold. Whether it ended as promised is decided by asking both
// servers; the workers' own word is only shown.
package stories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/demo/worker"
	"github.com/fencedb/fencedb/lease"
)

// Config is what the stories need.
type Config struct {
	PostgresURL string // an empty database
	RedisURL    string
	Namespace   string // of all leases; its keys are removed at the end
	TTL         time.Duration
	Notes       []string // where the servers come from, to be shown
	Out         io.Writer
	Colour      bool

	// Unprotected takes the fence away. The zombie then wins, and Run must say so.
	Unprotected bool
}

// ErrBroken: a story did not end as promised.
var ErrBroken = errors.New("a promise was broken")

// Run tells all stories. It returns nil if each ended as promised, ErrBroken if one did not, and
// another error if they could not be told. Cancelling ctx ends it at once. Either way the workers
// have ended when it returns.
func Run(ctx context.Context, cfg Config) error {
	started := time.Now()
	s, err := setStage(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.clear()

	s.out.opening(cfg, s.a.PID(), s.b.PID())
	var verdicts []verdict
	for i, st := range stories {
		v, err := s.tell(ctx, i+1, st)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, v)
	}
	s.out.summary(stories, verdicts, time.Since(started))
	for _, v := range verdicts {
		if !v.kept() {
			return ErrBroken
		}
	}
	return nil
}

// story is one of them.
type story struct {
	title   string
	intro   string
	promise string
	table   int
	play    func(*scene) (seen string)
}

var stories = []story{race, stolen, crash, zombie, control}

// verdict is how a story ended.
type verdict struct {
	seen   string
	broken []string // what was not as promised
}

func (v verdict) kept() bool { return len(v.broken) == 0 }

// tell plays one story. A worker that a broken story has left behind in the middle of something is
// replaced.
func (s *stage) tell(ctx context.Context, number int, st story) (verdict, error) {
	const patience = 10 * time.Second // for everything that is not waiting for a TTL
	playCtx, cancel := context.WithTimeout(ctx, patience+3*s.TTL)
	defer cancel()

	s.out.intro(number, st)
	sc := &scene{stage: s, ctx: playCtx, story: st, began: time.Now()}
	seen := st.play(sc)
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}
	if sc.err != nil {
		sc.broken = append(sc.broken, fmt.Sprintf("the story stopped: %v", sc.err))
	}
	v := verdict{seen, sc.broken}
	s.out.verdict(st, v)
	if v.kept() {
		return v, nil
	}
	s.dismiss()
	return v, s.hireBoth(ctx)
}

// stage is what all stories play on.
type stage struct {
	Config
	out     *printer
	db      *pgxpool.Pool // the observer's own connections
	redis   *redis.Client
	leases  *lease.Issuer // to look at them only
	a, b    *actor
	holders map[uuid.UUID]string // lease id: the name of the worker that was granted it
}

// actor is a worker with a name.
type actor struct {
	*worker.Worker
	name string
}

func setStage(ctx context.Context, cfg Config) (_ *stage, err error) {
	s := &stage{Config: cfg, out: newPrinter(cfg.Out, cfg.Colour), holders: map[uuid.UUID]string{}}
	defer func() {
		if err != nil {
			s.clear()
		}
	}()
	if s.redis, err = worker.Redis(cfg.RedisURL, "stories"); err != nil {
		return nil, err
	}
	if s.leases, err = lease.New(s.redis, lease.Config{TTL: cfg.TTL, Namespace: cfg.Namespace}); err != nil {
		return nil, err
	}
	if s.db, err = worker.Postgres(ctx, cfg.PostgresURL, "stories"); err != nil {
		return nil, err
	}
	if err := s.migrate(ctx); err != nil {
		return nil, err
	}
	return s, s.hireBoth(ctx)
}

// The table of the control: the same columns, but nothing protects it.
const plainTable = "unprotected_bookings"

func (s *stage) migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(s.db)
	if err := errors.Join(booking.Migrate(ctx, db), db.Close()); err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, `CREATE TABLE `+plainTable+` (LIKE bookings INCLUDING ALL)`); err != nil {
		return err
	}
	if s.Unprotected {
		const keepTokens = true // the column, which observe reads
		_, err := s.db.Exec(ctx, `SELECT fencedb.unprotect('bookings', $1)`, keepTokens)
		return err
	}
	return nil
}

// hire starts a worker process.
func (s *stage) hire(ctx context.Context, name string) (*actor, error) {
	w, err := worker.StartBooking(ctx, worker.Config{
		Name: name, PostgresURL: s.PostgresURL, RedisURL: s.RedisURL, Namespace: s.Namespace,
	})
	if err != nil {
		return nil, err
	}
	return &actor{w, name}, nil
}

func (s *stage) hireBoth(ctx context.Context) (err error) {
	if s.a, err = s.hire(ctx, "A"); err != nil {
		return err
	}
	s.b, err = s.hire(ctx, "B")
	return err
}

// dismiss ends the workers there are.
func (s *stage) dismiss() {
	for _, w := range []*actor{s.a, s.b} {
		if w != nil {
			w.Kill()
		}
	}
	s.a, s.b = nil, nil
}

// clear leaves nothing behind: no process, and no key on a Redis that is not ours alone.
func (s *stage) clear() {
	s.dismiss()
	if s.db != nil {
		s.db.Close()
	}
	if s.redis != nil {
		s.removeKeys()
		_ = s.redis.Close()
	}
}

// removeKeys is best effort, on a context of its own because the other one may have been cancelled:
// what stays expires.
func (s *stage) removeKeys() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, st := range stories {
		for _, field := range []string{"owner", "fence"} {
			key := lease.Key{Namespace: s.Namespace, Resource: booking.Resource(st.table), Field: field}
			s.redis.Unlink(ctx, key.String())
		}
	}
}
