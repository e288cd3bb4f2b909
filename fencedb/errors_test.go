package fencedb_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/migrations"
)

func TestBusyLeavesOutAnApplicationWithoutAName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "pid 7 (idle)", "shop": "pid 7 (shop, idle)"} {
		busy := &fencedb.BusyError{Blockers: []fencedb.Blocker{{PID: 7, Application: name, State: "idle"}}}
		require.ErrorContains(t, busy, want)
	}
}

func TestBusySaysWhetherAnybodyWasAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	holder := w.holder(grant("table:12", 41)).enter()
	conn := w.conn()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)

	_, err = fencedb.Enter(t.Context(), tx, grantFor("table:12", 42, 3*time.Second))

	require.ErrorIs(t, err, fencedb.ErrBusy)
	require.ErrorContains(t, err, "a session that was not looked up")
	require.NoError(t, tx.Rollback(t.Context()))
	holder.commit()
	require.ErrorContains(t, &fencedb.BusyError{Blockers: []fencedb.Blocker{}}, "a session that has ended since")
}

func TestWritesOfAnotherResourceSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		return book(t.Context(), tx, 13, "ann")
	})

	var wrong *fencedb.WrongResourceError
	require.ErrorAs(t, err, &wrong)
	require.ErrorIs(t, err, fencedb.ErrWrongResource)
	require.Equal(t, "public.bookings", wrong.Table)
	require.Equal(t, "table:13", wrong.Resource)
	require.Equal(t, []string{"table:12"}, wrong.Entered)
	require.ErrorContains(t, err, `the row of public.bookings belongs to "table:13"`)
	require.Empty(t, w.guests())
}

