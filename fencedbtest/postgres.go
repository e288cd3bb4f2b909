package fencedbtest

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencedb/fencedb/internal/faulty"
)

// Postgres stands between the code under test and your Postgres. It passes everything on until a
// fault is set. Any driver works.
//
// A fault that was set and never happened fails the test at its end, unless it has failed already.
// A new call replaces an earlier fault of the same kind that has not happened yet.
type Postgres struct {
	proxy       *faulty.PostgresProxy
	paused, cut atomic.Pointer[fault] // the last of each kind; nil if none
}

// fault is a fault that a test has set.
type fault struct {
	happened atomic.Bool
	never    string // the failure if it never happens
}

// NewPostgres listens in front of the server of a URL such as
// postgres://user:password@host:5432/database. Connections to it are not encrypted, whatever the
// sslmode of the URL. It ends with the test.
func NewPostgres(t testing.TB, serverURL string) *Postgres {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil || u.Hostname() == "" {
		t.Fatal("fencedbtest: the address of Postgres must be a URL with a host, such as postgres://user:password@host:5432/database")
	}
	if u.Port() == "" {
		u.Host += ":5432"
	}
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery = query.Encode()
	p := &Postgres{proxy: faulty.NewPostgresProxy(t, u.String())}
	t.Cleanup(func() {
		for _, f := range []*fault{p.paused.Load(), p.cut.Load()} {
			if f != nil && !f.happened.Load() && !t.Failed() && !t.Skipped() {
				t.Errorf("fencedbtest: %s", f.never)
			}
		}
	})
	return p
}

// URL is the address for the code under test.
func (p *Postgres) URL() string { return p.proxy.URL() }

// Pause stops the code under test before the next statement whose SQL contains text, calls then,
// and lets the code go on: by now its decisions are as old as after a pause of the process. If the
// statement is the first of its transaction, BEGIN and enter travel with it and are stopped, too.
// TxSQL and guard.Desk's Tx enter in a round trip of its own: stop them at "fencedb.enter". A later
// statement is stopped behind the fence, where nobody else can enter: there Overtake fails the
// test.
//
// Pause passes over the seal of a lease, as by package guard, because it comes before any decision.
// Only the connection with the statement is stopped, so then can use others. then is called once.
func (p *Postgres) Pause(text string, then func()) {
	f := &fault{never: fmt.Sprintf("Pause: no statement contained %q", text)}
	p.paused.Store(f)
	contains := func(sql string) bool { return strings.Contains(sql, text) }
	p.proxy.Pause(func(sql []string) bool { return slices.ContainsFunc(sql, contains) && !seals(sql) }, func() {
		f.happened.Store(true)
		then()
	})
}

// CutCommit loses the answer to the next COMMIT: the server commits, and the connection ends. Tx,
// Exec and their like look up the outcome and return nil, or ErrCommitted if a result was lost.
// Code that commits by itself gets an error for work that was done. CutCommit passes over the
// COMMIT of a seal, and of a READ ONLY transaction, as Repository.Read is.
func (p *Postgres) CutCommit() { p.cutNext("CutCommit") }

// CutCommitAndServer is CutCommit, and from then on the server cannot be reached, until restore is
// called. So the outcome cannot be looked up: the write returns ErrCommitUnknown, five seconds
// after the end of the lease or of the context, whichever is earlier. A short lease.Config.TTL,
// such as time.Second, or a context that you cancel shortens the wait.
func (p *Postgres) CutCommitAndServer() (restore func()) {
	down := p.cutNext("CutCommitAndServer")
	p.proxy.OnClient(func(pgproto3.FrontendMessage) faulty.Fate {
		if down.Load() {
			return faulty.Cut
		}
		return faulty.Pass
	})
	return func() { p.proxy.OnClient(nil) }
}

// cutNext cuts the next COMMIT for the function with this name. It returns a flag that is set once
// this has happened.
func (p *Postgres) cutNext(name string) *atomic.Bool {
	f := &fault{never: name + ": nothing was committed through this address"}
	p.cut.Store(f)
	cut := func(committed bool, sql []string) faulty.Fate {
		if !committed || seals(sql) || f.happened.Swap(true) {
			return faulty.Pass
		}
		return faulty.Cut
	}
	p.proxy.OnCommit(func(sql []string) faulty.Fate { return cut(true, sql) })
	p.proxy.OnRound(func(r faulty.Round) faulty.Fate {
		return cut(!r.Failed && r.TxStatus == 'I' && slices.ContainsFunc(r.SQL, enters), r.SQL)
	})
	return &f.happened
}

// seals reports whether a round trip enters, commits and does nothing else, as fencedb.Seal does.
// Setting synchronous_commit counts as nothing.
func seals(sql []string) bool {
	entered, committed := false, false
	for statement := range strings.SplitSeq(strings.ToLower(strings.Join(sql, ";")), ";") {
		switch statement = strings.TrimSpace(statement); {
		case statement == "", strings.HasPrefix(statement, "begin"),
			strings.Contains(statement, "'synchronous_commit'"):
		case enters(statement):
			entered = true
		case statement == "commit":
			committed = true
		default:
			return false
		}
	}
	return entered && committed
}

// enters reports whether sql enters a fence. If such a batch is the transaction, as that of Exec,
// the server has committed when it is ready for the next query.
func enters(sql string) bool {
	return strings.Contains(sql, "fencedb.enter")
}
