package slog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/lease"
	fencelog "github.com/fencedb/fencedb/observe/slog"
)

// journal is a tracer and what it has logged, without the time.
type journal struct {
	*fencelog.Tracer
	text bytes.Buffer
}

func newJournal(level slog.Level, cfg fencelog.Config) *journal {
	j := new(journal)
	j.Tracer = fencelog.New(slog.New(slog.NewTextHandler(&j.text, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), cfg)
	return j
}

// said returns what was logged since the last call.
func (j *journal) said() string {
	defer j.text.Reset()
	return j.text.String()
}

var id = uuid.MustParse("11111111-0000-4000-8000-000000000000")

func started(op lease.Op) lease.TraceStart {
	return lease.TraceStart{Op: op, Kind: "lease", Resource: "table:12", Resources: 1, LeaseID: id, Token: 7}
}

func (j *journal) lease(e lease.TraceEnd) {
	j.TraceLeaseEnd(j.TraceLeaseStart(context.Background(), e.TraceStart), e)
}

func (j *journal) wrote(op fencedb.Op, err error, grants ...fencedb.Grant) {
	s := fencedb.TraceStart{Op: op, Grants: grants}
	j.TraceWriteEnd(j.TraceWriteStart(context.Background(), s),
		fencedb.TraceEnd{TraceStart: s, Took: time.Second, Err: err})
}

func grant(resource string, token int64) fencedb.Grant {
	return fencedb.NewGrant(resource, token, id, fencedb.NoEnd)
}

func TestALeaseAsItIsLogged(t *testing.T) {
	t.Parallel()
	j := newJournal(slog.LevelDebug, fencelog.Config{})
	j.TraceLeaseStart(t.Context(), started(lease.OpWait))
	require.Equal(t, `level=DEBUG msg="waiting for a lease" resource=table:38ab6cd93feb lease_id=11111111 token=7`+"\n", j.said())

	s := started(lease.OpAcquire)
	s.Namespace, s.Kind, s.Resources = "eu", "semaphore", 2
	j.lease(lease.TraceEnd{TraceStart: s, Took: time.Second, ValidFor: 9 * time.Second})
	require.Equal(t, `level=DEBUG msg="lease granted" resource=table:38ab6cd93feb resources=2 kind=semaphore namespace=eu lease_id=11111111 token=7 took=1s ttl=9s`+"\n", j.said())

	j.lease(lease.TraceEnd{TraceStart: started(lease.OpHold), Took: time.Second, Err: fmt.Errorf("table:12: %w", lease.ErrExpired)})
	require.Equal(t, `level=WARN msg="lease lost" resource=table:38ab6cd93feb lease_id=11111111 token=7 took=1s cause=expired see=leases-are-lost`+"\n", j.said(), "the text names the resource")
}

func TestAWriteAsItIsLogged(t *testing.T) {
	t.Parallel()
	j := newJournal(slog.LevelDebug, fencelog.Config{})
	j.wrote(fencedb.OpWrite, &fencedb.StaleError{Resource: "table:12", Token: 7, Stored: 9}, grant("sku:1", 3), grant("table:12", 7))
	require.Equal(t, `level=WARN msg="write refused" resource=table:38ab6cd93feb lease_id=11111111 token=7 stored=9 resources=2 took=1s cause=stale see=late-writes-are-refused`+"\n", j.said())
	j.wrote(fencedb.OpWrite, nil, grant("table:12", 7), grant("sku:1", 3))
	require.Equal(t, `level=DEBUG msg="write committed" resource=table:38ab6cd93feb lease_id=11111111 token=7 resources=2 took=1s`+"\n", j.said())
	j.wrote(fencedb.OpEnter, nil, grant("table:12", 7))
	require.Equal(t, `level=DEBUG msg="fence entered" resource=table:38ab6cd93feb lease_id=11111111 token=7 took=1s`+"\n", j.said())
	j.wrote(fencedb.OpSeal, nil, grant("table:12", 7))
	require.Equal(t, `level=DEBUG msg="fence sealed" resource=table:38ab6cd93feb lease_id=11111111 token=7 took=1s`+"\n", j.said())
	j.wrote(fencedb.OpCommit, fencedb.ErrStale, grant("table:12", 7))
	require.Empty(t, j.said())
}

func TestNamesAndTextsOnRequest(t *testing.T) {
	t.Parallel()
	type key struct{}
	j := newJournal(slog.LevelDebug, fencelog.Config{Unredacted: true, Attrs: func(ctx context.Context) []slog.Attr {
		id, _ := ctx.Value(key{}).(string)
		return []slog.Attr{slog.String("request_id", id)}
	}})
	j.TraceLeaseEnd(context.WithValue(t.Context(), key{}, "r-17"), lease.TraceEnd{
		TraceStart: started(lease.OpHold), Err: fmt.Errorf("table:12: %w", lease.ErrLost),
	})
	require.Equal(t, `level=WARN msg="lease lost" resource=table:12 lease_id=11111111 token=7 took=0s cause=lost err="table:12: lease: lost" see=leases-are-lost request_id=r-17`+"\n", j.said())
}

// Of several resources the one that was taken.
func TestWhoIsHeldOffLearnsByWhat(t *testing.T) {
	t.Parallel()
	j := newJournal(slog.LevelDebug, fencelog.Config{Unredacted: true})
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpAcquire), Err: &lease.HeldError{Resource: "sku:2"}})
	require.Contains(t, j.said(), "resource=sku:2")
}

