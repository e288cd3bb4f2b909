package fencedb_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
)

func TestExecIsFencedAndReportsItsTag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	tag, err := fencedb.Exec(t.Context(), w.pool, grant("table:12", 42), insertAnn, 1)
	require.NoError(t, err)
	require.Equal(t, "INSERT 0 1", tag.String())

	_, err = fencedb.Exec(t.Context(), w.pool, grant("table:12", 41), insertAnn, 2)
	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, []string{"ann"}, w.guests())
}

// The server answers the guard with an error, so the write that travelled behind it is not run. A
// guard that merely matched no row would let it through.
func TestAWriteBehindARefusalInTheSameRoundTripIsNotRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE TABLE unprotected (id int)`)
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 42)))

	_, err := fencedb.Exec(t.Context(), w.pool, grant("table:12", 41), `INSERT INTO unprotected VALUES (1)`)

	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, []int{0}, collect[int](w, `SELECT count(*) FROM unprotected`))
}

// The session is ended while it waits for the fence, as by an operator, a shutdown or a
// transaction_timeout of the role. The answer comes in the place of enter's, so nothing behind it
// can have happened.
func TestASessionThatIsEndedWhileEnteringHasWrittenNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.holder(grant("table:12", 41)).enter()
	waiter := w.conn()
	done := make(chan error, 1)
	go func() {
		_, err := fencedb.Exec(t.Context(), waiter, grant("table:12", 42), insertAnn, 1)
		done <- err
	}()
	w.awaitBlocked(waiter.PgConn().PID())

	w.exec(`SELECT pg_terminate_backend($1)`, waiter.PgConn().PID())

	err := received(t, done)
	const adminShutdown = "57P01"
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, adminShutdown, pgErr.Code)
	require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
}

func TestQueryRowReturnsWhatTheStatementReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var guest string

	require.NoError(t, fencedb.QueryRow(t.Context(), w.pool, grant("table:12", 41), insertAnn+` RETURNING guest`, 1).Scan(&guest))
	require.Equal(t, "ann", guest)

	err := fencedb.QueryRow(t.Context(), w.pool, grant("table:12", 42), `UPDATE bookings SET guest = 'x' WHERE id = 99 RETURNING guest`).Scan(&guest)
	require.ErrorIs(t, err, pgx.ErrNoRows)
	require.ErrorIs(t, err, fencedb.ErrCommitted)
	require.EqualValues(t, 42, w.fence("table:12"))
	err = fencedb.QueryRow(t.Context(), w.pool, grant("table:12", 43), `UPDATE bookings SET guest = 'x'`).Scan(&guest)
	require.ErrorIs(t, err, pgx.ErrNoRows)
	require.ErrorIs(t, err, fencedb.ErrCommitted, "something was")
}

// It would be sent again.
func TestARowIsScannedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var id int
	row := fencedb.QueryRow(t.Context(), w.pool, grant("table:12", 41),
		`INSERT INTO bookings (id, table_id, guest) SELECT count(*), 12, 'ann' FROM bookings RETURNING id`)
	require.NoError(t, row.Scan(&id))
	require.ErrorContains(t, row.Scan(&id), "scanned before")
	require.Equal(t, []string{"ann"}, w.guests())
}

// Their bytes are overwritten when the row is closed, so pgx refuses them as well.
func TestARowIsNotScannedIntoTheBytesOfTheDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const sql = insertAnn + ` RETURNING guest`
	for name, scan := range map[string]func(dest any) error{
		"Tx": func(dest any) error {
			return fencedb.Tx(t.Context(), w.pool, grant("table:12", w.fence("table:12")+1), func(tx pgx.Tx) error {
				return tx.QueryRow(t.Context(), sql, 1).Scan(dest)
			})
		},
		"QueryRow": func(dest any) error {
			return fencedb.QueryRow(t.Context(), w.pool, grant("table:12", w.fence("table:12")+1), sql, 1).Scan(dest)
		},
	} {
		require.ErrorContains(t, scan(new(pgtype.DriverBytes)), "cannot scan into *pgtype.DriverBytes", name)
		require.Empty(t, w.guests(), name)
	}
}

func TestQueryReturnsRowsAndTheTruthAtTheirEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	query := func(token int64, id int) ([]string, error) {
		rows, err := fencedb.Query(t.Context(), w.pool, grant("table:12", token), insertAnn+` RETURNING guest`, id)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	}

	guests, err := query(42, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"ann"}, guests)
	_, err = query(41, 2)
	require.ErrorIs(t, err, fencedb.ErrStale)
	_, err = query(43, 1)
	require.ErrorContains(t, err, "bookings_pkey")
	_, err = query(0, 1)
	require.ErrorIs(t, err, fencedb.ErrInvalidGrant)

	require.Equal(t, []string{"ann"}, w.guests())
	require.EqualValues(t, 42, w.fence("table:12"))
	w.awaitIdle(w.pool)
}

func TestAnErrorOfScanningARowDoesNotUndoTheStatement(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	written := 0
	for _, mode := range queryModes {
		pool := w.poolIn(mode)
		for _, doubt := range []string{"", "/* /* */ */ "} {
			id := ids.Add(1)
			rows, err := fencedb.Query(t.Context(), pool, grant("table:12", int64(id)), doubt+insertAnn+` RETURNING guest`, id)
			require.NoError(t, err)
			require.True(t, rows.Next())
			wrong := rows.Scan(new(time.Time))
			require.Error(t, wrong)
			rows.Close()

			written++
			require.ErrorIs(t, rows.Err(), fencedb.ErrCommitted, "%v, %q", mode, doubt)
			require.ErrorContains(t, rows.Err(), wrong.Error())
			require.Len(t, w.guests(), written)
			w.awaitIdle(pool)
		}
	}
}

func TestRowsKnowTheirFieldsWhenTheyHaveBeenRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	const sql = `SELECT 1 AS one, 2 AS two WHERE false`
	names := func(rows pgx.Rows, err error) []string {
		require.NoError(t, err)
		require.False(t, rows.Next())
		require.NoError(t, rows.Err())
		var names []string
		for _, field := range rows.FieldDescriptions() {
			names = append(names, field.Name)
		}
		return names
	}
	for i, mode := range queryModes {
		pool, g := w.poolIn(mode), grant("table:12", int64(i)+1)
		require.Equal(t, []string{"one", "two"}, names(fencedb.Query(ctx, pool, g, sql)), mode.String())
		require.Equal(t, []string{"one", "two"}, names(fencedb.Query(ctx, pool, g, "/* /* */ */ "+sql)), mode.String())
		require.NoError(t, fencedb.Tx(ctx, pool, g, func(tx pgx.Tx) error {
			require.Equal(t, []string{"one", "two"}, names(tx.Query(ctx, sql)), mode.String())
			return nil
		}))
	}
}

func TestSendBatchCommitsAllOrNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := &pgx.Batch{}
	b.Queue(insertAnn, 1)
	b.Queue(insertAnn, 1) // again the same id

	err := fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 41), b)

	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "23505", pgErr.Code)
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
}

// The end of the batch commits, and its error is that of Exec.
func TestADeferredConstraintIsCheckedBeforeExecReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ALTER TABLE bookings ADD UNIQUE (guest) DEFERRABLE INITIALLY DEFERRED`)
	const twice = `INSERT INTO bookings (id, table_id, guest) SELECT i, 12, 'ann' FROM generate_series(1, 2) i`
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config := w.pool.Config()
		config.ConnConfig.DefaultQueryExecMode = mode
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		defer pool.Close()

		_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 41), twice)

		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr, mode.String())
		require.Equal(t, "23505", pgErr.Code, mode.String())
		require.NotErrorIs(t, err, fencedb.ErrCommitted)
		require.Empty(t, w.guests(), mode.String())
		require.Zero(t, w.fence("table:12"))
	}
}

