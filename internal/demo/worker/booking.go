package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencedb/fencedb/examples/booking/booking"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Kinds is for [Become] where only booking workers are needed.
var Kinds = map[string]Life{"booking": Booking}

// Booking carries out reservations until the orders end, one at a time.
func Booking(ctx context.Context, self *Self) error {
	var cfg Config
	if err := self.Config(&cfg); err != nil {
		return err
	}
	d := &desk{Self: self, cfg: cfg, goOn: make(chan struct{}, 1)}
	if err := d.connect(ctx); err != nil {
		return fmt.Errorf("%s: %w", cfg.Name, err)
	}
	defer d.disconnect()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // first, so that a request that is held ends and gives its connection back

	self.Tell(Event{})
	for {
		var o order
		if err := self.Order(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: order: %w", cfg.Name, err)
		}
		if o.Reserve == nil {
			select {
			case d.goOn <- struct{}{}:
			default: // one is there already
			}
			continue
		}
		go d.reserve(ctx, *o.Reserve)
	}
}

// desk is the booking service in a worker, with its own connections.
type desk struct {
	*Self
	cfg  Config
	goOn chan struct{} // holds the order to go on

	db         *pgxpool.Pool
	beforeNext faulty.Breakpoint // in the driver of db
	redis      *redis.Client
	answers    answers    // of the scripts that redis ran
	feed       *feed.Feed // nil unless the configuration asks for it
}

func (d *desk) connect(ctx context.Context) (err error) {
	if d.redis, err = Redis(d.cfg.RedisURL, ClientName(d.cfg.Name)); err != nil {
		return err
	}
	d.redis.AddHook(&d.answers)
	if d.cfg.Feed {
		d.feed = feed.New(d.redis, feed.Worker(d.cfg.Name))
	}
	breakable := func(config *pgxpool.Config) { config.ConnConfig.Tracer = &d.beforeNext }
	if d.db, err = Postgres(ctx, d.cfg.PostgresURL, ClientName(d.cfg.Name), breakable); err != nil {
		return err
	}
	return errors.Join(d.db.Ping(ctx), d.redis.Ping(ctx).Err())
}

func (d *desk) disconnect() {
	d.db.Close()
	if d.feed != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.feed.Close(ctx) // nobody waits for what is not published in time
	}
	_ = d.redis.Close()
}

// reserve sets the booking service up as any program would, with two spies: a store that tells of
// new leases, and a bank that is as slow as was ordered.
func (d *desk) reserve(ctx context.Context, r Request) {
	defer d.beforeNext.Arm(func() {}) // in case that nothing was written
	cfg := booking.Config{
		Lease: lease.Config{TTL: r.TTL, Namespace: d.cfg.Namespace}, Wait: r.Wait, CheckCard: d.bank(ctx, r),
	}
	if r.NoRenew {
		cfg.Lease.RenewEvery = lease.Never
	}
	var writes []fencedb.Tracer
	if d.feed != nil {
		writes, cfg.Lease.Tracers = []fencedb.Tracer{d.feed}, []lease.Tracer{d.feed}
	}
	var store booking.Store = booking.NewPostgres(d.db, writes...)
	if r.Plain != "" {
		store = plainStore{store, d.db, r.Plain}
	}
	cfg.Store = witness{store, d}
	service, err := booking.New(d.redis, cfg)
	if err == nil {
		const noKey = "" // each request is sent once
		_, err = service.Reserve(ctx, noKey, r.Booking)
	}
	done := result(err)
	done.Redis = d.answers.last()
	d.Tell(Event{Done: &done})
}

// bank accepts every card. It does not look at the context it is given, which ends with the lease;
// many client libraries do not either.
func (d *desk) bank(life context.Context, r Request) booking.CardCheck {
	return func(context.Context, string) error {
		d.reached(life, AtCard, r.Hold, r.Card)
		// In the driver, after this side has looked at the lease for the last time, and before
		// anything is sent. No check can cover a pause here: garbage collection, a virtual machine
		// that is moved, a slow disk.
		d.beforeNext.Arm(func() { d.reached(life, AtWrite, r.Hold, r.Write) })
		return nil
	}
}

// reached stays at a point: until it is told to go on if the request is held there, and for a time
// otherwise.
func (d *desk) reached(life context.Context, at, hold Point, stay time.Duration) {
	select {
	case <-d.goOn: // left over from before: whoever wakes a worker also tells it to go on
	default:
	}
	d.Tell(Event{At: at, Held: at == hold})
	var over <-chan time.Time
	goOn := d.goOn
	if at != hold {
		over, goOn = time.After(stay), nil
	}
	select {
	case <-goOn:
	case <-over:
	case <-life.Done():
	}
}

