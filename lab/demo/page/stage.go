package page

import (
	"context"
	"sync"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/worker"
	"github.com/fencedb/fencedb/lab/demo/service"
	"github.com/fencedb/fencedb/observe/feed"
)

// Config is what a stage needs. The Redis belongs to nobody else: it is flushed and restarted.
type Config struct {
	service.Servers

	// StopRedis and StartRedis return when it is gone, and when it answers again.
	StopRedis  func() error
	StartRedis func(context.Context) error
}

// Stage has three worker processes, a Redis and a Postgres of its own, and can pause, kill, empty
// and restart them. It writes what it sees and does into a journal. It is safe for concurrent use.
type Stage struct {
	*service.View
	cfg     Config
	journal *Journal
	crew    []*hand

	life context.Context // of everything in the background
	end  context.CancelFunc
	work sync.WaitGroup

	redisBusy sync.Mutex // held while Redis restarts or is emptied

	mu     sync.Mutex // guards the hands too
	speed  string     // guarded by mu
	fenced bool       // guarded by mu
	scene  string     // that is playing, or ""; guarded by mu
	guests int        // who have come; guarded by mu
}

// table is what everybody wants here.
const table = 12

// slot is when an evening begins. Evenings are numbered from 1.
func slot(evening int) time.Time {
	return time.Date(2030, time.May, 31+evening, 19, 0, 0, 0, time.UTC)
}

// names of the workers.
var names = []string{"A", "B", "C"}

// Open migrates the database and starts the workers. Close ends everything, also when ctx has ended
// before.
func Open(ctx context.Context, cfg Config, j *Journal) (_ *Stage, err error) {
	s := &Stage{cfg: cfg, journal: j, speed: "normal", fenced: true}
	if s.View, err = cfg.Connect(ctx, "page", time.Minute); err != nil {
		return nil, err
	}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	err = s.Migrate(ctx, booking.Migrate)
	for _, name := range names {
		if err == nil {
			h := &hand{stage: s, name: name}
			s.crew = append(s.crew, h)
			err = h.start(ctx)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	s.work.Go(s.follow)
	s.work.Go(s.observe)
	return s, nil
}

// Close ends the workers and waits for everything in the background.
func (s *Stage) Close() {
	s.end()
	s.work.Wait()
	s.View.Close()
}

// locked runs f while it holds mu.
func (s *Stage) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// follow writes down what the workers publish, as `fencedb watch` would show it.
func (s *Stage) follow() {
	from := "0" // the workers are there already, and Redis is ours
	for s.life.Err() == nil {
		// It returns only when Redis refuses, or at the end.
		_ = feed.Follow(s.life, s.Redis, from, func(e feed.Event) error {
			from = e.ID
			s.journal.Add(Record{
				At: e.At.UnixMilli(), Kind: e.Kind, Worker: e.Worker,
				Token: e.Token, Stored: e.Stored, TTL: e.TTL.Milliseconds(), Took: e.Took.Milliseconds(), Cause: e.Cause,
			})
			return context.Cause(s.life)
		})
		_ = worker.Sleep(s.life, time.Second)
	}
}

const (
	lookEvery = 60 * time.Millisecond
	lookTime  = time.Second // for one look, which a server that is down does not answer

	// grace is how long after a lease has gone from Redis its holder may still be heard of giving
	// it back.
	grace        = 150 * time.Millisecond
	releaseGrace = time.Second // most leases end by being given back, on a busy machine too
)

// observe looks at both servers again and again.
func (s *Stage) observe() {
	last := s.look()
	for worker.Sleep(s.life, lookEvery) == nil {
		now := s.look()
		s.noteGone(last.Redis, now.Redis)
		s.journal.SetState(now)
		last = now
	}
}

// noteGone: a lease that is gone when its time was over, and that nobody gave back, has run out.
// One that is gone earlier was taken away in Redis.
func (s *Stage) noteGone(last, now Redis) {
	at := time.Now()
	if !now.Up || last.Token == 0 || last.Token == now.Token {
		return
	}
	kind, grace := Expired, grace
	if at.Add(grace).UnixMilli() < last.Ends {
		kind, grace = Forgotten, releaseGrace
	}
	s.work.Go(func() {
		_ = worker.Sleep(s.life, grace)
		s.journal.Gone(last.Token, kind, at)
	})
}

func (s *Stage) look() State {
	ctx, cancel := context.WithTimeout(s.life, lookTime)
	defer cancel()
	now := State{Redis: s.lookAtRedis(ctx), Postgres: s.lookAtPostgres(ctx)}
	s.mu.Lock()
	defer s.mu.Unlock()
	now.Speed, now.Scene = s.speed, s.scene
	for _, h := range s.crew {
		now.Workers = append(now.Workers, h.shown)
	}
	return now
}

func (s *Stage) lookAtRedis(ctx context.Context) Redis {
	found, ends, err := s.Holding(ctx, booking.Resource(table))
	if err != nil {
		return Redis{}
	}
	now := Redis{Up: true, Token: found.Token, Fence: found.LastToken, Waiters: found.Waiters, Label: found.Label}
	if found.Token != 0 {
		now.Ends, now.TTL = ends.Milliseconds(), s.ttl().Milliseconds()
	}
	return now
}

func (s *Stage) lookAtPostgres(ctx context.Context) Postgres {
	now := Postgres{Up: true}
	err := s.DB.QueryRow(ctx, `
		SELECT exists(SELECT FROM fencedb.protected_tables WHERE table_name = 'bookings'::regclass),
		       coalesce(max(last_fencing_token), 0),
		       (SELECT coalesce(jsonb_agg(b), '[]') FROM (
		           SELECT `+eveningOf+` AS evening, guest, last_fencing_token::text AS token
		           FROM bookings WHERE table_id = $1 ORDER BY slot DESC LIMIT 5
		       ) AS b)
		FROM fencedb.fences WHERE resource = $3`, table, slot(1), booking.Resource(table),
	).Scan(&now.Protected, &now.Fence, &now.Bookings)
	if err != nil {
		return Postgres{Bookings: []Booking{}}
	}
	return now
}