func TestADeferredConstraintIsCheckedBeforeSendBatchReturns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`ALTER TABLE bookings ADD UNIQUE (guest) DEFERRABLE INITIALLY DEFERRED`)
	b := &pgx.Batch{}
	var told pgconn.CommandTag
	b.Queue(insertAnn, 1).Exec(func(tag pgconn.CommandTag) error { told = tag; return nil })
	b.Queue(insertAnn, 2)

	require.Error(t, fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 41), b))
	require.Empty(t, w.guests())
	require.Equal(t, "INSERT 0 1", told.String(), "callbacks run before COMMIT has answered")
}

func TestAFailingCallbackDoesNotHideThatTheBatchCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := errors.New("mine")
	var later bool
	b := &pgx.Batch{}
	b.Queue(insertAnn+` RETURNING id`, 1).Query(func(pgx.Rows) error { return mine })
	b.Queue(insertAnn+` RETURNING id`, 2).QueryRow(func(pgx.Row) error { later = true; return nil })
	b.Queue(insertAnn, 3)

	err := fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 41), b)

	require.ErrorIs(t, err, mine)
	require.ErrorIs(t, err, fencedb.ErrCommitted)
	require.False(t, later, "callbacks after the failed one are not called")
	require.Len(t, w.guests(), 3)
	require.NoError(t, w.pool.Ping(t.Context()))
}

