package faulty

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// PostgresProxy stands between clients and a Postgres server and reads the messages in both
// directions. It can end a connection at a message, within one, or at any byte of an answer. It
// passes everything until told otherwise.
type PostgresProxy struct {
	upstream atomic.Pointer[string] // host:port of the server
	url      string
	hung     atomic.Bool

	mu       sync.Mutex
	toServer func(pgproto3.FrontendMessage) Fate // under mu, as is its call: called for one message at a time
	toClient func(pgproto3.BackendMessage) Fate  // the same
	rounds   func(Round) Fate                    // the same
	commits  func(sql []string) Fate             // the same
	orphans  []net.Conn                          // connections that Sever ends
	left     int                                 // bytes that clients get before fate strikes; negative: it does not
	fate     Fate
	fired    bool
	paused   *pause // waits for its statement; nil if none
}

// pause is what Pause was called with.
type pause struct {
	at   func(sql []string) bool
	then func()
}

// NewPostgresProxy starts a proxy in front of the server that serverURL names. It ends with the
// test.
func NewPostgresProxy(t testing.TB, serverURL string) *PostgresProxy {
	t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &PostgresProxy{left: -1}
	p.upstream.Store(new(u.Host))
	u.Host = listener.Addr().String()
	p.url = u.String()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Sever()
	})
	go accept(listener, func(client net.Conn) { go p.relay(client) })
	return p
}

// URL is serverURL with the proxy's address.
func (p *PostgresProxy) URL() string { return p.url }

// Redirect sends connections that come later to another server, as after a fail-over.
func (p *PostgresProxy) Redirect(serverURL string) error {
	u, err := url.Parse(serverURL)
	if err == nil {
		p.upstream.Store(&u.Host)
	}
	return err
}

// OnClient judges every message from a client, until the next call. nil passes all.
func (p *PostgresProxy) OnClient(judge func(pgproto3.FrontendMessage) Fate) {
	set(&p.mu, &p.toServer, judge)
}

// OnServer judges every message from the server, until the next call. nil passes all.
func (p *PostgresProxy) OnServer(judge func(pgproto3.BackendMessage) Fate) {
	set(&p.mu, &p.toClient, judge)
}

// Round is a round trip of one connection that the server has answered completely.
type Round struct {
	SQL      []string // what was executed in it, also where it was prepared before
	Failed   bool
	TxStatus byte // as in [pgproto3.ReadyForQuery]
}

// OnRound judges every round trip at the last message of its answer, until the next call. nil
// passes all.
func (p *PostgresProxy) OnRound(judge func(Round) Fate) { set(&p.mu, &p.rounds, judge) }

// AfterBytes lets clients get n more bytes. The fate strikes the connection of what comes next from
// the server, once: Cut, Reset, Orphan or Silence; or Garble, which inverts the bits of one byte
// and lets everything after it pass. The values of n from 0 to the length of an answer less 1 cover
// every place in it. A negative n cancels it.
func (p *PostgresProxy) AfterBytes(n int, fate Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.fate, p.fired = n, fate, false
}

// Fired reports whether the fate of the last AfterBytes has struck.
func (p *PostgresProxy) Fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// OnCommit judges every answer of COMMIT, with what its round trip has executed, until the next
// call. nil passes all. It passes over transactions that began as READ ONLY.
func (p *PostgresProxy) OnCommit(judge func(sql []string) Fate) { set(&p.mu, &p.commits, judge) }

// Pause stops the next round trip of whose statements at is true, before any of it reaches the
// server, and calls then. When that has returned, the messages go on. Other connections are not
// stopped, so then can use the server. A call replaces the one before.
func (p *PostgresProxy) Pause(at func(sql []string) bool, then func()) {
	set(&p.mu, &p.paused, &pause{at, then})
}

// Hang simulates a network that drops everything: it silences the connections that exist for good,
// and new ones until Hang(false).
func (p *PostgresProxy) Hang(on bool) { p.hung.Store(on) }

