package faulty

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Fate is what a [Proxy] does to one request of a script.
type Fate int

const (
	Pass    Fate = iota
	Lose         // the server never sees it; the connection ends
	Reset        // the same, and the connection is reset
	Cut          // the server acts on it; the connection ends instead of the reply
	Half         // the server acts on it; the connection ends after the first half of the reply
	Swallow      // the server never sees it; nothing comes back, and the connection stays
	Hold         // the connection ends; the server sees it at the next call of Deliver
	Answer       // the server never sees it; the text comes back
	Garble       // the server acts on it; the text comes back
)

// Here stands, in an Answer, for the address of the server that was asked.
const Here = "<here>"

// Verdict is the fate of a request, and what belongs to it.
type Verdict struct {
	Fate Fate
	Text string // for Answer and Garble, as it goes over the wire
	Then func() // called once the fate has been carried out; may be nil
}

// Proxy stands between clients and real servers, one connection behind each connection, and knows the scripts that pass
// by name. It passes everything until told otherwise. Its Dial fits the Dialer of any client's options, also for
// Sentinel and Cluster.
type Proxy struct {
	mu     sync.Mutex
	judge  func(script string) Verdict // under mu, as is its call
	gate   chan struct{}               // closed when traffic flows; nil: it does
	held   []held
	links  map[*link]bool
	closed bool
}

// held is a request that has left its client and not reached its server.
type held struct {
	addr    string
	request []byte
}

// OnScript judges every call of a script, named as its source is in its first line, until the next call. Nil passes
// all.
func (p *Proxy) OnScript(judge func(script string) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

// Stop holds up everything from now on, as a server does that is stopped: connections can be made and written to, and
// all that was written reaches the server after Go, even of clients that are gone.
func (p *Proxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// Go ends Stop.
func (p *Proxy) Go() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
}

// Deliver sends the servers what was held, and returns when they have answered.
func (p *Proxy) Deliver() error {
	p.mu.Lock()
	all := p.held
	p.held = nil
	p.mu.Unlock()
	for _, h := range all {
		if err := h.deliver(); err != nil {
			return err
		}
	}
	return nil
}

func (h held) deliver() error {
	server, err := net.Dial("tcp", h.addr)
	if err != nil {
		return err
	}
	defer server.Close()
	if _, err := server.Write(h.request); err != nil {
		return err
	}
	_, err = readValue(bufio.NewReader(server))
	return err
}

// Close ends all connections and makes no more.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for l := range p.links {
		l.cut()
	}
}

// Dial connects a client to the server at addr.
func (p *Proxy) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	server, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	near, far, err := pair(ctx)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	l := &link{Proxy: p, addr: addr, client: far, server: server, requests: bufio.NewReader(far), replies: bufio.NewReader(server)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.cut()
		return near, nil
	}
	if p.links == nil {
		p.links = make(map[*link]bool)
	}
	p.links[l] = true
	go l.relay()
	return near, nil
}

// pair makes two ends of one TCP connection, with deadlines and resets as a real one has them.
func pair(ctx context.Context) (near, far net.Conn, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	var d net.Dialer
	if near, err = d.DialContext(ctx, "tcp", listener.Addr().String()); err != nil {
		return nil, nil, err
	}
	if far, err = listener.Accept(); err != nil {
		_ = near.Close()
	}
	return near, far, err
}

// link is one client's connection and the one to the server behind it.
type link struct {
	*Proxy
	addr              string
	client, server    net.Conn
	requests, replies *bufio.Reader
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// relay takes one request at a time, so that what it answers by itself keeps its place.
func (l *link) relay() {
	defer func() {
		l.cut()
		l.mu.Lock()
		delete(l.links, l)
		l.mu.Unlock()
	}()
	for {
		request, err := readValue(l.requests)
		if err != nil {
			return
		}
		l.wait()
		words := bulks(request, 2)
		verb := strings.ToLower(words[0])
		if strings.HasSuffix(verb, "subscribe") {
			_, _ = l.server.Write(request)
			l.passAll()
			return
		}
		verdict := Verdict{}
		if verb == "eval" || verb == "evalsha" {
			name, known := l.script(verb, words[1])
			if !known {
				_, _ = l.client.Write([]byte("-NOSCRIPT this proxy has not seen it in full\r\n"))
				continue
			}
			verdict = l.verdict(name)
		}
		if !l.carryOut(verdict, request) {
			return
		}
	}
}

// wait returns when traffic flows.
func (l *link) wait() {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	if gate != nil {
		<-gate
	}
}

func (l *link) verdict(script string) Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.judge == nil {
		return Verdict{}
	}
	return l.judge(script)
}

