package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/lease"
)

// Step is a step of a drill: what happens, what it is for, and what was seen.
type Step struct {
	Title string `json:"title"`
	Why   string `json:"why"`
	Saw   string `json:"saw"`
	Kept  bool   `json:"kept"` // the promise of the step
}

// Drilled is what a drill has shown. Its last step may be one that was not kept; the ones after it
// were not tried.
type Drilled struct {
	Run   string   `json:"run"`
	TTL   Span     `json:"ttl_ms"`
	Steps []Step   `json:"steps"`
	Left  []string `json:"left"`
}

// Passed reports whether every promise was kept.
func (d *Drilled) Passed() bool { return d.Steps[len(d.Steps)-1].Kept }

// drill is the scene: A loses its lease without noticing, and B takes over.
type drill struct {
	*stage
	toA            *faulty.Network // between A and Redis
	a, b           *lease.Issuer
	leaseA, leaseB *lease.Lease
	taken          chan error // the end of B's wait for the lease; by then leaseB and tookOver are set
	tookOver       time.Time
	resource       string
	sure           fencedb.Grant // A's grant, as a program has it that looks at nothing but the token
}

// broken is a promise that was not kept. With any other error a step could not be carried out,
// which says nothing of promises.
type broken string

func (b broken) Error() string { return string(b) }

func brokenf(format string, args ...any) error { return broken(fmt.Sprintf(format, args...)) }

// Drill stages one scene on the servers and explains each step to c.Log: a lease expires while its
// renewals fail, its holder writes late and releases late. Then clients compete on purpose. It
// takes everything off the servers again. Of the settings it uses the addresses, Open, TTL and
// Control. An error means that a step could not be carried out.
func Drill(ctx context.Context, c Config) (result *Drilled, err error) {
	c.complete()
	result = &Drilled{TTL: Span(c.TTL)}
	result.Left, err = c.perform(ctx, "drill", func(ctx context.Context, s *stage) error {
		result.Run = s.Run
		return s.drill(ctx, result)
	})
	return result, err
}

func (s *stage) drill(ctx context.Context, result *Drilled) (err error) {
	d := &drill{stage: s, resource: s.resource(objects[register].resources[0]), taken: make(chan error, 1)}
	socket := filepath.Join(s.dir, "a")
	if d.toA, err = faulty.NewNetwork(socket); err != nil {
		return err
	}
	defer d.toA.Close()
	clientA, err := s.Open(s.RedisURL, faulty.Through(socket))
	if err != nil {
		return err
	}
	defer clientA.Close()
	if d.a, err = d.issuer(clientA); err == nil {
		d.b, err = d.issuer(s.client)
	}
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), d.TTL)
		defer cancel()
		_ = errors.Join(d.a.Close(ctx), d.b.Close(ctx)) // what is not given back is deleted with the rest
	}()
	for n, step := range script {
		saw, err := step.do(d, ctx)
		kept, mark := true, "kept "
		if errors.As(err, new(broken)) || errors.Is(err, fencedb.ErrStale) {
			kept, mark, saw = false, "BROKEN", err.Error()
		} else if err != nil {
			return fmt.Errorf("step %d, %s, could not be carried out: %w", n+1, step.title, cmp.Or(context.Cause(ctx), err))
		}
		result.Steps = append(result.Steps, Step{step.title, step.why, saw, kept})
		s.say("%d. %s\n   %s\n   %s %s\n\n", n+1, step.title, step.why, mark, saw)
		if !kept {
			break
		}
	}
	return nil
}

func (s *stage) issuer(client redis.UniversalClient) (*lease.Issuer, error) {
	return lease.New(client, lease.Config{TTL: s.TTL, Namespace: s.Run})
}

