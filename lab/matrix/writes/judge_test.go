package writes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
)

// answer is what an error says of the data.
type answer string

const (
	committed  answer = "committed"     // nil
	resultLost answer = "ErrCommitted"  // and so committed
	unknown    answer = "unknown"       // ErrCommitUnknown
	nothing    answer = "nothing"       // every other error: nothing was written
	noClaim    answer = "sealed or not" // an error of Seal, which writes nothing else
	panicked   answer = "panic"
)

func (e *entry) answer(err error) answer {
	switch {
	case err == nil:
		return committed
	case errors.Is(err, errPanic):
		return panicked
	case errors.Is(err, fencedb.ErrCommitted):
		return resultLost
	case errors.Is(err, fencedb.ErrCommitUnknown):
		return unknown
	case e.name == "Seal":
		return noClaim
	}
	return nothing
}

var errPanic = errors.New("panic")

// truth is what the database holds once nobody writes any more.
type truth struct {
	fence int64 // 1 if none has entered
	rows  int
	done  bool // the key of Once
}

// ask waits for the transactions that still hold the fence, and for the sessions that a fault has
// left, and then looks.
func (w *world) ask(ctx context.Context, c *call) (is truth, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := w.awaitGone(ctx); err != nil {
		return is, err
	}
	tx, err := w.direct.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return is, err
	}
	defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO fencedb.fences AS f (resource, last_fencing_token, lease_id) VALUES ($1, 1, gen_random_uuid())
		ON CONFLICT (resource) DO UPDATE SET advanced_at = f.advanced_at RETURNING last_fencing_token`, c.resource).
		QueryRow(func(row pgx.Row) error { return row.Scan(&is.fence) })
	b.Queue(`SELECT count(*) FROM effects WHERE resource = $1 AND n BETWEEN $2 AND $2 + 2`, c.resource, c.first).
		QueryRow(func(row pgx.Row) error { return row.Scan(&is.rows) })
	b.Queue(`SELECT EXISTS (SELECT FROM fencedb.once WHERE key = $1 AND done)`, c.key()).
		QueryRow(func(row pgx.Row) error { return row.Scan(&is.done) })
	return is, tx.SendBatch(ctx, b).Close()
}

// awaitGone returns once the sessions have ended. Those of a PgBouncer stay, and are idle.
func (w *world) awaitGone(ctx context.Context) error {
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		var left int
		err := w.direct.QueryRow(ctx, `SELECT count(*)`+sessions+`AND ($1 OR state <> 'idle')`, w.front == "").Scan(&left)
		if left == 0 || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d sessions are still there: %w", left, ctx.Err())
		case <-again.C:
		}
	}
}

// judge compares an answer with the truth.
func (e *entry) judge(c *call, err error, is truth) error {
	says, done := e.answer(err), is.rows == e.rows
	if e.rows == 0 {
		done = is.fence > 1
	}
	switch {
	case is.rows != 0 && is.rows != e.rows:
		return fmt.Errorf("half of it was written: %d rows", is.rows)
	case e.name == "Once" && is.done != done:
		return fmt.Errorf("the key of Once is done: %v, its rows are written: %v", is.done, done)
	case says == panicked:
		return err
	case (says == committed || says == resultLost) && !done:
		return fmt.Errorf("says %s, and it is not: %w", says, cmp.Or(err, errNil))
	case says == committed && c.got != e.want:
		return fmt.Errorf("nil, but the result is %q instead of %q", c.got, e.want)
	case says == committed && is.fence == 1:
		return errors.New("nil, but no fence has been entered")
	case says == nothing && done && e.rows > 0:
		return fmt.Errorf("failed, and yet it committed: %w", err)
	}
	return nil
}

var errNil = errors.New("nil")

// patience is longer than anything takes on a busy machine.
const patience = 60 * time.Second

// settings are those that must not be left over on a connection of the pool.
const settings = `SELECT concat_ws(' ', current_setting('lock_timeout'), current_setting('statement_timeout'),
	current_setting('idle_in_transaction_session_timeout'), coalesce(current_setting('transaction_timeout', true), '0'),
	coalesce(nullif(current_setting('fencedb.entered', true), ''), '0'))`

// checkPool reports connections that were not given back, or not as they were.
func checkPool(ctx context.Context, pool *pgxpool.Pool, dead bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for pool.Stat().AcquiredConns() > 0 { // pgxpool destroys what was lost in the background
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d connections were not given back", pool.Stat().AcquiredConns())
		case <-again.C:
		}
	}
	for _, conn := range pool.AcquireAllIdle(ctx) {
		defer conn.Release()
		pg := conn.Conn().PgConn()
		if pg.TxStatus() != 'I' || pg.IsBusy() {
			return fmt.Errorf("a connection came back busy: in transaction status %c", pg.TxStatus())
		}
		if net, ok := pg.Conn().(*deadlineConn); ok && net.set.Load() {
			return errors.New("a connection came back with a deadline")
		}
		var left string
		switch err := conn.QueryRow(ctx, settings, pgx.QueryExecModeSimpleProtocol).Scan(&left); {
		case err != nil && dead:
		case err != nil:
			return fmt.Errorf("a connection came back unusable: %w", err)
		case left != "0 0 0 0 0":
			return fmt.Errorf("a connection came back with settings: %s", left)
		}
	}
	return nil
}
