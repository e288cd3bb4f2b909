package page

import (
	"context"
	"time"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/internal/demo/worker"
)

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

// noteGone: a lease that is gone when its time was over, and that nobody gave back, has run out. One
// that is gone earlier was taken away in Redis.
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
