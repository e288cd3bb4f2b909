package stories

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/examples/booking/booking"
)

// state is what both servers hold about one table of the restaurant.
type state struct {
	// Redis
	ownerKey string        // the value of the owner key, "" if there is none
	owner    uuid.UUID     // the lease that holds the table
	ttl      time.Duration // of the owner key
	issued   int64         // the last token issued, 0 if none

	// Postgres
	fence    int64     // the highest token that has entered, 0 if none
	bookings []written // of the evening
}

// written is a row of the bookings table.
type written struct {
	guest string
	token int64 // with which it was written
}

// observe asks both servers.
func (s *stage) observe(ctx context.Context, table int, relation string) (state, error) {
	var st state
	if err := s.observeRedis(ctx, table, &st); err != nil {
		return st, fmt.Errorf("ask Redis: %w", err)
	}
	if err := s.observePostgres(ctx, table, relation, &st); err != nil {
		return st, fmt.Errorf("ask Postgres: %w", err)
	}
	return st, nil
}

func (s *stage) observeRedis(ctx context.Context, table int, st *state) error {
	keys := s.keys(table)
	var owner, fence *redis.StringCmd
	var ttl *redis.DurationCmd
	// In a transaction, so that the key and its TTL belong together. A key that is not there is no
	// error here.
	_, err := s.redis.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		owner, ttl, fence = pipe.Get(ctx, keys.owner), pipe.PTTL(ctx, keys.owner), pipe.Get(ctx, keys.fence)
		return nil
	})
	if err != nil && err != redis.Nil {
		return err
	}
	st.issued, _ = strconv.ParseInt(fence.Val(), 10, 64)
	if st.ownerKey = owner.Val(); st.ownerKey == "" {
		return nil
	}
	st.ttl = ttl.Val()
	id, _, _ := strings.Cut(st.ownerKey, ":")
	st.owner, err = uuid.Parse(id)
	return err
}

func (s *stage) observePostgres(ctx context.Context, table int, relation string, st *state) error {
	err := s.db.QueryRow(ctx, `SELECT coalesce(fencedb.last_token($1), 0)`, booking.Resource(table)).Scan(&st.fence)
	if err != nil {
		return err
	}
	rows, _ := s.db.Query(ctx, `SELECT guest, last_fencing_token FROM `+pgx.Identifier{relation}.Sanitize()+`
		WHERE table_id = $1 ORDER BY slot`, table)
	st.bookings, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w written, err error) {
		return w, row.Scan(&w.guest, &w.token)
	})
	return err
}

func (st state) guests() string {
	var names []string
	for _, w := range st.bookings {
		names = append(names, w.guest)
	}
	return strings.Join(names, ", ")
}
