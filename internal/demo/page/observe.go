package page

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/lease"
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
	for last := (State{}); s.life.Err() == nil; s.rest(lookEvery) {
		now := s.look(last)
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
		s.rest(grace)
		s.journal.Gone(last.Token, kind, at)
	})
}

func (s *Stage) look(last State) State {
	ctx, cancel := context.WithTimeout(s.life, lookTime)
	defer cancel()
	now := State{Redis: s.lookAtRedis(ctx, last.Redis), Postgres: s.lookAtPostgres(ctx)}
	s.mu.Lock()
	defer s.mu.Unlock()
	now.Speed, now.Scene = s.speed, s.scene
	for _, h := range s.crew {
		now.Workers = append(now.Workers, h.status())
	}
	return now
}

func (s *Stage) lookAtRedis(ctx context.Context, last Redis) Redis {
	if s.Redis.Ping(ctx).Err() != nil { // which does not wait for it to come back, as Inspect does
		return Redis{}
	}
	found, err := s.Leases.Inspect(ctx, booking.Resource(table))
	if err != nil {
		return Redis{}
	}
	now := Redis{Up: true, Token: found.Token, Fence: found.LastToken, Waiters: found.Waiters}
	if found.Token != 0 {
		now.LeaseID, now.Label, now.TTL = found.Holder.String()[:8], found.Label, s.pace().TTL.Milliseconds()
		now.Ends = steady(last, found)
	}
	return now
}

// steady is when the lease ends. It stays what it was unless the lease was renewed: two looks never
// agree to the millisecond.
func steady(last Redis, found lease.Inspection) int64 {
	const noise = 40
	ends := time.Now().Add(found.ExpiresIn).UnixMilli()
	if d := ends - last.Ends; last.Token == found.Token && -noise < d && d < noise {
		return last.Ends
	}
	return ends
}

func (s *Stage) lookAtPostgres(ctx context.Context) Postgres {
	now := Postgres{Up: true, Bookings: []Booking{}}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT exists(SELECT FROM fencedb.protected_tables WHERE table_name = 'bookings'::regclass)`).
		QueryRow(func(row pgx.Row) error { return row.Scan(&now.Protected) })
	batch.Queue(`SELECT last_fencing_token, left(lease_id::text, 8) FROM fencedb.fences WHERE resource = $1`, booking.Resource(table)).
		Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&now.Fence, &now.LeaseID}, func() error { return nil })
			return err
		})
	batch.Queue(`SELECT `+eveningOf+`, guest, last_fencing_token FROM bookings WHERE table_id = $1 ORDER BY slot DESC LIMIT 5`,
		table, slot(1)).
		Query(func(rows pgx.Rows) (err error) {
			var b Booking
			_, err = pgx.ForEachRow(rows, []any{&b.Evening, &b.Guest, &b.Token}, func() error {
				now.Bookings = append(now.Bookings, b)
				return nil
			})
			return err
		})
	if s.DB.SendBatch(ctx, batch).Close() != nil {
		return Postgres{Bookings: []Booking{}}
	}
	return now
}
