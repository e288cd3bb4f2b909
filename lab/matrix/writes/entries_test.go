package writes

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
)

// call is one use of an entry point. It writes the rows first to first+2 of its resource.
type call struct {
	context.Context
	db       fencedb.DB
	pool     *pgxpool.Pool // for database/sql
	issuer   *lease.Issuer
	resource string
	token    int64
	lease    uuid.UUID
	validity time.Duration
	level    level
	first    int
	got      string        // what the entry point gave back
	fault    time.Duration // what the fault itself took, while the call had to stand still
}

func (c *call) grant() fencedb.Grant {
	return fencedb.NewGrant(c.resource, c.token, c.lease, time.Now().Add(c.validity))
}

func (c *call) options() fencedb.Option {
	return fencedb.TxOptions(pgx.TxOptions{IsoLevel: c.level.option})
}

// What a call writes, with the arguments resource and first.
const (
	insert      = `INSERT INTO effects SELECT $1::text, $2::int + i FROM generate_series(0, 2) i`
	insertOne   = `INSERT INTO effects VALUES ($1, $2)`
	returning   = ` RETURNING n`
	insertCount = `WITH i AS (` + insert + returning + `) SELECT count(*)::int FROM i`
)

// entry is an entry point, used once and rightly.
type entry struct {
	name    string
	run     func(*call) error
	want    string // what got must be after nil, for first = 1
	oneShot bool   // one round trip: no id to ask about before its answer
	options bool   // takes the isolation level as an option
	rows    int    // written; 0 if only the fence moves
}

// entries are all of them, and below Tx each way to use the transaction first.
var entries = []entry{
	{name: "Exec", run: runExec, want: "INSERT 0 3", oneShot: true, rows: 3},
	{name: "Query", run: runQuery, want: "[1 2 3]", oneShot: true, rows: 3},
	{name: "QueryRow", run: runQueryRow, want: "3", oneShot: true, rows: 3},
	{name: "SendBatch", run: runSendBatch, want: "INSERT 0 1 2 [3]", oneShot: true, options: true, rows: 3},
	{name: "Seal", run: func(c *call) error { return fencedb.Seal(c, c.db, c.grant()) }},
	{name: "Enter", run: inOwn(runEnter), want: "[1 2 3]", options: true, rows: 3},
	{name: "EnterSQL", run: inOwn(runEnterSQL), want: "[1 2 3]", options: true, rows: 3},
	{name: "TxSQL", run: runTxSQL, want: "[1 2 3]", options: true, rows: 3},
	{name: "Once", run: inTx(runOnce), want: "done", options: true, rows: 3},
	{name: "guard.Tx", run: runGuard, want: "INSERT 0 3", options: true, rows: 3},
	{name: "guard.Exec", run: runGuardExec, want: "INSERT 0 3", oneShot: true, rows: 3},
	{name: "guard.QueryRow", run: runGuardQueryRow, want: "3", oneShot: true, rows: 3},
	{name: "guard.SendBatch", run: runGuardSendBatch, want: "INSERT 0 1 2 [3]", oneShot: true, options: true, rows: 3},
	{name: "Tx Exec", run: inTx(txExec), want: "INSERT 0 3", options: true, rows: 3},
	{name: "Tx Query", run: inTx(txQuery), want: "[1 2 3]", options: true, rows: 3},
	{name: "Tx QueryRow", run: inTx(txQueryRow), want: "3", options: true, rows: 3},
	{name: "Tx SendBatch", run: inTx(txSendBatch), want: "INSERT 0 1 2 [3]", options: true, rows: 3},
	{name: "Tx CopyFrom", run: inTx(txCopyFrom), want: "3", options: true, rows: 3},
	{name: "Tx Prepare", run: inTx(txPrepare), want: "INSERT 0 3", options: true, rows: 3},
	{name: "Tx Begin", run: inTx(txBegin), want: "INSERT 0 3", options: true, rows: 3},
	{name: "Tx LargeObjects", run: inTx(txLargeObjects), want: "INSERT 0 3", options: true, rows: 3},
	{name: "Tx Conn", run: inTx(txConn), want: "INSERT 0 3", options: true, rows: 3},
	{name: "Tx nothing", run: inTx(func(*call, pgx.Tx) error { return nil }), options: true},
}

