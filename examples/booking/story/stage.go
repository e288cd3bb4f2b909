package story

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/examples/booking/store"
	"github.com/fencedb/fencedb/examples/booking/worker"
)

// stage is what all stories play on.
type stage struct {
	Config
	out     *printer
	db      *pgxpool.Pool // the observer's own connections
	redis   *redis.Client
	a, b    *actor
	holders map[uuid.UUID]string // lease id: the name of the worker that was granted it
}

// actor is a worker with a name.
type actor struct {
	*worker.Process
	name string
}

func setStage(ctx context.Context, cfg Config) (_ *stage, err error) {
	s := &stage{Config: cfg, out: newPrinter(cfg.Out, cfg.Colour), holders: map[uuid.UUID]string{}}
	defer func() {
		if err != nil {
			s.clear()
		}
	}()
	options, err := redis.ParseURL(cfg.RedisURL)
	if err != nil {
		return nil, err
	}
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	s.redis = redis.NewClient(options)
	if s.db, err = pgxpool.New(ctx, cfg.PostgresURL); err != nil {
		return nil, err
	}
	if err := s.migrate(ctx); err != nil {
		return nil, err
	}
	if s.a, err = s.hire(ctx, "A"); err != nil {
		return nil, err
	}
	s.b, err = s.hire(ctx, "B")
	return s, err
}

// The table of the control: the same columns, but nothing protects it.
const plainTable = "unprotected_bookings"

func (s *stage) migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(s.db)
	if err := errors.Join(store.Migrate(ctx, db), db.Close()); err != nil {
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
	p, err := worker.Start(ctx, s.Worker(worker.Config{
		Name:        applicationName(name),
		PostgresURL: s.PostgresURL,
		RedisURL:    s.RedisURL,
		Namespace:   s.Namespace,
		TTL:         s.TTL,
	}))
	if err != nil {
		return nil, err
	}
	return &actor{p, name}, nil
}

// applicationName is how a worker shows in Redis's CLIENT LIST and in pg_stat_activity.
func applicationName(worker string) string { return "booking-" + worker }

func (s *stage) replaceWorkers(ctx context.Context) (err error) {
	s.dismiss()
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

// removeKeys is best effort, on a context of its own because the other one may have been cancelled: what stays expires.
func (s *stage) removeKeys() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, st := range stories {
		keys := s.keys(st.table)
		s.redis.Unlink(ctx, keys.owner, keys.fence)
	}
}

// keys are two of the lease protocol's, as an onlooker with redis-cli would type them.
type keys struct {
	owner string // "<lease id>:<token>", expires with the lease
	fence string // the last token issued
}

func (s *stage) keys(table int) keys {
	tag := fmt.Sprintf("lease:v1:{%s/table:%d}", s.Namespace, table)
	return keys{tag + ":owner", tag + ":fence"}
}
