// Package pgproxy stands between a client and a real Postgres server, understands the messages that pass, and cuts the
// connection exactly where a test wants it cut: at a message, within one, or at any byte of an answer; by closing, by a
// reset, or by a silence in which everything is dropped. It also counts round trips.
package pgproxy

import (
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// Verdict is what happens to a message.
type Verdict int

const (
	Pass     Verdict = iota
	Cut              // close both connections; the message is not delivered
	CutHalf          // close both connections after the first half of the message
	CutAfter         // close both connections once the message has been delivered
	Orphan           // close the client's connection only; the message is not delivered and the server learns of nothing
	Reset            // Cut, but the client finds its connection reset instead of closed
	Silence          // deliver nothing more on this connection, in either direction; both ends stay open and learn of nothing
)

// Proxy passes everything until told otherwise.
type Proxy struct {
	listener net.Listener
	server   atomic.Pointer[string] // host:port
	url      string
	turns    atomic.Int64
	hung     atomic.Bool

	mu        sync.Mutex
	toServer  func(pgproto3.FrontendMessage) Verdict // under mu, as is its call: called for one message at a time
	toClient  func(pgproto3.BackendMessage) Verdict  // the same
	orphans   []net.Conn                             // connections that Sever ends
	delivered int                                    // bytes that clients have got
	limit     int                                    // of delivered, for verdict to befall; negative if there is none
	verdict   Verdict
	fired     bool
}

// New starts a proxy in front of the server that serverURL names. It ends with the test.
func New(t testing.TB, serverURL string) *Proxy {
	t.Helper()
	u, err := url.Parse(serverURL)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &Proxy{listener: listener, limit: -1}
	server := u.Host
	p.server.Store(&server)
	u.Host = listener.Addr().String()
	p.url = u.String()
	t.Cleanup(p.close)
	go p.serve()
	return p
}

// URL is serverURL with the proxy's address.
func (p *Proxy) URL() string { return p.url }

// Redirect sends connections that come later to another server, as after a fail-over.
func (p *Proxy) Redirect(serverURL string) error {
	u, err := url.Parse(serverURL)
	if err == nil {
		p.server.Store(&u.Host)
	}
	return err
}

// Turns is how often a client has handed the word to the server, with a Query or a Sync: the round trips so far.
func (p *Proxy) Turns() int64 { return p.turns.Load() }

// OnClient judges every message from a client, until the next call. nil passes all.
func (p *Proxy) OnClient(judge func(pgproto3.FrontendMessage) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toServer = judge
}

// OnServer judges every message from the server, until the next call. nil passes all.
func (p *Proxy) OnServer(judge func(pgproto3.BackendMessage) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.toClient = judge
}

// Delivered is how many bytes clients have got so far.
func (p *Proxy) Delivered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delivered
}

// AfterBytes lets clients get n more bytes. What comes next from the server meets verdict, on its connection and once:
// Cut, Reset, Orphan or Silence. So n from 0 to the length of an answer less 1 covers every place in it. A negative n
// takes that back.
func (p *Proxy) AfterBytes(n int, verdict Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit, p.verdict, p.fired = -1, verdict, false
	if n >= 0 {
		p.limit = p.delivered + n
	}
}

// Fired reports whether the verdict of the last AfterBytes has befallen a connection.
func (p *Proxy) Fired() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fired
}

// Hang is a network that drops everything: it silences the connections that are there for good, and those that come
// later until Hang(false).
func (p *Proxy) Hang(on bool) { p.hung.Store(on) }

// Sever ends the connections to the server that were kept open for clients that are gone, and both ends of those that
// are silent.
func (p *Proxy) Sever() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.orphans {
		_ = conn.Close()
	}
	p.orphans = nil
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.Sever()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.relay(client)
	}
}

// link is one client's connection and the one to the server behind it.
type link struct {
	*Proxy
	client, server net.Conn
	silent         atomic.Bool
	backend        *pgproto3.Backend  // speaks with the client
	frontend       *pgproto3.Frontend // speaks with the server
}

