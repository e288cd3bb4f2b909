package writes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
)

// setup is how an entry point is used in a case.
type setup struct {
	*entry
	level level
	mode  pgx.QueryExecMode
	warm  bool // the connection has prepared the statements, and the grant has entered before
	handle
}

// handle is what the entry point is given as its database.
type handle string

const (
	pooled     handle = "pool"
	connection handle = "connection of a pool"
	single     handle = "single connection"
)

func (s setup) path() string {
	warm := "first"
	if s.warm {
		warm = "again"
	}
	path := fmt.Sprintf("%v/%v/%s", s.level, s.mode, warm)
	if s.handle != pooled {
		path += "/" + string(s.handle)
	}
	return path
}

// of returns the handle, connected.
func (h handle) of(ctx context.Context, pool *pgxpool.Pool) (db fencedb.DB, giveBack func(), err error) {
	switch h {
	case single:
		conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		return conn, func() { _ = conn.Close(ctx) }, err
	case connection:
		conn, err := pool.Acquire(ctx)
		return conn, sync.OnceFunc(conn.Release), err
	}
	_, err = pool.Exec(ctx, `SELECT 1`, pgx.QueryExecModeSimpleProtocol)
	return pool, func() {}, err
}

// outcome is what has happened.
type outcome struct {
	answer answer
	err    error
	wrong  error // nil if everything promised is true but for the time
	took   time.Duration
	late   error // that the call took longer or knew less than promised, which may be the machine's fault
	sent   []sent
}

// run carries out one case and judges it. Its error says that the case could not be carried out.
func (w *world) run(ctx context.Context, s setup, f *fault, p point) (o outcome, err error) {
	if err := w.setLevel(ctx, s.level.byDatabase); err != nil {
		return o, err
	}
	pool, err := w.pool(s.mode, f.runtime)
	if err != nil {
		return o, err
	}
	defer pool.Close()
	until, cancel := context.WithTimeout(ctx, f.bound+givenUp)
	defer cancel()
	db, giveBack, err := s.handle.of(ctx, pool)
	if err != nil {
		return o, err
	}
	defer giveBack()
	c := &call{
		Context: until, pool: pool, db: db, level: s.level, token: 41, lease: uuid.New(), validity: patience, first: 101,
		resource: fmt.Sprintf("%s:%d", cmp.Or(f.prefix, "case"), names.Add(1)),
	}
	validity := cmp.Or(f.validity, whole)
	if c.issuer, err = w.issuerFor(validity); err != nil {
		return o, err
	}
	if s.warm {
		if err := s.run(c); err != nil {
			return o, fmt.Errorf("without any fault: %w", err)
		}
	}
	after := func() {}
	if f.before != nil {
		if after, err = f.before(ctx, w, c); err != nil {
			return o, err
		}
	}
	c.first, c.got, c.validity = 1, "", validity
	disarm := w.arm(ctx, f, p, c)
	began := time.Now()
	o.err = s.protected(c)
	o.took = time.Since(began)
	o.answer = s.answer(o.err)
	o.sent = disarm()
	o.took -= c.fault
	after()
	giveBack()

	o.wrong = checkPool(ctx, pool, f.dead)
	pool.Close()
	is, err := w.ask(ctx, c)
	if err != nil {
		return o, fmt.Errorf("cannot be judged: %w (answer: %w)", err, orNil(o.err))
	}
	o.wrong = errors.Join(s.judge(c, o.err, is), o.wrong)
	switch {
	case until.Err() != nil:
		o.late = errEndless
	case o.took > f.bound+slack:
		o.late = fmt.Errorf("ended after %v, and is bounded by %v", o.took.Round(time.Millisecond), f.bound)
	}
	return o, nil
}

// arm lets the fault happen at the point, and records what passes. disarm ends both.
func (w *world) arm(ctx context.Context, f *fault, p point, c *call) (disarm func() []sent) {
	var (
		all  []sent // under the proxy's lock
		over bool   // the fault has happened to the connection
		nth  = map[bool]int{}
		at   = map[bool]int{}
		do   = func() {}
		pass = func(client bool, msg pgproto3.Message) faulty.Fate {
			raw, err := msg.Encode(nil)
			if err != nil {
				panic(err)
			}
			if over {
				return faulty.Pass
			}
			s := sent{client, nth[client], at[client], len(raw), name(msg)}
			all = append(all, s)
			nth[client]++
			at[client] += len(raw)
			if s.client != p.client || s.nth != p.nth {
				return faulty.Pass
			}
			do()
			switch {
			case p.within == 0:
				over = f.verdict != faulty.Pass // what comes now is on another connection
				return f.verdict
			case client:
				over = true
				return faulty.CutHalf
			}
			return faulty.Pass // up to the byte
		}
	)
	if f.do != nil {
		happen := f.do(ctx, w, c)
		do = func() {
			began := time.Now()
			happen()
			c.fault += time.Since(began)
		}
	}
	w.proxy.OnClient(func(msg pgproto3.FrontendMessage) faulty.Fate { return pass(true, msg) })
	w.proxy.OnServer(func(msg pgproto3.BackendMessage) faulty.Fate { return pass(false, msg) })
	if !p.client && p.within > 0 {
		w.proxy.AfterBytes(p.at+p.within, f.verdict)
	}
	return func() []sent {
		w.proxy.OnClient(nil)
		w.proxy.OnServer(nil)
		w.proxy.AfterBytes(-1, faulty.Pass)
		w.proxy.Hang(false)
		w.proxy.Sever()
		return all
	}
}

// name tells a message from others of its type by what it carries.
func name(msg pgproto3.Message) string {
	name := reflect.TypeOf(msg).Elem().Name()
	switch msg := msg.(type) {
	case *pgproto3.Query:
		return name + " " + msg.String
	case *pgproto3.CommandComplete:
		return name + " " + string(msg.CommandTag)
	}
	return name
}

// protected turns a panic into an error.
func (s setup) protected(c *call) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v\n%s", errPanic, r, debug.Stack())
		}
	}()
	return s.run(c)
}

// errEndless is of a call that had time enough, and then its context was ended.
var errEndless = errors.New("did not end by itself")

// slack is for the machine, with sideBySide cases at once. A call that is givenUp would never have
// ended.
const slack, givenUp = 2 * time.Second, 4 * time.Second

func orNil(err error) error {
	if err == nil {
		return errNil
	}
	return err
}