// A transaction can lose its token only by tampering; the error is the same as without Tx.
func TestWritesWithoutATokenSaySo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('fencedb.entered', '', true)`); err != nil {
			return err
		}
		return book(t.Context(), tx, 12, "ann")
	})

	require.ErrorIs(t, err, fencedb.ErrNoToken)
	var pgErr *pgconn.PgError
	require.True(t, errors.As(err, &pgErr), "the server's error stays in the chain")
	require.Equal(t, "FN002", pgErr.Code)
	require.Contains(t, pgErr.Hint, `the resource of the row, which is `, "how to find out which grant it needs")
	require.ErrorContains(t, err, pgErr.Hint, "what to do")
}

func TestADatabaseWithoutMigrationsSaysSo(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	require.ErrorContains(t, fencedb.Seal(t.Context(), pool, grant("table:12", 41)), "run migrations.Up")
	err = fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error { return nil })
	require.ErrorContains(t, err, "run migrations.Up")
	_, err = fencedb.Exec(t.Context(), pool, grant("table:12", 41), `SELECT no_such_function()`)
	require.ErrorContains(t, err, "run migrations.Up", "enter comes first")

	g := grant("table:12", 42) // which has entered, but elsewhere
	require.NoError(t, fencedb.Seal(t.Context(), newWorld(t).pool, g))
	require.ErrorContains(t, fencedb.Seal(t.Context(), pool, g), "run migrations.Up")
}

func TestARoleThatMayNotEnterSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "app_" + collect[string](w, `SELECT current_database()::text`)[0]
	w.exec(`CREATE ROLE "` + role + `"`)
	defer w.exec(`DROP ROLE "` + role + `"`)
	conn := w.conn()
	_, err := conn.Exec(t.Context(), `SET ROLE "`+role+`"`)
	require.NoError(t, err)

	require.ErrorContains(t, fencedb.Seal(t.Context(), conn, grant("table:12", 41)), "fencedb.allow('role')")
}

func TestASessionThatOnlyReadsSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	only := fencedb.TxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly})
	one, two := grant("table:12", 41), fencedb.All(grant("table:13", 41), grant("table:14", 41))
	for _, g := range []fencedb.Grant{one, two} {
		for way, err := range map[string]error{
			"Seal":  fencedb.Seal(t.Context(), fencedb.With(w.pool, only), g),
			"Tx":    fencedb.Tx(t.Context(), w.pool, g, func(pgx.Tx) error { return nil }, only),
			"TxSQL": fencedb.TxSQL(t.Context(), w.sqlDB(), g, func(*sql.Tx) error { return nil }, only),
		} {
			require.ErrorContains(t, err, "entering a fence writes", way)
		}
	}
}

// As row security for tenants often has it.
func TestARoleThatIsSetBehindTheFenceNeedsNoRightsOfOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "tenant_" + collect[string](w, `SELECT current_database()::text`)[0]
	login := strings.Replace(role, "tenant", "login", 1)
	w.exec(`CREATE ROLE "` + role + `"; GRANT INSERT ON bookings TO "` + role + `"; CREATE ROLE "` + login + `" LOGIN IN ROLE "` + role + `"; SELECT fencedb.allow('"` + login + `"')`)
	defer w.exec(`DROP OWNED BY "` + login + `", "` + role + `"; DROP ROLE "` + login + `", "` + role + `"`)
	config := w.pool.Config()
	config.ConnConfig.User = login
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	ctx, statements := t.Context(), `SET LOCAL ROLE "`+role+`"; INSERT INTO bookings (id, table_id, guest) VALUES (%d, 12, 'ann')`

	require.NoError(t, fencedb.Tx(ctx, pool, grant("table:12", 41), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf(statements, 1)) // then Tx asks before COMMIT, as that role
		return err
	}))
	require.NoError(t, fencedb.TxSQL(ctx, db, grant("table:12", 42), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, fmt.Sprintf(statements, 2))
		return err
	}))
	require.Equal(t, []string{"ann", "ann"}, w.guests())
}

// What the server says of a connection is no answer to enter either.
func TestAConnectionThatIsRefusedIsNotTakenForTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "app_" + collect[string](w, `SELECT current_database()::text`)[0]
	w.exec(`CREATE ROLE "` + role + `" LOGIN`)
	defer w.exec(`DROP ROLE "` + role + `"`)
	w.exec(`DO $$ BEGIN EXECUTE format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database()); END $$`)
	for code, change := range map[string]func(*pgx.ConnConfig){
		"42501": func(c *pgx.ConnConfig) { c.User = role },
		"22023": func(c *pgx.ConnConfig) { c.RuntimeParams["statement_timeout"] = "soon" },
	} {
		config := w.pool.Config()
		change(config.ConnConfig)
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		for way, err := range map[string]error{
			"Seal":  fencedb.Seal(t.Context(), pool, grant("table:12", 41)),
			"Tx":    fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(pgx.Tx) error { return nil }),
			"TxSQL": fencedb.TxSQL(t.Context(), db, grant("table:12", 41), func(*sql.Tx) error { return nil }),
		} {
			require.ErrorContains(t, err, code, way)
			require.NotErrorIs(t, err, fencedb.ErrInvalidGrant, way)
			require.NotContains(t, err.Error(), "fencedb.allow", way)
		}
	}
}

// A function may fail before its first statement, with what another database has said to it.
func TestAnErrorFromElsewhereIsNotTakenForTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, code := range []string{"55P03", "57014", "40001", "42883", "3F000", "22023", "42501", "25006", "42P05", "26000"} {
		_, elsewhere := w.pool.Exec(t.Context(), `DO $$ BEGIN RAISE EXCEPTION 'mine' USING ERRCODE = '`+code+`'; END $$`)
		require.ErrorContains(t, elsewhere, code)

		err := fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(pgx.Tx) error { return elsewhere })

		require.Equal(t, elsewhere, err)
	}
}

// pgx prepares the statements of a batch before it sends BEGIN and enter: what the server says of
// the caller's own is no answer to enter.
func TestAStatementThatCannotBePreparedIsNotTakenForTheFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := "app_" + collect[string](w, `SELECT current_database()::text`)[0]
	w.exec(`CREATE ROLE "` + role + `"`)
	defer w.exec(`DROP ROLE "` + role + `"`)
	w.exec(`SELECT fencedb.allow($1)`, `"`+role+`"`)
	defer w.exec(`DROP OWNED BY "` + role + `"`)
	w.exec(`CREATE SCHEMA private CREATE TABLE seats (id int)`)
	w.exec(`GRANT SELECT ON bookings TO "` + role + `"`)
	_, err := w.conn().Exec(t.Context(), `BEGIN; LOCK TABLE bookings`)
	require.NoError(t, err)
	var all waiting
	for _, c := range []struct{ code, sql, setting string }{
		{code: "42883", sql: `SELECT no_such_function()`},
		{code: "42501", sql: `SELECT * FROM private.seats`},
		{code: "3F000", sql: `SELECT no_such_schema.f()`},
		{code: "22023", sql: `SELECT 1::numeric(0)`},
		{"55P03", `SELECT * FROM bookings`, "lock_timeout=10"},
		{"57014", `SELECT * FROM bookings`, "statement_timeout=1000"},
	} {
		for _, mode := range queryModes {
			config := w.poolIn(mode).Config()
			config.MaxConns = 1
			config.ConnConfig.RuntimeParams["role"] = role
			if name, value, ok := strings.Cut(c.setting, "="); ok {
				config.ConnConfig.RuntimeParams[name] = value
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			require.NoError(t, err)
			defer pool.Close()
			g := grant(fmt.Sprint(c.code, mode), 41)
			for name, write := range map[string]func() error{
				"Tx": func() error {
					return fencedb.Tx(t.Context(), pool, g, func(tx pgx.Tx) error {
						_, err := tx.Exec(t.Context(), c.sql)
						return err
					})
				},
				"Exec": func() error {
					_, err := fencedb.Exec(t.Context(), pool, g, c.sql)
					return err
				},
				"Query": func() error {
					rows, _ := fencedb.Query(t.Context(), pool, g, c.sql)
					rows.Close()
					return rows.Err()
				},
				"QueryRow": func() error { return fencedb.QueryRow(t.Context(), pool, g, c.sql).Scan() },
				"SendBatch": func() error {
					b := &pgx.Batch{}
					b.Queue(c.sql)
					return fencedb.SendBatch(t.Context(), pool, g, b)
				},
			} {
				all.start(func() (judge func()) {
					err := write()
					return func() {
						var pgErr *pgconn.PgError
						require.ErrorAs(t, err, &pgErr, name)
						require.Equal(t, c.code, pgErr.Code, name)
						require.NotContains(t, err.Error(), "fencedb: ", "%s in %v", name, mode)
					}
				})
			}
		}
	}
	all.judge()
}

func TestAClosedPoolSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pool.Close()

	for _, err := range []error{
		fencedb.Seal(t.Context(), w.pool, grant("table:12", 41)),
		fencedb.Tx(t.Context(), w.pool, grant("table:12", 41), func(tx pgx.Tx) error { return nil }),
	} {
		require.ErrorContains(t, err, "closed pool")
		require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
	}
}

// What a single round trip answers, when the server or the client stumbles over one of its
// statements: in every query mode, for pgx reads errors at different moments in each.

// one is a batch, what is true of it, and how SendBatch has to say so.
type one struct {
	name      string
	queue     func(b *pgx.Batch)
	committed bool
	says      error // nil for an error of its own kind
}

var errMine = errors.New("mine")

func swallow(row pgx.Row) error {
	var x int
	_ = row.Scan(&x)
	return nil
}

func mistype(row pgx.Row) error {
	var at time.Time
	return row.Scan(&at)
}

var stumbles = []one{
	{"a duplicate key in the last statement, swallowed by its callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(swallow)
	}, false, nil},
	{"a duplicate key in the middle, swallowed by its callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(swallow)
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, false, nil},
	{"an error after the first rows, which the callback does not read", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`SELECT 1 / (x - 500) FROM generate_series(1, 1000) x`).Query(func(rows pgx.Rows) error { rows.Next(); return errMine })
	}, false, nil},
	{"an error at COMMIT", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, false, nil},
	{"an error at COMMIT, and one of a callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO late VALUES (1)`)
		b.Queue(`INSERT INTO late VALUES (1) RETURNING id`).QueryRow(mistype)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, false, nil},
	{"a row that cannot be scanned, in the first statement", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(mistype)
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, true, fencedb.ErrCommitted},
	{"a row that cannot be scanned, in the last statement", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (2)`)
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).QueryRow(mistype)
	}, true, fencedb.ErrCommitted},
	{"an error of a callback", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1) RETURNING id`).Query(func(pgx.Rows) error { return errMine })
		b.Queue(`INSERT INTO effects VALUES (2)`)
	}, true, errMine},
	{"an argument that cannot be encoded", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO effects VALUES ($1)`, make(chan int))
	}, false, nil},
	{"a statement that cannot be prepared", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`INSERT INTO nowhere VALUES (1)`)
	}, false, nil},
	{"a procedure that would commit half", func(b *pgx.Batch) {
		b.Queue(`INSERT INTO effects VALUES (1)`)
		b.Queue(`CALL commit_half()`)
	}, false, nil},
	{"a BEGIN of its own", func(b *pgx.Batch) {
		b.Queue(`BEGIN`)
		b.Queue(`INSERT INTO effects VALUES (1)`)
	}, true, nil},
}

func TestSingleRoundTripsTellTheTruthInEveryQueryMode(t *testing.T) {
	t.Parallel()
	for _, mode := range queryModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(`CREATE TABLE effects (id int PRIMARY KEY); CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
			w.exec(`CREATE PROCEDURE commit_half() LANGUAGE plpgsql AS $$ BEGIN COMMIT; INSERT INTO effects VALUES (7); END $$`)
			pool := w.poolIn(mode)
			for i, stumble := range stumbles {
				w.exec(`TRUNCATE effects, late`)
				b := &pgx.Batch{}
				stumble.queue(b)

				err := fencedb.SendBatch(t.Context(), pool, grant("effects", int64(i)+1), b)

				committed := collect[int](w, `SELECT count(*) FROM effects`)[0] > 0
				require.Equal(t, stumble.committed, committed, stumble.name)
				require.Equal(t, committed, err == nil || errors.Is(err, fencedb.ErrCommitted), "%s: %v", stumble.name, err)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown, stumble.name)
				if stumble.says != nil {
					require.ErrorIs(t, err, stumble.says, stumble.name)
				}
				w.awaitIdle(pool)
			}
		})
	}
}