// Behind the results of the queries comes the answer of COMMIT.
func TestACallbackThatTakesTheAnswerOfCommitDoesNotHideIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	n := 0
	for name, callback := range map[string]func(pgx.BatchResults) error{
		"reads on": func(results pgx.BatchResults) (err error) {
			for err == nil { // until there are no more
				_, err = results.Exec()
			}
			return nil
		},
		"leaves its rows open": func(results pgx.BatchResults) error {
			rows, err := results.Query()
			rows.Next()
			return err
		},
	} {
		for _, mode := range queryModes {
			pool := w.poolIn(mode)
			b := &pgx.Batch{}
			b.Queue(insertAnn+` RETURNING id`, n).Fn = callback
			n++

			err := fencedb.SendBatch(t.Context(), pool, g, b)

			require.Len(t, w.guests(), n, "%s, %v", name, mode)
			if err != nil {
				require.ErrorIs(t, err, fencedb.ErrCommitted, "%s, %v", name, mode)
			}
			err = fencedb.SendBatch(t.Context(), pool, g, b)
			require.NotErrorIs(t, err, fencedb.ErrCommitted, "%s, %v", name, mode)
			require.ErrorAs(t, err, new(*pgconn.PgError), "the id is taken")
		}
	}
}

// COMMIT is skipped after a refusal, so somebody has to end the transaction.
func TestARefusalLeavesASingleConnectionReadyForMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	conn := w.conn()
	require.NoError(t, fencedb.Seal(t.Context(), conn, grant("table:12", 42)))

	_, err := fencedb.Exec(t.Context(), conn, grant("table:12", 41), insertAnn, 1)

	require.ErrorIs(t, err, fencedb.ErrStale)
	require.Equal(t, byte('I'), conn.PgConn().TxStatus())
	b := &pgx.Batch{}
	b.Queue(insertAnn, 1)
	require.ErrorIs(t, fencedb.SendBatch(t.Context(), conn, grant("table:12", 41), b), fencedb.ErrStale)
	require.Equal(t, byte('I'), conn.PgConn().TxStatus(), "also behind a BEGIN")
	_, err = fencedb.Exec(t.Context(), conn, grant("table:12", 43), insertAnn, 1)
	require.NoError(t, err)
}

func TestSealKeepsEarlierTokensOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := grant("table:12", 42)

	require.NoError(t, fencedb.Seal(t.Context(), w.pool, b))
	require.NoError(t, fencedb.Seal(t.Context(), w.pool, b), "again, after a lost answer")

	require.EqualValues(t, 42, w.fence("table:12"))
	require.ErrorIs(t, fencedb.Seal(t.Context(), w.pool, grant("table:12", 41)), fencedb.ErrStale)
}

func TestConnectionsOfEveryKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	acquired, err := w.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer acquired.Release()

	for i, db := range []fencedb.DB{w.pool, acquired, w.conn()} {
		g := grant("table:12", int64(i)+2)
		require.NoError(t, fencedb.Tx(t.Context(), db, g, func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }))
		_, err := fencedb.Exec(t.Context(), db, g, `UPDATE bookings SET guest = 'ben'`)
		require.NoError(t, err)
		require.ErrorIs(t, fencedb.Seal(t.Context(), db, grant("table:12", int64(i)+1)), fencedb.ErrStale)
	}
}