func runExec(c *call) error {
	tag, err := fencedb.Exec(c, c.db, c.grant(), insert, c.resource, c.first)
	c.got = tag.String()
	return err
}

func runQuery(c *call) error {
	rows, err := fencedb.Query(c, c.db, c.grant(), insert+returning, c.resource, c.first)
	if err != nil {
		return err
	}
	return c.collect(rows)
}

// collect reads the rows as an application does that believes Err alone.
func (c *call) collect(rows pgx.Rows) error {
	var all []int
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			rows.Close()
			return errors.Join(err, rows.Err())
		}
		all = append(all, n)
	}
	c.got = fmt.Sprint(all)
	return rows.Err()
}

func runQueryRow(c *call) error {
	var n int
	err := fencedb.QueryRow(c, c.db, c.grant(), insertCount, c.resource, c.first).Scan(&n)
	c.got = fmt.Sprint(n)
	return err
}

// batch writes one row with each kind of callback.
func (c *call) batch() *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(insertOne, c.resource, c.first).Exec(func(tag pgconn.CommandTag) error {
		c.got = tag.String()
		return nil
	})
	b.Queue(insertOne+returning, c.resource, c.first+1).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		c.got += fmt.Sprint(" ", n)
		return err
	})
	b.Queue(insertOne+returning, c.resource, c.first+2).Query(func(rows pgx.Rows) error {
		all, err := pgx.CollectRows(rows, pgx.RowTo[int])
		c.got += fmt.Sprint(" ", all)
		return err
	})
	return b
}

func runSendBatch(c *call) error {
	return fencedb.SendBatch(c, c.db, c.grant(), c.batch(), c.options())
}

// sealed raises the fence first where the isolation level asks for that, as an application does.
func (c *call) sealed() error {
	if c.level.isolation() == pgx.ReadCommitted {
		return nil
	}
	return fencedb.Seal(c, c.db, c.grant())
}

// inOwn bounds an application's own transaction as the functions of fencedb bound theirs.
func inOwn(fn func(*call) error) func(*call) error {
	return func(c *call) error {
		ctx, cancel := context.WithTimeout(c.Context, c.validity+answering)
		defer cancel()
		own := *c
		own.Context = ctx
		err := fn(&own)
		c.got = own.got
		return err
	}
}

func runEnter(c *call) error {
	if err := c.sealed(); err != nil {
		return err
	}
	tx, err := c.db.BeginTx(c, pgx.TxOptions{IsoLevel: c.level.option})
	if err != nil {
		return err
	}
	defer func() { // bounded: the silence may come here, if something before it failed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c), answering)
		defer cancel()
		_ = tx.Rollback(ctx)
	}()
	entry, err := fencedb.Enter(c, tx, c.grant())
	if err != nil {
		return err
	}
	rows, err := tx.Query(c, insert+returning, c.resource, c.first)
	if err != nil {
		return err
	}
	if err := c.collect(rows); err != nil {
		return err
	}
	if err := tx.Commit(c); err != nil {
		return entry.Outcome(c, c.db, err)
	}
	return nil
}

func runEnterSQL(c *call) error {
	if err := c.sealed(); err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(c.pool)
	defer db.Close()
	tx, err := db.BeginTx(c.Context, &sql.TxOptions{Isolation: c.level.sqlOption()})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	entry, err := fencedb.EnterSQL(c.Context, tx, c.grant())
	if err != nil {
		return err
	}
	if err := c.insertSQL(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return entry.OutcomeSQL(c.Context, db, err)
	}
	return nil
}

// The context itself: database/sql leaves a goroutine that looks at it, and c gets another one.
func (c *call) insertSQL(tx *sql.Tx) error {
	rows, err := tx.QueryContext(c.Context, insert+returning, c.resource, c.first)
	if err != nil {
		return err
	}
	defer rows.Close()
	var all []int
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return err
		}
		all = append(all, n)
	}
	c.got = fmt.Sprint(all)
	return rows.Err()
}