// Sever ends the connections to the server that were kept open for clients that are gone, and both
// ends of those that are silent.
func (p *PostgresProxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.orphans {
		_ = conn.Close()
	}
	p.orphans = nil
}

// postgresLink is a link with the decoders of its messages.
type postgresLink struct {
	*PostgresProxy
	link
	silent   atomic.Bool
	kept     atomic.Bool        // is the connection to the server, whatever the client does
	backend  *pgproto3.Backend  // speaks with the client
	frontend *pgproto3.Frontend // speaks with the server

	statements map[string]string // SQL by the names of prepared statements
	executed   []string          // in the round trip that is being read
	sent       [][]string        // the same, of each round trip that is not answered yet; under mu
	failed     bool              // the one that is being answered
	readOnly   bool              // the open transaction began so; under mu
	held       []byte            // what was read of a round trip while a Pause waits
}

func (p *PostgresProxy) relay(client net.Conn) {
	server, err := net.Dial("tcp", *p.upstream.Load())
	if err != nil {
		_ = client.Close()
		return
	}
	l := &postgresLink{
		PostgresProxy: p, link: link{client, server},
		backend:  pgproto3.NewBackend(client, client),
		frontend: pgproto3.NewFrontend(server, server), statements: make(map[string]string),
	}
	if !l.startup() {
		l.cut()
		return
	}
	go l.answers()
	l.requests()
}

// keep keeps conns open until Sever, so that their peers notice nothing.
func (l *postgresLink) keep(conns ...net.Conn) {
	l.kept.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orphans = append(l.orphans, conns...)
}

// isSilent silences the link as well if the whole network hangs.
func (l *postgresLink) isSilent() bool {
	if l.hung.Load() {
		l.strike(Silence)
	}
	return l.silent.Load()
}

// startup passes the first message, and reports whether a session follows. It refuses encryption,
// which would hide the messages.
func (l *postgresLink) startup() bool {
	for {
		msg, err := l.backend.ReceiveStartupMessage()
		if err != nil {
			return false
		}
		if l.isSilent() {
			_, _ = io.Copy(io.Discard, l.client)
			return false
		}
		switch msg.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			_, _ = l.client.Write([]byte("N")) // or there is no next message
			continue
		}
		l.frontend.Send(msg)
		err = l.frontend.Flush()
		if _, cancel := msg.(*pgproto3.CancelRequest); cancel {
			_, _ = io.Copy(io.Discard, l.server)
			return false
		}
		return err == nil
	}
}

func (l *postgresLink) requests() {
	for {
		msg, err := l.backend.Receive()
		if err != nil {
			if !l.kept.Load() {
				_ = l.server.Close()
			}
			return
		}
		if l.isSilent() {
			continue
		}
		if sql := l.sql(msg); sql != "" {
			l.executed = append(l.executed, sql)
		}
		round := l.executed
		switch msg.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			l.mu.Lock()
			l.sent = append(l.sent, l.executed)
			l.mu.Unlock()
			l.executed = nil
		}
		fate := judged(&l.mu, &l.toServer, msg)
		if fate == Pass && l.hold(msg, round) {
			continue
		}
		if !l.deliver(fate, l.server, msg) {
			return
		}
	}
}

// sql is what msg executes, "" for nothing.
func (l *postgresLink) sql(msg pgproto3.FrontendMessage) string {
	switch msg := msg.(type) {
	case *pgproto3.Parse:
		l.statements[msg.Name] = msg.Query
	case *pgproto3.Bind:
		return l.statements[msg.PreparedStatement]
	case *pgproto3.Query:
		return msg.String
	}
	return ""
}

// answered judges the round trip that msg ends, if it does.
func (l *postgresLink) answered(msg pgproto3.BackendMessage) Fate {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch msg := msg.(type) {
	case *pgproto3.ErrorResponse:
		l.failed = true
	case *pgproto3.CommandComplete:
		if l.commits != nil && string(msg.CommandTag) == "COMMIT" && len(l.sent) > 0 && !l.readOnly {
			return l.commits(l.sent[0])
		}
	case *pgproto3.ReadyForQuery:
		if len(l.sent) == 0 { // of the session's beginning
			return Pass
		}
		round := Round{l.sent[0], l.failed, msg.TxStatus}
		l.sent, l.failed = l.sent[1:], false
		l.readOnly = msg.TxStatus != 'I' && (l.readOnly || slices.ContainsFunc(round.SQL, beginsReadOnly))
		if l.rounds != nil {
			return l.rounds(round)
		}
	}
	return Pass
}

