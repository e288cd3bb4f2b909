package writes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lab/matrix"
)

// A crash and a fail-over befall all entry points at once: every call is held at the same place,
// and goes on when the server is back and strangers have been given the transaction ids of those
// that were lost.

func TestCrashes(t *testing.T) {
	for _, s := range disasters() {
		t.Run(s.path(), func(t *testing.T) {
			server := testenv.OwnPostgres(t, "bgwriter_lru_maxpages=0", "autovacuum=off")
			stage := newStage(t, server)
			for nth := range 4 {
				walWriter := stage.stopWALWriter(t)
				stage.disaster(t, s, disasterFaults[0], nth, func(ctx context.Context) error { return stage.crash(ctx, walWriter) })
			}
		})
	}
}

func TestFailOvers(t *testing.T) {
	for _, s := range disasters() {
		for nth := range 4 {
			if !matrix.Full && nth != 2 { // COMMIT lost
				continue
			}
			t.Run(fmt.Sprint(s.path(), "/", nth), func(t *testing.T) {
				primary := testenv.OwnPostgres(t)
				stage := newStage(t, primary)
				standby := primary.Standby()
				stage.direct.Reset()
				stage.disaster(t, s, disasterFaults[1], nth, func(ctx context.Context) error {
					primary.Kill()
					standby.Restart()
					return stage.failOver(ctx, standby.URL())
				})
			})
		}
	}
}

// disasters are the setups: in full all, else the defaults and one above them.
func disasters() (all []setup) {
	for l, level := range levels[:] {
		for m, mode := range modes {
			for again, warm := range []bool{false, true} {
				if level.byDatabase == "" && (matrix.Full || l == 0 && m == 0 && warm || l == 1 && m == 3 && again == 0) {
					all = append(all, setup{nil, level, mode, warm, pooled})
				}
			}
		}
	}
	return all
}

var disasterFaults = []fault{
	{name: "server crashed", means: "a session is killed (SIGKILL), the log in memory is lost, strangers get the ids of lost transactions",
		points: chosen, allowed: anything, bound: whole + asking, verdict: faulty.Cut, dead: true},
	{name: "failed over", means: "a standby that lagged is promoted, strangers get the ids of lost transactions",
		points: chosen, allowed: anything, bound: whole + asking, verdict: faulty.Cut, dead: true},
}

// stage is one database with a proxy for each entry point.
type stage struct {
	direct *pgxpool.Pool
	worlds []*world
}

func newStage(t *testing.T, server *testenv.PostgresServer) *stage {
	direct := server.Pool()
	_, err := direct.Exec(t.Context(), schema)
	require.NoError(t, err)
	stage := &stage{direct: direct}
	for range entries {
		w := newWorld(t, server.URL())
		w.direct = direct
		stage.worlds = append(stage.worlds, w)
	}
	return stage
}

// disaster lets every entry point come to the chosen place, then lets it happen, and judges them
// all.
func (st *stage) disaster(t *testing.T, s setup, f fault, place int, happen func(context.Context) error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var (
		arrived, over = make(chan string, len(entries)), make(chan struct{})
		calls         sync.WaitGroup
	)
	f.do = func(_ context.Context, _ *world, c *call) func() {
		return func() {
			arrived <- c.resource
			<-over
		}
	}
	points := make([]point, len(entries))
	for i := range entries {
		s.entry = &entries[i]
		o, err := st.worlds[i].run(ctx, s, &faults[0], once(nil)[0])
		require.NoError(t, err, s.name)
		points[i] = f.points(o.sent)[place]
	}
	for i, w := range st.worlds {
		s, p := s, points[i]
		s.entry = &entries[i]
		calls.Go(func() {
			o, err := w.run(ctx, s, &f, p)
			if err != nil {
				t.Errorf("%s, %s: %v", s.name, p.name, err)
				return
			}
			wrong := check(s, &f, p, o)
			record(s, &f, o, wrong != nil)
			if wrong != nil {
				t.Error(wrong)
			}
		})
	}
	for range entries {
		select {
		case <-arrived:
		case <-ctx.Done():
			t.Error("not every call has come to its place")
		}
	}
	next, err := st.nextID(ctx)
	if err == nil {
		err = happen(ctx)
	}
	if err == nil {
		err = st.useUp(ctx, next)
	}
	close(over)
	calls.Wait()
	require.NoError(t, err)
}

// nextID is what the next transaction would be given.
func (st *stage) nextID(ctx context.Context) (id uint64, err error) {
	tx, err := st.direct.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
	return id, tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&id)
}

// useUp lets strangers commit until the ids before id have been given out.
func (st *stage) useUp(ctx context.Context, id uint64) error {
	_, err := st.direct.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN WHILE pg_current_xact_id() < '%d' LOOP COMMIT; END LOOP; END $$`, id))
	return err
}

// stopWALWriter keeps the log of commits that are not synchronous, as all are here, in memory:
// until somebody fills 4 MB.
func (st *stage) stopWALWriter(t *testing.T) (pid int) {
	_, err := st.direct.Exec(t.Context(), `CHECKPOINT`) // what was there before stays
	require.NoError(t, err)
	err = st.direct.QueryRow(t.Context(), `SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'`).Scan(&pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	return pid
}

// crash kills a session as a system does that is out of memory. The server ends all others, and
// recovers from what of the log has reached the disk.
func (st *stage) crash(ctx context.Context, walWriter int) error {
	var conns [2]*pgx.Conn
	for i := range conns {
		conn, err := pgx.ConnectConfig(ctx, st.direct.Config().ConnConfig)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		conns[i] = conn
	}
	victim, witness := conns[0], conns[1]
	if err := syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := witness.Exec(ctx, `SELECT pg_sleep(60)`); err == nil {
		return errors.New("the server has not noticed")
	}
	if err := syscall.Kill(walWriter, syscall.SIGCONT); err != nil { // to find that it is to quit
		return err
	}
	st.direct.Reset()
	return st.awaitServer(ctx)
}

// awaitServer returns once the server takes connections again.
func (st *stage) awaitServer(ctx context.Context) error {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		err := st.direct.Ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-again.C:
		}
	}
}

// failOver makes the server at url the primary for everybody.
func (st *stage) failOver(ctx context.Context, url string) error {
	direct, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	st.direct = direct
	for _, w := range st.worlds {
		w.direct = direct
		if err := w.proxy.Redirect(url); err != nil {
			return err
		}
	}
	_, err = direct.Exec(ctx, `SELECT pg_promote()`)
	return err
}