// script is what happens, what it is for, and what carries it out and says what was seen.
var script = []struct {
	title, why string
	do         func(*drill, context.Context) (saw string, err error)
}{
	{"A acquires the lease and writes", "A is an ordinary holder: its lease is renewed, its write carries its token.", (*drill).acquire},
	{"A's renewals fail", "From here on A's connection to Redis is held in both directions. A must end its lease by its own clock. B has begun to wait for it.", (*drill).failRenewals},
	{"The lease expires, and B takes over", "B must not get the lease before A's has ended, and its token must be higher.", (*drill).takeOver},
	{"A writes late", "A looks at nothing but its old token, as after a long pause. Postgres must refuse it, and B's write must stand.", (*drill).writeLate},
	{"A releases late", "A reaches Redis again: the renewals that were on their way arrive, and a release. Neither may touch B's lease.", (*drill).releaseLate},
	{"A renews late", "A renewal never brings a lease back, not even when the resource is free.", (*drill).renewLate},
	{"Clients compete on purpose", "Eight clients count one number up, each with the lease, reading first and writing then. No two may be at it at once, and no count may be lost.", (*drill).compete},
}

func (d *drill) acquire(ctx context.Context) (saw string, err error) {
	if d.leaseA, err = d.a.Acquire(ctx, d.resource); err != nil {
		return "", err
	}
	d.sure = fencedb.NewGrant(d.resource, d.leaseA.Token(), d.leaseA.LeaseID(), fencedb.NoEnd)
	return fmt.Sprintf("A has token %d, and has written", d.leaseA.Token()), d.set(ctx, d.sure, 1)
}

// set writes the register under a grant, or with the control without.
func (d *drill) set(ctx context.Context, g fencedb.Grant, value int64) error {
	write := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, d.in(`UPDATE stage.registers SET value = $2 WHERE resource = $1`), d.resource, value)
		return err
	}
	if ways[d.Control].open {
		return pgx.BeginFunc(ctx, d.pool, write)
	}
	return fencedb.Tx(ctx, d.pool, g, write)
}

func (d *drill) failRenewals(ctx context.Context) (string, error) {
	go func() {
		l, err := d.b.Acquire(ctx, d.resource)
		d.leaseB, d.tookOver = l, time.Now()
		d.taken <- err
	}()
	d.toA.Set(faulty.Weather{HoldRequests: true, HoldReplies: true})
	began := time.Now()
	select {
	case <-d.leaseA.Context().Done():
	case <-ctx.Done():
		return "", ctx.Err()
	}
	cause := context.Cause(d.leaseA.Context())
	if !errors.Is(cause, lease.ErrUnreachable) && !errors.Is(cause, lease.ErrExpired) {
		return "", brokenf("the lease of A ended with another cause: %v", cause)
	}
	return fmt.Sprintf("A's lease ended after %v, with %q", Span(time.Since(began)), cause), nil
}

func (d *drill) takeOver(ctx context.Context) (string, error) {
	if err := <-d.taken; err != nil { // ctx bounds it
		return "", err
	}
	early := d.leaseA.ValidUntil().Sub(d.tookOver)
	switch {
	case early > 0:
		return "", brokenf("the lease came to B %v before that of A had ended", early)
	case d.leaseB.Token() <= d.leaseA.Token():
		return "", brokenf("the token %d of B is not higher than %d of A", d.leaseB.Token(), d.leaseA.Token())
	}
	saw := fmt.Sprintf("B has token %d, %v after A's trust ended, and has written", d.leaseB.Token(), Span(-early))
	return saw, d.set(ctx, d.leaseB, 2)
}

func (d *drill) writeLate(ctx context.Context) (string, error) {
	err := d.set(ctx, d.sure, 3)
	stale, refused := errors.AsType[*fencedb.StaleError](err)
	if !refused {
		return "", brokenf("the write with the old token was not refused as stale: %v", err)
	}
	var value int64
	if err := d.pool.QueryRow(ctx, d.in(`SELECT value FROM stage.registers WHERE resource = $1`), d.resource).Scan(&value); err != nil {
		return "", err
	}
	if value != 2 {
		return "", brokenf("the register has %d, not what B wrote", value)
	}
	return fmt.Sprintf("refused: carried %d, stored %d; B's write stands", stale.Token, stale.Stored), nil
}

