package faulty

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// Here is replaced, in the text of an Answer, with the address of the server.
const Here = "<here>"

// Verdict is the fate of a call of a script.
type Verdict struct {
	Fate Fate
	Text string // for Answer and Garble, as it is sent to the client
	Then func() // called after the fate has been carried out; may be nil
}

// Once gives the fate to the next call of a script about a resource only, see [Call.Is].
func Once(script, resource string, fate Fate) func(Call) Verdict {
	return func(c Call) Verdict {
		if !c.Is(script, resource) {
			return Verdict{}
		}
		now := fate
		fate = Pass
		return Verdict{Fate: now}
	}
}

// RedisProxy stands between clients and Redis servers, with one connection to a server for each
// connection of a client, and knows scripts by name. It passes everything until told otherwise. Its
// Dial is a Dialer for the options of any client, also for Sentinel and Cluster. A connection to a
// server ends with the one to the client.
type RedisProxy struct {
	mu    sync.Mutex
	judge func(Call) Verdict // guarded by mu, also while it runs
	gate  chan struct{}      // closed by Go; nil: not stopped
	waits sync.WaitGroup     // requests that have met a gate; under mu while there is one
	held  []held
}

// held is a request that was taken from its client and not yet sent to its server.
type held struct {
	addr    string
	request []byte
}

// OnScript sets the function that decides the verdict on every call of a script. Nil passes all
// calls.
func (p *RedisProxy) OnScript(judge func(Call) Verdict) { set(&p.mu, &p.judge, judge) }

// Stop holds up everything from now on, like a stopped server: clients can connect and write, and
// what they wrote reaches the server after Go, even if the client is gone by then.
func (p *RedisProxy) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gate == nil {
		p.gate = make(chan struct{})
	}
}

// Go ends Stop. It returns when the servers have answered what had arrived.
func (p *RedisProxy) Go() {
	p.mu.Lock()
	if p.gate != nil {
		close(p.gate)
		p.gate = nil
	}
	p.mu.Unlock()
	p.waits.Wait()
}

// Deliver sends the held requests to their servers and returns when the servers have answered.
func (p *RedisProxy) Deliver() error {
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

// Dial connects a client to the server at addr.
func (p *RedisProxy) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	server, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	near, far, err := pair(ctx)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	l := &redisLink{RedisProxy: p, link: link{far, server}, addr: addr,
		requests: bufio.NewReader(far), replies: bufio.NewReader(server)}
	go l.relay()
	return near, nil
}

// pair returns the two ends of a TCP connection, which has deadlines and resets, unlike a net.Pipe.
func pair(ctx context.Context) (near, far net.Conn, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	if near, err = new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String()); err != nil {
		return nil, nil, err
	}
	if far, err = listener.Accept(); err != nil {
		_ = near.Close()
	}
	return near, far, err
}

// redisLink is a link with the decoders of its requests and replies.
type redisLink struct {
	*RedisProxy
	link
	addr              string
	requests, replies *bufio.Reader
}

// relay handles one request at a time, so that its own answers come in the right order.
func (l *redisLink) relay() {
	defer l.cut()
	for {
		request, err := readValue(l.requests)
		if err != nil {
			return
		}
		through := l.wait()
		verb, call, request := readCall(request)
		if strings.HasSuffix(verb, "subscribe") {
			_, _ = l.server.Write(request)
			through()
			l.passAll()
			return
		}
		verdict := Verdict{}
		switch {
		case request == nil:
			verdict = Verdict{Fate: Answer, Text: "-NOSCRIPT this proxy has not seen it in full\r\n"}
		case verb == "eval", verb == "evalsha":
			verdict = judged(&l.mu, &l.judge, call)
		}
		if verdict.Fate == Silence {
			through() // nobody answers it
		}
		open := l.carryOut(verdict, request)
		through()
		if !open {
			return
		}
	}
}

// wait returns when the proxy is not stopped. Go waits for what waited here until it is through.
func (l *redisLink) wait() (through func()) {
	l.mu.Lock()
	gate := l.gate
	if gate != nil {
		l.waits.Add(1)
	}
	l.mu.Unlock()
	if gate == nil {
		return func() {}
	}
	<-gate
	return sync.OnceFunc(l.waits.Done)
}

// carryOut reports whether the link is still open.
func (l *redisLink) carryOut(v Verdict, request []byte) (open bool) {
	if v.Then != nil {
		defer v.Then()
	}
	switch v.Fate {
	case Answer:
		_, err := io.WriteString(l.client, strings.ReplaceAll(v.Text, Here, l.addr))
		return err == nil
	case Silence:
		_, _ = io.Copy(io.Discard, l.requests)
		return false
	case Hold:
		l.mu.Lock()
		l.held = append(l.held, held{l.addr, request})
		l.mu.Unlock()
		fallthrough
	case Cut:
		l.cut()
		return false
	case Reset:
		l.reset()
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
	case CutAfter:
		reply = nil
	case HalfReply:
		reply = reply[:len(reply)/2]
	case Garble:
		reply = []byte(v.Text)
	}
	_, err = l.client.Write(reply)
	if err != nil || v.Fate == CutAfter || v.Fate == HalfReply {
		l.cut()
		return false
	}
	return true
}

// passAll serves a connection that has subscribed: its messages are no longer answers to requests.
func (l *redisLink) passAll() {
	go func() {
		defer l.cut()
		_, _ = io.Copy(gated{l, l.client}, l.replies)
	}()
	_, _ = io.Copy(gated{l, l.server}, l.requests)
}

// gated writes when the proxy is not stopped.
type gated struct {
	link *redisLink
	to   io.Writer
}

func (g gated) Write(some []byte) (int, error) {
	defer g.link.wait()()
	return g.to.Write(some)
}

// readCall returns the verb of a request with arguments, and the call if it is one. That is made
// one with the source, so that a verdict is never spent on a NOSCRIPT error. For a digest that
// no proxy has seen in full, the request is nil.
func readCall(request []byte) (verb string, c Call, withSource []byte) {
	words := strings.Split(string(request), "\r\n") // *5 $7 EVALSHA $40 digest, and the rest
	if len(words) < 6 {
		return "", c, request
	}
	verb = strings.ToLower(words[2])
	var plain []any // without the lengths; one with line ends in it is cut at these
	for n := 2; n < len(words); n += 2 {
		plain = append(plain, words[n])
	}
	c, ok := callOf(plain)
	if ok && verb == "evalsha" {
		known, _ := scripts.Load(words[4])
		s, seen := known.(source)
		if !seen {
			return verb, c, nil
		}
		request = fmt.Appendf(nil, "%s\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n%s",
			words[0], len(s.text), s.text, strings.Join(words[5:], "\r\n"))
	}
	return verb, c, request
}

// readValue reads one complete value of the Redis protocol and returns its bytes.
func readValue(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(string(bytes.TrimSpace(line[1:]))) // 0: not a length
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
	case '%':
		values = 2 * n
	case '|':
		values = 2*n + 1 // attributes come before the value that they belong to
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