func TestARefusedQueryRowSaysSoInEveryQueryMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, mode := range queryModes {
		var id int

		err := fencedb.QueryRow(t.Context(), w.poolIn(mode), grant("table:12", int64(i)+1),
			`INSERT INTO bookings (id, table_id, guest) VALUES (1, 13, 'ann') RETURNING id`).Scan(&id)

		require.ErrorIs(t, err, fencedb.ErrWrongResource, mode.String())
		require.NotErrorIs(t, err, fencedb.ErrCommitted, mode.String())
	}
	require.Empty(t, w.guests())
}

// Whatever stands in the DETAIL of a refusal, it stays that refusal, and can be printed.
func FuzzExplain(f *testing.F) {
	for _, detail := range []string{
		`{"resource": "table:12", "token": 41, "stored": 42}`, `{"table": "seats", "resource": "table:12", "entered": ["a", "b"]}`,
		``, `null`, `{}`, `[]`, `{"token": "41"}`, `{"token": 1e400}`, `{"token": 9223372036854775808}`, `{"resource": 7}`, `{"entered": "a"}`, `{`, "\xff",
	} {
		for _, code := range []string{"FN001", "FN002", "FN003", "FN004", "FN999", "23505", ""} {
			f.Add(code, detail)
		}
	}
	sentinels := map[string]error{
		"FN001": fencedb.ErrStale, "FN002": fencedb.ErrNoToken, "FN003": fencedb.ErrWrongResource,
		"FN004": fencedb.ErrLeaseOver,
	}
	f.Fuzz(func(t *testing.T, code, detail string) {
		cause := fmt.Errorf("query: %w", &pgconn.PgError{Code: code, Detail: detail})

		err := fencedb.Explain(cause)

		require.ErrorIs(t, err, cause)
		require.NotEmpty(t, err.Error())
		for c, sentinel := range sentinels {
			require.Equal(t, c == code, errors.Is(err, sentinel), "%s is %v", code, sentinel)
		}
	})
}