// Two hundred callers who want the same thing must not fill a log.
func TestContentionIsNotShoutedAbout(t *testing.T) {
	t.Parallel()
	j := newJournal(slog.LevelInfo, fencelog.Config{})
	for _, err := range []error{nil, &lease.HeldError{}} {
		j.lease(lease.TraceEnd{TraceStart: started(lease.OpWait), Err: err})
		j.lease(lease.TraceEnd{TraceStart: started(lease.OpAcquire), Err: err})
	}
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpExtend)})
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpRelease)})
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpHold), Err: lease.ErrReleased})
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpAcquire), Err: fmt.Errorf("given up: %w", context.Canceled)})
	j.lease(lease.TraceEnd{TraceStart: started(lease.OpExtend), Err: fmt.Errorf("given up: %w", context.Canceled)})
	j.wrote(fencedb.OpWrite, nil, grant("table:12", 7))
	j.wrote(fencedb.OpWrite, errors.New("the table is taken"), grant("table:12", 7))
	require.Empty(t, j.said())
}

func TestLevels(t *testing.T) {
	t.Parallel()
	j := newJournal(slog.LevelDebug, fencelog.Config{})
	level := func() string {
		text, _, _ := bytes.Cut([]byte(j.said()), []byte(" "))
		return string(text)
	}
	for op, levels := range map[lease.Op]map[error]string{
		lease.OpAcquire: {lease.ErrUnreachable: "WARN", &lease.RefusedError{Code: "READONLY"}: "WARN"},
		lease.OpHold:    {lease.ErrExpired: "WARN", lease.ErrUnreachable: "WARN", lease.ErrLost: "WARN", lease.ErrRevoked: "INFO"},
		lease.OpExtend:  {lease.ErrUnreachable: "WARN", &lease.RefusedError{Code: "READONLY"}: "WARN", lease.ErrLost: "", lease.ErrExpired: "", lease.ErrRevoked: ""},
		lease.OpRelease: {lease.ErrUnreachable: "WARN", &lease.RefusedError{Code: "READONLY"}: "WARN", lease.ErrLost: "WARN", lease.ErrRevoked: "DEBUG"},
		lease.OpRevoke:  {nil: "INFO", lease.ErrUnreachable: "WARN"},
		lease.OpRaise:   {nil: "INFO", lease.ErrUnreachable: "WARN"},
	} {
		for err, wanted := range levels {
			j.lease(lease.TraceEnd{TraceStart: started(op), Err: err})
			if wanted != "" {
				wanted = "level=" + wanted
			}
			require.Equal(t, wanted, level(), "%s: %v", op, err)
		}
	}
	for err, wanted := range map[error]string{
		fencedb.ErrStale: "WARN", fencedb.ErrLeaseOver: "WARN", fencedb.ErrBusy: "WARN", fencedb.ErrNoToken: "ERROR",
		fencedb.ErrWrongResource: "ERROR", fencedb.ErrInvalidGrant: "ERROR", fencedb.ErrCommitUnknown: "ERROR", errors.New("own"): "DEBUG",
	} {
		for _, op := range []fencedb.Op{fencedb.OpWrite, fencedb.OpEnter, fencedb.OpOutcome} {
			j.wrote(op, err, grant("table:12", 7))
			require.Equal(t, "level="+wanted, level(), "%s: %v", op, err)
		}
	}
	for err, wanted := range map[error]string{
		fencedb.ErrStale: "WARN", fencedb.ErrBusy: "WARN", fencedb.ErrCommitUnknown: "WARN", errors.New("Postgres's"): "DEBUG",
	} {
		j.wrote(fencedb.OpSeal, err, grant("table:12", 7))
		require.Regexp(t, `^level=`+wanted+` msg="fence not sealed" `, j.said(), err)
	}
}