// witness tells of each lease when it is sealed, which is before its holder gets it.
type witness struct {
	booking.Store
	desk *desk
}

func (s witness) Seal(ctx context.Context, grant fencedb.Grant) error {
	err := s.Store.Seal(ctx, grant)
	if err == nil {
		s.desk.Tell(Event{Lease: &Lease{ID: grant.LeaseID(), Token: grant.Token()}})
	}
	return err
}

// plainStore is the control of the experiment, not something to copy: the same statements,
// protected by nothing but the lock.
type plainStore struct {
	booking.Store // for what the experiment does not do
	db            *pgxpool.Pool
	table         string
}

// Seal does nothing: there is no fence.
func (plainStore) Seal(context.Context, fencedb.Grant) error { return nil }

func (s plainStore) Find(ctx context.Context, table int, slot time.Time) (booking.Booking, bool, error) {
	b := booking.Booking{Table: table, Slot: slot}
	err := s.db.QueryRow(ctx, `
		SELECT id, guest, party FROM `+s.name()+` WHERE table_id = $1 AND slot = $2`,
		table, slot).Scan(&b.ID, &b.Guest, &b.Party)
	if errors.Is(err, pgx.ErrNoRows) {
		return booking.Booking{}, false, nil
	}
	return b, err == nil, err
}

func (s plainStore) Save(ctx context.Context, _ fencedb.Grant, _ string, b booking.Booking) (booking.Answer, error) {
	_, err := s.db.Exec(ctx, `
		INSERT INTO `+s.name()+` (id, table_id, slot, guest, party) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (table_id, slot) DO UPDATE SET guest = excluded.guest, party = excluded.party`,
		b.ID, b.Table, b.Slot, b.Guest, b.Party)
	return booking.Answer{Booking: b}, err
}

func (s plainStore) name() string { return pgx.Identifier{s.table}.Sanitize() }

// result puts the answer of the service in the protocol's words.
func result(err error) Result {
	if err == nil {
		return Result{Outcome: Booked}
	}
	var (
		r       = Result{Outcome: Failed, Error: err.Error()}
		held    *lease.HeldError
		stale   *fencedb.StaleError
		refused *pgconn.PgError
	)
	switch {
	case errors.As(err, &held):
		r.Outcome, r.RetryAfter = Held, held.RetryAfter
	case errors.As(err, &stale):
		r.Outcome, r.Carried, r.Stored = Stale, stale.Token, stale.Stored
	case errors.Is(err, booking.ErrTaken):
		r.Outcome = Taken
	case errors.Is(err, fencedb.ErrLeaseOver), errors.Is(err, lease.ErrExpired), errors.Is(err, lease.ErrLost):
		r.Outcome = LeaseOver
	case errors.As(err, &refused) && refused.Code == "FN002": // of plainStore, which does not use package fencedb
		r.Outcome = NoToken
	}
	return r
}

// Config is what a booking worker needs to know.
type Config struct {
	Name        string // such as A; in the feed, and in ClientName
	PostgresURL string
	RedisURL    string
	Namespace   string // of the leases
	Feed        bool   // publish what becomes of leases and writes, see package observe/feed
}

// Point is where a request can be held.
type Point string

const (
	// Nowhere: the request runs through.
	Nowhere Point = ""

	// AtCard: in the card check, with the lease in hand and the table found free.
	AtCard Point = "card"

	// AtWrite: in the driver, where it would start to send the write. The lease was good when the
	// service last looked at it, and nobody looks again between here and Postgres.
	AtWrite Point = "write"
)

// Request is a reservation, and how to carry it out.
type Request struct {
	booking.Booking
	TTL     time.Duration `json:"ttl"`
	Wait    time.Duration `json:"wait,omitempty"`     // for the lease
	NoRenew bool          `json:"no_renew,omitempty"` // the lease ends after one TTL
	Plain   string        `json:"plain,omitempty"`    // write to this table without a token
	Hold    Point         `json:"hold,omitempty"`     // wait there for [Worker.Go]
	Card    time.Duration `json:"card,omitempty"`     // how long the card check takes, unless it is held
	Write   time.Duration `json:"write,omitempty"`    // how long the write is delayed at AtWrite, unless it is held
}

// order is a line on a worker's stdin. Without a request it means: go on.
type order struct {
	Reserve *Request `json:"reserve,omitempty"`
}