func (d *drill) releaseLate(ctx context.Context) (string, error) {
	d.toA.Set(faulty.Weather{})
	answer := d.leaseA.Release(ctx)
	if answer == nil {
		return "", broken("the release of a lease that is over was answered as if it had been held")
	}
	return fmt.Sprintf("A was told that its lease had ended before, in step 2, with %q; B still holds", answer), d.stillCurrent(ctx)
}

// stillCurrent asks Redis about the lease of B and its token.
func (d *drill) stillCurrent(ctx context.Context) error {
	verdict, err := d.leaseB.Verify(ctx)
	if err == nil && verdict != lease.Current {
		err = brokenf("Redis says of the lease of B: %v", verdict)
	}
	return err
}

func (d *drill) renewLate(ctx context.Context) (string, error) {
	const renewed = broken("a renewal of the lease that is over has succeeded")
	if d.leaseA.Extend(ctx) == nil {
		return "", renewed
	}
	if err := d.stillCurrent(ctx); err != nil {
		return "", err
	}
	if err := d.leaseB.Release(ctx); err != nil {
		return "", err
	}
	if d.leaseA.Extend(ctx) == nil {
		return "", renewed
	}
	found, err := d.b.Inspect(ctx, d.resource)
	if err == nil && found.Token != 0 {
		err = brokenf("a lease with token %d is in Redis, where none should be", found.Token)
	}
	return "refused while B held, and after B's release; nobody holds now", err
}

const competitors, laps = 8, 20

func (d *drill) compete(ctx context.Context) (string, error) {
	resource := d.task.resource(objects[0].resources[0])
	count := d.in(`SELECT coalesce(max(value), 0) FROM stage.entries WHERE resource = $1`)
	var inside, contended, together, last atomic.Int64
	lap := func(i *lease.Issuer) error {
		l, err := i.Acquire(ctx, resource, lease.NoWait())
		if errors.Is(err, lease.ErrHeld) {
			contended.Add(1)
			l, err = i.Acquire(ctx, resource)
		}
		if err != nil {
			return err
		}
		defer l.Release(ctx)
		if inside.Add(1) > 1 {
			together.Add(1)
		}
		defer inside.Add(-1)
		if before := last.Swap(l.Token()); l.Token() <= before {
			return brokenf("token %d was granted after %d", l.Token(), before)
		}
		return fencedb.Tx(ctx, d.pool, l, func(tx pgx.Tx) error { // loses counts unless nobody else is at it
			var value int64
			if err := tx.QueryRow(ctx, count, resource).Scan(&value); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, d.in(`INSERT INTO stage.entries VALUES ($1, $2)`), resource, value+1)
			return err
		})
	}
	var all sync.WaitGroup
	var failed [competitors]error
	began := time.Now()
	for n := range competitors {
		i, err := d.issuer(d.client)
		if err != nil {
			return "", err
		}
		defer i.Close(ctx)
		all.Go(func() {
			for run := 0; run < laps && failed[n] == nil; run++ {
				failed[n] = lap(i)
			}
		})
	}
	all.Wait()
	took := Span(time.Since(began))
	if err := errors.Join(failed[:]...); err != nil {
		return "", err
	}
	var counted int64
	err := d.pool.QueryRow(ctx, count, resource).Scan(&counted)
	switch {
	case err != nil:
		return "", err
	case together.Load() > 0:
		return "", brokenf("%d times two were at it at once", together.Load())
	case counted != competitors*laps:
		return "", brokenf("%d counts were made, and the number is %d", competitors*laps, counted)
	case contended.Load() == 0:
		return "", errors.New("nobody had to wait, so this shows nothing")
	}
	return fmt.Sprintf("exclusion verified: %d leases in %v, %d found it held and waited, never two at once, %d counted, tokens rose",
		competitors*laps, took, contended.Load(), counted), nil
}