func TestWhatIsNotLoggedCostsNothing(t *testing.T) {
	j := newJournal(slog.LevelInfo, fencelog.Config{})
	e := lease.TraceEnd{TraceStart: started(lease.OpAcquire)}
	write := fencedb.TraceEnd{TraceStart: fencedb.TraceStart{Op: fencedb.OpWrite, Grants: []fencedb.Grant{grant("table:12", 7)}}}
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		j.TraceLeaseEnd(j.TraceLeaseStart(ctx, e.TraceStart), e)
		j.TraceWriteEnd(j.TraceWriteStart(ctx, write.TraceStart), write)
	}))
}

func Example() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	logs := fencelog.New(logger, fencelog.Config{})

	// lease.Config{Tracers: []lease.Tracer{logs}} makes an issuer tell it, for example:
	logs.TraceLeaseEnd(context.Background(), lease.TraceEnd{
		TraceStart: lease.TraceStart{
			Op: lease.OpHold, Kind: "lease", Resource: "table:12", Token: 41,
			LeaseID: uuid.MustParse("0f8fad5b-d9cb-469f-a165-70867728950e"),
		},
		Err: lease.ErrExpired,
	})
	// Output: level=WARN msg="lease lost" resource=table:38ab6cd93feb lease_id=0f8fad5b token=41 took=0s cause=expired see=leases-are-lost
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// Whoever has only the line finds what the server said, and the section that has the cure.
func TestALineHasTheCodeOfTheServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		log  func(j *journal)
		says string
	}{
		{func(j *journal) {
			j.lease(lease.TraceEnd{TraceStart: started(lease.OpAcquire), Err: fmt.Errorf("lease: %w", &lease.RefusedError{Code: "NOPERM"})})
		}, "cause=refused code=NOPERM see=redis-answers-and-refuses"},
		{func(j *journal) {
			j.lease(lease.TraceEnd{TraceStart: started(lease.OpAcquire), Err: &lease.RefusedError{Code: "OOM"}})
		}, "code=OOM"},
		{func(j *journal) {
			j.wrote(fencedb.OpWrite, fmt.Errorf("%w: %w", fencedb.ErrNoToken, &pgconn.PgError{Code: "FN002"}), grant("table:12", 7))
		}, "cause=no_token code=FN002 see=a-write-had-no-grant-for-its-row"},
		{func(j *journal) { j.wrote(fencedb.OpWrite, &pgconn.PgError{Code: "42501"}, grant("table:12", 7)) }, "cause=error code=42501 see=rights-are-missing"},
		{func(j *journal) {
			j.wrote(fencedb.OpWrite, fmt.Errorf("fencedb: the database has no fences yet; run migrations.Up: %w", &pgconn.PgError{Code: "3F000"}), grant("table:12", 7))
		}, "level=DEBUG msg=\"write failed\" resource=table:38ab6cd93feb lease_id=11111111 token=7 took=1s cause=error code=3F000 see=postgres-fails-over\n"},
		{func(j *journal) { j.wrote(fencedb.OpEnter, &pgconn.PgError{Code: "25006"}, grant("table:12", 7)) }, "code=25006 see=postgres-fails-over"},
		{func(j *journal) { j.wrote(fencedb.OpWrite, ofPQ("25006"), grant("table:12", 7)) }, "code=25006 see=postgres-fails-over"},
		{func(j *journal) { j.wrote(fencedb.OpWrite, ofPgdriver("25006"), grant("table:12", 7)) }, "code=25006 see=postgres-fails-over"},
		{func(j *journal) { j.wrote(fencedb.OpWrite, new(pgconn.ConnectError), grant("table:12", 7)) }, "cause=error see=postgres-fails-over"},
		{func(j *journal) { j.wrote(fencedb.OpSeal, errors.New("failed to connect"), grant("table:12", 7)) }, "level=DEBUG msg=\"fence not sealed\" resource=table:38ab6cd93feb lease_id=11111111 token=7 took=1s cause=error see=a-lease-could-not-be-sealed\n"},
		{func(j *journal) { j.wrote(fencedb.OpWrite, errors.New("the table is taken"), grant("table:12", 7)) }, "cause=error\n"},
	} {
		j := newJournal(slog.LevelDebug, fencelog.Config{})
		c.log(j)
		require.Contains(t, j.said(), c.says)
	}
}

type ofPQ string

func (e ofPQ) SQLState() string { return string(e) }
func (e ofPQ) Error() string    { return "pq: refused" }

type ofPgdriver string

func (e ofPgdriver) Field(letter byte) string { return map[byte]string{'C': string(e)}[letter] }
func (e ofPgdriver) Error() string            { return "pgdriver: refused" }