// COMMIT would end a transaction of the caller's own, and a write without one would not be
// committed when nil is returned.
func TestAConnectionThatIsNotFreeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := maps.Clone(attempts)
	delete(all, "Enter")    // takes a transaction of its own
	delete(all, "Tx, Conn") // is nil
	all["Seal"] = func(ctx context.Context, conn *pgx.Conn, g fencedb.Grant) error { return fencedb.Seal(ctx, conn, g) }
	for state, sql := range map[string]string{"in a transaction": `BEGIN`, "in one that has failed": `BEGIN; SELECT 1/0`, "closed": ""} {
		for name, attempt := range all {
			conn := w.conn()
			if sql == "" {
				require.NoError(t, conn.Close(t.Context()))
			}
			_, _ = conn.Exec(t.Context(), sql)
			status := conn.PgConn().TxStatus()

			err := attempt(t.Context(), conn, grantFor("table:12", 41, time.Minute))

			require.Error(t, err, "%s, %s", name, state)
			require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, "%s, %s", name, state)
			require.Equal(t, string(status), string(conn.PgConn().TxStatus()), "%s, %s", name, state)
			_ = conn.Close(t.Context())
		}
	}
	require.Zero(t, w.fence("table:12"))
}

func TestOptionsOfTheDBHoldForOneShots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := fencedb.With(w.pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}), fencedb.Timeout(time.Hour))
	const level = `SELECT current_setting('transaction_isolation')`
	var got string
	require.NoError(t, fencedb.QueryRow(t.Context(), db, grantFor("table:12", 41, time.Minute), level).Scan(&got))
	require.Equal(t, "serializable", got)
	rows, err := fencedb.Query(t.Context(), db, grant("table:12", 42), level)
	require.NoError(t, err)
	levels, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"serializable"}, levels)
	tag, err := fencedb.Exec(t.Context(), db, grant("table:12", 43), `SELECT WHERE current_setting('transaction_isolation') = 'serializable'`)
	require.NoError(t, err)
	require.Equal(t, "SELECT 1", tag.String())

	require.NoError(t, fencedb.Tx(t.Context(), db, grant("table:12", 44), func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), level).Scan(&got)
	}, fencedb.TxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})))
	require.Equal(t, "repeatable read", got, "the call's own come last")
}

// readingPool is that of a role whose transactions are READ ONLY unless they say otherwise.
func (w *world) readingPool() *pgxpool.Pool {
	config := w.pool.Config()
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(w.Context(), config)
	require.NoError(w, err)
	w.Cleanup(pool.Close)
	return pool
}

// Where transactions only read by default, those that write say so, and a seal writes.
func TestARoleThatReadsByDefaultWritesAndSeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := w.readingPool()
	for i, level := range []pgx.TxIsoLevel{"", pgx.Serializable} {
		db := fencedb.With(pool, fencedb.TxOptions(pgx.TxOptions{IsoLevel: level, AccessMode: pgx.ReadWrite}))
		require.NoError(t, fencedb.Seal(t.Context(), db, grant("table:12", int64(2*i)+1)))
		require.NoError(t, fencedb.Tx(t.Context(), db, grant("table:12", int64(2*i)+2), func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }))
	}
}

// The server has committed and the results are lost: neither nil nor a failure is true.
func TestACommitWhoseResultsAreLostIsErrCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxy()
	var rows int
	proxy.OnServer(once(func(msg pgproto3.BackendMessage) bool {
		if _, row := msg.(*pgproto3.DataRow); row {
			rows++
		}
		return rows == 3 // those of enter, and of both statements
	}, faulty.Cut))
	b := &pgx.Batch{}
	b.Queue(insertAnn+` RETURNING id`, 1)
	b.Queue(insertAnn+` RETURNING id`, 2)

	require.ErrorIs(t, fencedb.SendBatch(t.Context(), pool, grant("table:12", 41), b), fencedb.ErrCommitted)
	require.Len(t, w.guests(), 2)
}