func (p *Proxy) relay(client net.Conn) {
	server, err := net.Dial("tcp", *p.server.Load())
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{
		Proxy: p, client: client, server: server,
		backend:  pgproto3.NewBackend(client, client),
		frontend: pgproto3.NewFrontend(server, server),
	}
	if err := l.startup(); err != nil {
		l.cut()
		return
	}
	go l.answers()
	l.requests()
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (l *link) orphan() {
	l.keep(l.server)
	_ = l.client.Close()
}

// keep leaves the peers of conns in the dark until Sever.
func (l *link) keep(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orphans = append(l.orphans, conns...)
}

func (l *link) silence() {
	if !l.silent.Swap(true) {
		l.keep(l.server, l.client)
	}
}

// isSilent silences the link as well if the whole network hangs.
func (l *link) isSilent() bool {
	if l.hung.Load() {
		l.silence()
	}
	return l.silent.Load()
}

// startup passes the first message. Encryption is refused: we could not read it.
func (l *link) startup() error {
	for {
		msg, err := l.backend.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		if l.isSilent() {
			_, err := io.Copy(io.Discard, l.client)
			return errors.Join(io.EOF, err)
		}
		switch msg.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := l.client.Write([]byte("N")); err != nil {
				return err
			}
			continue
		}
		raw, err := msg.Encode(nil)
		if err != nil {
			return err
		}
		if _, err := l.server.Write(raw); err != nil {
			return err
		}
		if _, cancel := msg.(*pgproto3.CancelRequest); cancel {
			_, err := io.Copy(io.Discard, l.server)
			return errors.Join(io.EOF, err)
		}
		return nil
	}
}

func (l *link) requests() {
	for {
		msg, err := l.backend.Receive()
		if err != nil {
			l.lost()
			return
		}
		if l.isSilent() {
			continue
		}
		switch msg.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			l.turns.Add(1)
		}
		l.mu.Lock()
		verdict := Pass
		if l.toServer != nil {
			verdict = l.toServer(msg)
		}
		l.mu.Unlock()
		if !l.deliver(verdict, l.server, msg) {
			return
		}
	}
}

func (l *link) answers() {
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
		l.expectPassword(msg)
		l.mu.Lock()
		verdict := Pass
		if l.toClient != nil {
			verdict = l.toClient(msg)
		}
		l.mu.Unlock()
		if !l.deliver(verdict, l.client, msg) {
			return
		}
	}
}

// deliver carries out verdict and reports whether the link still stands.
func (l *link) deliver(verdict Verdict, to net.Conn, msg pgproto3.Message) bool {
	raw, err := msg.Encode(nil)
	if err != nil {
		panic("bug: a message that was received cannot be encoded: " + err.Error())
	}
	switch verdict {
	case Pass, CutAfter:
	case CutHalf:
		raw = raw[:len(raw)/2]
	default:
		return l.befall(verdict)
	}
	if verdict != Pass {
		verdict = Cut
	}
	if to == l.client {
		raw, verdict = l.count(raw, verdict)
	}
	if _, err := to.Write(raw); err != nil {
		l.cut()
		return false
	}
	return verdict == Pass || l.befall(verdict)
}

// count takes raw for delivered, up to the limit of AfterBytes, whose verdict then replaces verdict.
func (l *link) count(raw []byte, verdict Verdict) ([]byte, Verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit >= 0 && l.delivered+len(raw) > l.limit {
		raw, verdict = raw[:l.limit-l.delivered], l.verdict
		l.limit, l.fired = -1, true
	}
	l.delivered += len(raw)
	return raw, verdict
}

// befall carries out a verdict that delivers nothing more.
func (l *link) befall(verdict Verdict) bool {
	switch verdict {
	case Orphan:
		l.orphan()
	case Silence:
		l.silence()
		return true
	case Reset:
		_ = l.client.(*net.TCPConn).SetLinger(0)
		l.cut()
	default:
		l.cut()
	}
	return false
}

// lost passes on that the client is gone, unless the server is to be kept in the dark.
func (l *link) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, orphan := range l.orphans {
		if orphan == l.server {
			return
		}
	}
	_ = l.server.Close()
}

// expectPassword tells the decoder of the client's messages which kind of password comes next: they share one type byte.
func (l *link) expectPassword(msg pgproto3.BackendMessage) {
	switch msg.(type) {
	case *pgproto3.AuthenticationCleartextPassword:
		_ = l.backend.SetAuthType(pgproto3.AuthTypeCleartextPassword)
	case *pgproto3.AuthenticationMD5Password:
		_ = l.backend.SetAuthType(pgproto3.AuthTypeMD5Password)
	case *pgproto3.AuthenticationSASL:
		_ = l.backend.SetAuthType(pgproto3.AuthTypeSASL)
	case *pgproto3.AuthenticationSASLContinue:
		_ = l.backend.SetAuthType(pgproto3.AuthTypeSASLContinue)
	}
}