func runTxSQL(c *call) error {
	db := stdlib.OpenDBFromPool(c.pool)
	defer db.Close()
	return fencedb.TxSQL(c.Context, db, c.grant(), c.insertSQL, c.options())
}

func runGuard(c *call) error {
	db := fencedb.With(c.db, c.options())
	return guard.New(c.issuer, db).Tx(c, c.resource, func(ctx context.Context, tx pgx.Tx) error {
		own := *c
		own.Context = ctx
		err := txExec(&own, tx)
		c.got = own.got
		return err
	})
}

func runGuardExec(c *call) error {
	tag, err := guard.New(c.issuer, c.db).Exec(c, c.resource, insert, c.resource, c.first)
	c.got = tag.String()
	return err
}

func runGuardQueryRow(c *call) error {
	var n int
	err := guard.New(c.issuer, c.db).QueryRow(c, c.resource, insertCount, c.resource, c.first).Scan(&n)
	c.got = fmt.Sprint(n)
	return err
}

func runGuardSendBatch(c *call) error {
	return guard.New(c.issuer, fencedb.With(c.db, c.options())).SendBatch(c, []string{c.resource}, c.batch())
}

// inTx is fn in Tx.
func inTx(fn func(*call, pgx.Tx) error) func(*call) error {
	return func(c *call) error {
		return fencedb.Tx(c, c.db, c.grant(), func(tx pgx.Tx) error { return fn(c, tx) }, c.options())
	}
}

func runOnce(c *call, tx pgx.Tx) error {
	result, _, err := fencedb.Once(c, tx, c.key(), nil, func() ([]byte, error) {
		return []byte("done"), txExec(c, tx)
	})
	c.got = string(result)
	return err
}

func (c *call) key() string { return fmt.Sprint(c.resource, "/", c.first) }

func txExec(c *call, tx pgx.Tx) error {
	tag, err := tx.Exec(c, insert, c.resource, c.first)
	c.got = tag.String()
	return err
}

func txQuery(c *call, tx pgx.Tx) error {
	rows, err := tx.Query(c, insert+returning, c.resource, c.first)
	if err != nil {
		return err
	}
	return c.collect(rows)
}

func txQueryRow(c *call, tx pgx.Tx) error {
	var n int
	err := tx.QueryRow(c, insertCount, c.resource, c.first).Scan(&n)
	c.got = fmt.Sprint(n)
	return err
}

func txSendBatch(c *call, tx pgx.Tx) error {
	return tx.SendBatch(c, c.batch()).Close()
}

func txCopyFrom(c *call, tx pgx.Tx) error {
	n, err := tx.CopyFrom(c, pgx.Identifier{"effects"}, []string{"resource", "n"}, pgx.CopyFromSlice(3, func(i int) ([]any, error) {
		return []any{c.resource, c.first + i}, nil
	}))
	c.got = fmt.Sprint(n)
	return err
}

func txPrepare(c *call, tx pgx.Tx) error {
	if _, err := tx.Prepare(c, "own", insert); err != nil {
		return err
	}
	tag, err := tx.Exec(c, "own", c.resource, c.first)
	c.got = tag.String()
	return err
}

func txBegin(c *call, tx pgx.Tx) error {
	return pgx.BeginFunc(c, tx, func(savepoint pgx.Tx) error { return txExec(c, savepoint) })
}

func txLargeObjects(c *call, tx pgx.Tx) error {
	objects := tx.LargeObjects()
	if _, err := objects.Create(c, 0); err != nil {
		return err
	}
	return txExec(c, tx)
}

func txConn(c *call, tx pgx.Tx) error {
	conn := tx.Conn()
	if conn == nil {
		return errors.New("no connection to be had")
	}
	tag, err := conn.Exec(c, insert, c.resource, c.first)
	c.got = tag.String()
	return err
}