// carryOut reports whether the link still stands.
func (l *link) carryOut(v Verdict, request []byte) (stands bool) {
	if v.Then != nil {
		defer v.Then()
	}
	switch v.Fate {
	case Answer:
		_, err := io.WriteString(l.client, strings.ReplaceAll(v.Text, Here, l.addr))
		return err == nil
	case Swallow:
		_, _ = io.Copy(io.Discard, l.requests)
		return false
	case Hold:
		l.mu.Lock()
		l.held = append(l.held, held{l.addr, request})
		l.mu.Unlock()
		fallthrough
	case Lose:
		l.cut()
		return false
	case Reset:
		_ = l.client.(*net.TCPConn).SetLinger(0)
		l.cut()
		return false
	}
	if _, err := l.server.Write(request); err != nil {
		return false
	}
	reply, err := readValue(l.replies)
	if err != nil {
		return false
	}
	switch v.Fate {
	case Cut:
		reply = nil
	case Half:
		reply = reply[:len(reply)/2]
	case Garble:
		reply = []byte(v.Text)
	}
	_, err = l.client.Write(reply)
	if v.Fate == Cut || v.Fate == Half {
		l.cut()
	}
	return err == nil && v.Fate != Cut && v.Fate != Half
}

// passAll is for a connection that has subscribed: what comes back is no answer to a request any more.
func (l *link) passAll() {
	go func() {
		defer l.cut()
		l.pass(l.client, l.replies)
	}()
	l.pass(l.server, l.requests)
}

func (l *link) pass(to io.Writer, from io.Reader) {
	some := make([]byte, 4096)
	for {
		n, err := from.Read(some)
		if err != nil {
			return
		}
		l.wait()
		if _, err := to.Write(some[:n]); err != nil {
			return
		}
	}
}

// sources are the scripts that any proxy has seen in full, by digest; loaded are the servers that have them by now.
var (
	sources sync.Map // digest to source
	loaded  sync.Map // address and digest
)

var header = regexp.MustCompile(`(?m)^-- (\w+)\.lua:`)

// script gives the name of a script: that of the last source in it. It sees to it that the server knows the script, so
// that its fate is not that of a digest which the server does not know. It answers false for a digest that no proxy has
// seen in full.
func (l *link) script(verb, body string) (name string, known bool) {
	digest := body
	if verb == "eval" {
		sum := sha1.Sum([]byte(body))
		digest = hex.EncodeToString(sum[:])
		sources.Store(digest, body)
	}
	source, known := sources.Load(digest)
	if !known {
		return "", false
	}
	if _, has := loaded.LoadOrStore(l.addr+digest, true); !has {
		load := "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$" + strconv.Itoa(len(source.(string))) + "\r\n" + source.(string) + "\r\n"
		_ = held{l.addr, []byte(load)}.deliver() // if that fails, the server says so to the client
	}
	headers := header.FindAllStringSubmatch(source.(string), -1)
	if headers == nil {
		return "", true
	}
	return headers[len(headers)-1][1], true
}

// readValue reads one value of Redis's protocol, whole, as it came over the wire.
func readValue(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	if err != nil {
		n = 0 // no number, or none that counts
	}
	values := 0
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return line, nil
		}
		body := make([]byte, n+2)
		_, err := io.ReadFull(r, body)
		return append(line, body...), err
	case '*', '~', '>':
		values = n
	case '%', '|':
		values = 2 * n
	}
	if line[0] == '|' {
		values++ // attributes come before the value that they belong to
	}
	for range values {
		value, err := readValue(r)
		if err != nil {
			return nil, err
		}
		line = append(line, value...)
	}
	return line, nil
}

// bulks are the first words of a request; empty ones where it has fewer.
func bulks(request []byte, most int) []string {
	words := make([]string, most)
	rest := request[bytes.IndexByte(request, '\n')+1:]
	for i := range words {
		head := bytes.IndexByte(rest, '\n')
		if head < 1 {
			break
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(rest[1:head])))
		if err != nil || n < 0 || head+1+n > len(rest) {
			break
		}
		words[i] = string(rest[head+1 : head+1+n])
		rest = rest[head+3+n:]
	}
	return words
}