func beginsReadOnly(sql string) bool {
	sql = strings.ToLower(sql)
	return strings.HasPrefix(sql, "begin") && strings.Contains(sql, "read only")
}

// hold keeps msg back while a Pause waits, until its round trip, which executes sql, is complete;
// then all of it goes on, after the Pause if it is meant.
func (l *postgresLink) hold(msg pgproto3.FrontendMessage, sql []string) (held bool) {
	l.mu.Lock()
	waiting := l.paused != nil
	l.mu.Unlock()
	if !waiting && len(l.held) == 0 {
		return false
	}
	l.held, _ = msg.Encode(l.held)
	switch msg.(type) {
	case *pgproto3.Parse, *pgproto3.Bind, *pgproto3.Describe, *pgproto3.Execute, *pgproto3.Close:
		return true
	}
	if due := l.due(sql); due != nil {
		var then sync.WaitGroup
		then.Go(due.then) // a test may end in it
		then.Wait()
	}
	_, _ = l.server.Write(l.held) // the answers end if it fails
	l.held = nil
	return true
}

// due is the Pause that waits for these statements, which is then no longer waiting.
func (l *postgresLink) due(sql []string) *pause {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := l.paused
	if due == nil || !due.at(sql) {
		return nil
	}
	l.paused = nil
	return due
}

func (l *postgresLink) answers() {
	for {
		msg, err := l.frontend.Receive()
		if err != nil {
			if !l.isSilent() {
				_ = l.client.Close()
			}
			return
		}
		if l.isSilent() {
			continue
		}
		if auth, ok := msg.(pgproto3.AuthenticationResponseMessage); ok {
			raw, _ := auth.Encode(nil)                                  // with its kind behind type and length
			_ = l.backend.SetAuthType(binary.BigEndian.Uint32(raw[5:])) // all kinds of password share one type byte
		}
		fate := judged(&l.mu, &l.toClient, msg)
		if end := l.answered(msg); fate == Pass {
			fate = end
		}
		if !l.deliver(fate, l.client, msg) {
			return
		}
	}
}

// deliver carries out fate and reports whether the link is still open.
func (l *postgresLink) deliver(fate Fate, to net.Conn, msg pgproto3.Message) bool {
	raw, _ := msg.Encode(nil) // was received, and so can be encoded
	switch fate {
	case Pass:
	case CutHalf:
		raw, fate = raw[:len(raw)/2], Cut
	case CutAfter:
		fate = Cut
	default:
		return l.strike(fate)
	}
	if to == l.client {
		raw, fate = l.count(raw, fate)
	}
	if _, err := to.Write(raw); err != nil {
		l.cut()
		return false
	}
	return fate == Pass || l.strike(fate)
}

// count counts raw as delivered. Where the bytes of AfterBytes end, the fate of AfterBytes replaces
// fate.
func (l *postgresLink) count(raw []byte, fate Fate) ([]byte, Fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.left; at >= 0 {
		l.left -= len(raw)
		l.fired = l.left < 0
		switch {
		case l.fired && l.fate == Garble:
			raw[at] ^= 0xff
		case l.fired:
			raw, fate = raw[:at], l.fate
		}
	}
	return raw, fate
}

// strike carries out a fate that delivers nothing more.
func (l *postgresLink) strike(fate Fate) bool {
	switch fate {
	case Orphan:
		l.keep(l.server)
		_ = l.client.Close()
	case Silence:
		if !l.silent.Swap(true) {
			l.keep(l.server, l.client)
		}
		return true
	case Reset:
		l.reset()
	default:
		l.cut()
	}
	return false
}