// Event is a line on a worker's stdout. The first is empty: the worker is ready.
type Event struct {
	Lease *Lease  `json:"lease,omitempty"`
	At    Point   `json:"at,omitempty"`   // the request has reached it
	Held  bool    `json:"held,omitempty"` // and waits there
	Done  *Result `json:"done,omitempty"`
}

// Lease is what a worker was granted.
type Lease struct {
	ID    uuid.UUID `json:"id"`
	Token int64     `json:"token"`
}

// Outcome is how a request ended, in the words of the errors it stands for.
type Outcome string

// The outcomes of a request.
const (
	Booked    Outcome = "booked"
	Held      Outcome = "held"
	Taken     Outcome = "taken"      // somebody else has the table
	Stale     Outcome = "stale"      // Postgres refused the token
	LeaseOver Outcome = "lease over" // the worker noticed by itself
	NoToken   Outcome = "no token"   // the table is protected, and the write carried no token
	Failed    Outcome = "failed"
)

// Result is the end of a request.
type Result struct {
	Outcome    Outcome       `json:"outcome"`
	Error      string        `json:"error,omitempty"`       // for people
	RetryAfter time.Duration `json:"retry_after,omitempty"` // with Held
	Carried    int64         `json:"carried,omitempty"`     // with Stale
	Stored     int64         `json:"stored,omitempty"`      // with Stale

	// Redis is the first word of the last answer that Redis gave: to the release, if there was a
	// lease.
	Redis string `json:"redis,omitempty"`
}

// Worker is a booking worker seen from outside. Its methods may be called by several goroutines.
type Worker struct {
	*Process[Event]
	Name string
}

// StartBooking starts a booking worker. Its events must be read from then on.
func StartBooking(ctx context.Context, cfg Config) (*Worker, error) {
	p, err := Start[Event](ctx, "booking", cfg)
	if err != nil {
		return nil, err
	}
	return &Worker{p, cfg.Name}, nil
}

// Reserve orders a reservation and does not wait for anything.
func (w *Worker) Reserve(r Request) error { return w.Order(order{Reserve: &r}) }

// Go lets the request that is held go on. A worker that is stopped finds the order when it wakes.
func (w *Worker) Go() error { return w.Order(order{}) }

// View is what whoever directs the workers sees of both servers.
type View struct {
	DB     *pgxpool.Pool
	Redis  *redis.Client
	Leases *lease.Issuer // to look at them only
}

// Open connects to both servers under a name, and migrates the empty database.
func Open(ctx context.Context, cfg Config) (v *View, err error) {
	v = &View{}
	if v.Redis, err = Redis(cfg.RedisURL, cfg.Name); err != nil {
		return nil, err
	}
	if v.DB, err = Postgres(ctx, cfg.PostgresURL, cfg.Name); err != nil {
		return nil, errors.Join(err, v.Redis.Close())
	}
	if v.Leases, err = lease.New(v.Redis, lease.Config{TTL: time.Minute, Namespace: cfg.Namespace}); err == nil {
		db := stdlib.OpenDBFromPool(v.DB)
		err = errors.Join(booking.Migrate(ctx, db), db.Close())
	}
	if err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// Close closes the connections.
func (v *View) Close() {
	v.DB.Close()
	_ = v.Redis.Close()
}

// Redis returns a client that shows under that name in CLIENT LIST.
func Redis(url, name string) (*redis.Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	options.ClientName = name
	// An extension of some hosted Redis. Others refuse it, and the client logs that.
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(options), nil
}

// ClientName is how a booking worker shows in Redis's CLIENT LIST and in pg_stat_activity.
func ClientName(worker string) string { return "booking-" + worker }

// Postgres returns a pool that shows under that name in pg_stat_activity.
func Postgres(ctx context.Context, url, name string, change ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = name
	for _, f := range change {
		f(config)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// answers remembers what Redis answers to scripts.
type answers struct {
	word atomic.Value // string
}

// last is the first word of the last answer, which says what happened: granted, held, released,
// taken.
func (a *answers) last() string {
	word, _ := a.word.Load().(string)
	return word
}

// ProcessHook implements [redis.Hook].
func (a *answers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if script, ok := cmd.(interface{ Slice() ([]any, error) }); ok {
			if reply, err := script.Slice(); err == nil && len(reply) > 0 {
				a.word.Store(reply[0])
			}
		}
		return err
	}
}

// ProcessPipelineHook implements [redis.Hook].
func (*answers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// DialHook implements [redis.Hook].
func (*answers) DialHook(next redis.DialHook) redis.DialHook { return next }