// It counts what the answer of COMMIT says, and not that there was one.
func TestACommitThatRollsBackIsNoCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool, proxy := w.behindProxy()
	proxy.OnClient(func(msg pgproto3.FrontendMessage) faulty.Fate {
		if parse, ok := msg.(*pgproto3.Parse); ok && parse.Query == "commit" {
			parse.Query = "rollback"
		}
		return faulty.Pass
	})
	b := &pgx.Batch{}
	b.Queue(insertAnn, 1)

	err := fencedb.SendBatch(t.Context(), pool, grant("table:12", 41), b)

	require.ErrorContains(t, err, "rolled back: the answer of COMMIT says so")
	require.Empty(t, w.guests())
}

// They could give the fence back at once, or leave the transaction prepared.
func TestQueriesThatBeginOrCommitAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, options := range []pgx.TxOptions{{BeginQuery: `BEGIN`}, {CommitQuery: `COMMIT`}} {
		option := fencedb.TxOptions(options)
		b := &pgx.Batch{}
		b.Queue(insertAnn, ids.Add(1))
		for name, err := range map[string]error{
			"Tx":        fencedb.Tx(t.Context(), w.pool, grant("table:12", 1), func(tx pgx.Tx) error { return book(t.Context(), tx, 12, "ann") }, option),
			"SendBatch": fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 1), b, option),
			"QueryRow":  fencedb.QueryRow(t.Context(), fencedb.With(w.pool, option), grant("table:12", 1), insertAnn, 1).Scan(),
		} {
			require.ErrorContains(t, err, "are not for fenced transactions", name)
		}
	}
	require.Empty(t, w.guests())
	require.Zero(t, w.fence("table:12"))
}

// Only a refusal of the fence is answered with a seal and another try. What the statements fail
// with is the caller's.
func TestAConflictBehindTheFenceIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`CREATE SEQUENCE runs; CREATE FUNCTION conflict(bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '40001'; END $$`)
	const run = `SELECT conflict(nextval('runs'))`
	b := &pgx.Batch{}
	b.Queue(run)
	_, execErr := fencedb.Exec(t.Context(), w.pool, grant("table:12", 41), run)

	for _, err := range []error{execErr, fencedb.SendBatch(t.Context(), w.pool, grant("table:12", 42), b)} {
		var pgErr *pgconn.PgError
		require.ErrorAs(t, err, &pgErr)
		require.Equal(t, "40001", pgErr.Code)
		require.NotErrorIs(t, err, fencedb.ErrUnsealed)
		require.NotErrorIs(t, err, fencedb.ErrStale, "nobody has overtaken")
	}
	require.Equal(t, []int64{2}, collect[int64](w, `SELECT last_value FROM runs`))
}

// pgx panics over an empty statement in a batch, and takes options there for arguments.
func TestWhatABatchOfPgxCannotTakeIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := grant("table:12", 41)
	const empty, option = "empty SQL", "options of pgx, such as pgx.QueryExecMode"
	for _, c := range []struct {
		sql  string
		args []any
		want string
	}{
		{"", nil, empty},
		{insertAnn, []any{pgx.QueryExecModeExec, 1}, option},
		{`/* /* */ */ ` + insertAnn, []any{pgx.QueryExecModeSimpleProtocol, 1}, option},
		{insertAnn, []any{pgx.QueryResultFormats{pgx.TextFormatCode}, 1}, option},
		{insertAnn, []any{pgx.NamedArgs{}, pgx.QueryResultFormatsByOID{}, 1}, option},
	} {
		batch := &pgx.Batch{}
		batch.Queue(insertAnn, 2)
		batch.Queue(c.sql, c.args...)
		_, execErr := fencedb.Exec(t.Context(), w.pool, g, c.sql, c.args...)
		for name, err := range map[string]error{
			"Exec":      execErr,
			"Query":     query(fencedb.Query(t.Context(), w.pool, g, c.sql, c.args...)),
			"QueryRow":  fencedb.QueryRow(t.Context(), w.pool, g, c.sql, c.args...).Scan(),
			"SendBatch": fencedb.SendBatch(t.Context(), w.pool, g, batch),
			"Tx":        fencedb.Tx(t.Context(), w.pool, g, func(tx pgx.Tx) error { return tx.SendBatch(t.Context(), batch).Close() }),
		} {
			require.ErrorContains(t, err, c.want, name)
		}
	}
	require.Empty(t, w.guests())
}