// Whatever a resource is called: it has a fence of its own, or it is refused before anything is
// sent.
func FuzzResources(f *testing.F) {
	for _, seed := range []string{"a", "table:12", "", " ", "\x00", "\xff", "é", "{}", "🎉", "'", `"`, `\`, "%s", "\n", strings.Repeat("x", 512), strings.Repeat("x", 513)} {
		f.Add(seed)
	}
	pool := testenv.Postgres(f)
	f.Fuzz(func(t *testing.T, resource string) {
		w := &world{T: t, pool: pool}
		w.exec(`DELETE FROM fencedb.fences`)

		err := fencedb.Seal(t.Context(), w.pool, grant(resource, 2))

		if resource == "" || len(resource) > 512 || !utf8.ValidString(resource) || strings.ContainsRune(resource, 0) {
			require.ErrorIs(t, err, fencedb.ErrInvalidGrant)
			return
		}
		require.NoError(t, err)
		require.EqualValues(t, 2, w.fence(resource))
		require.ErrorIs(t, fencedb.Seal(t.Context(), w.pool, grant(resource, 1)), fencedb.ErrStale)
		require.Equal(t, []int{1}, collect[int](w, `SELECT count(*) FROM fencedb.fences`))
	})
}

// The owner of the schema may not look at other sessions unless it was granted that.
func TestABlockerThatIsNotVisibleSaysWhatToGrant(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.PostgresURL(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w := &world{T: t, pool: pool}
	role := fmt.Sprintf("owner_%x", rand.Uint32())
	w.exec(`CREATE ROLE ` + role + ` LOGIN`)
	w.exec(`DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO ` + role + `', current_database()); END $$`)
	config := pool.Config()
	config.ConnConfig.User = role
	own, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(own.Close)
	db := stdlib.OpenDBFromPool(own)
	defer db.Close()
	require.NoError(t, migrations.Up(t.Context(), db))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, enter(t.Context(), tx, grant("table:12", 41)))

	err = fencedb.Seal(t.Context(), own, grantFor("table:12", 42, 3*time.Second))

	var busy *fencedb.BusyError
	require.ErrorAs(t, err, &busy)
	require.Len(t, busy.Blockers, 1)
	require.Zero(t, busy.Blockers[0].Open)
	require.ErrorContains(t, err, "not visible: grant pg_read_all_stats to "+role+")")
	require.NotContains(t, err.Error(), "open for")
	require.NoError(t, tx.Rollback(t.Context()))
}

// A refusal names one remedy: the one for Go, and not that of the server beside it.
func TestARefusalNamesOneRemedy(t *testing.T) {
	t.Parallel()
	for code, hint := range map[string]string{
		"FN006": "Nothing was written. Use a shorter transaction, or enter with more time.",
		"FN004": "Nothing was written. Acquire the lease again.",
	} {
		text := fencedb.Explain(&pgconn.PgError{Code: code, Message: "refused", Hint: hint}).Error()
		require.Equal(t, 1, strings.Count(text, "shorter transaction")+strings.Count(text, "Acquire the lease"), text)
	}
}

// The cause of what has committed, or may have, can be a refusal of another database.
func TestWhatMayHaveCommittedIsNoRefusal(t *testing.T) {
	t.Parallel()
	for _, outcome := range []error{fencedb.ErrCommitted, fencedb.ErrCommitUnknown, fencedb.ErrTxEnded} {
		err := fmt.Errorf("%w: %w", outcome, &pgconn.PgError{Code: "FN001"})
		require.Equal(t, err, fencedb.Explain(err))
	}
}
