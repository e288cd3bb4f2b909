package faulty

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"
)

// Weather is what a [Network] does to the bytes that it carries. The zero value carries them at
// once.
type Weather struct {
	Delay  time.Duration // of every byte, in each direction
	Jitter time.Duration // up to so much more, drawn anew for each piece

	HoldRequests bool // what clients send waits until the weather changes
	HoldReplies  bool // what servers send waits until the weather changes
	LoseReplies  bool // what servers send is thrown away, and the connection is closed
	Refuse       bool // connections are cut, what was on its way is lost, and new ones are closed at once
}

// Network carries connections from clients to any server, and disturbs them. It knows no protocol,
// so it also carries TLS and any number of servers: a client says first which one it wants. Clients
// reach it through a socket in the file system, so that the rights of its directory say who may.
type Network struct {
	listener net.Listener
	ended    sync.WaitGroup

	mu      sync.Mutex
	weather Weather
	changed chan struct{} // closed and replaced with every change
	links   map[link]bool
}

// NewNetwork listens on socket, the path of a file that it creates. Close ends it.
func NewNetwork(socket string) (*Network, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	n := &Network{listener: listener, changed: make(chan struct{}), links: map[link]bool{}}
	n.ended.Go(func() {
		accept(listener, func(client net.Conn) { n.ended.Go(func() { n.carry(client) }) })
	})
	return n, nil
}

// Through returns a dial function that reaches servers through the network on socket.
func Through(socket string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if _, err := conn.Write([]byte(network + " " + addr + "\n")); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
}

// Set changes the weather. What was held goes on if the new weather does not hold it.
func (n *Network) Set(w Weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.weather = w
	close(n.changed)
	n.changed = make(chan struct{})
	if w.Refuse {
		for l := range n.links {
			l.cut()
		}
	}
}

// Close ends the network and all its connections.
func (n *Network) Close() error {
	err := n.listener.Close()
	n.Set(Weather{Refuse: true}) // which also refuses those that were just accepted
	n.ended.Wait()
	return err
}

func (n *Network) now() (Weather, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.weather, n.changed
}

// carry carries one connection until either end closes it.
func (n *Network) carry(client net.Conn) {
	defer client.Close()
	_ = client.SetReadDeadline(time.Now().Add(time.Minute)) // for a client that dies before it says where to
	requests := bufio.NewReader(client)
	line, err := requests.ReadString('\n')
	_ = client.SetReadDeadline(time.Time{})
	network, addr, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	if weather, _ := n.now(); err != nil || weather.Refuse {
		return
	}
	server, err := net.DialTimeout(network, addr, time.Minute)
	if err != nil {
		return
	}
	l := link{client, server}
	defer l.cut()
	if !n.open(l) {
		return
	}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		n.pump(l, requests, server, func(w Weather) (hold, lose bool) { return w.HoldRequests, false })
	})
	pumps.Go(func() {
		n.pump(l, server, client, func(w Weather) (hold, lose bool) { return w.HoldReplies, w.LoseReplies })
	})
	pumps.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, l)
}

// open notes the link, unless the weather refuses connections by now.
func (n *Network) open(l link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.weather.Refuse {
		n.links[l] = true
	}
	return !n.weather.Refuse
}

// pump carries one direction until either end closes it or what it carries is lost. What was read
// at once waits at once; what comes meanwhile waits behind it.
func (n *Network) pump(l link, from io.Reader, to io.Writer, fate func(Weather) (hold, lose bool)) {
	defer l.cut()
	piece := make([]byte, 16<<10)
	for {
		count, err := from.Read(piece)
		if err != nil {
			return
		}
		weather, changed := n.now()
		late := weather.Delay
		if weather.Jitter > 0 {
			late += rand.N(weather.Jitter)
		}
		if late > 0 {
			<-time.After(late)
			weather, changed = n.now()
		}
		hold, lose := fate(weather)
		for ; hold && !lose; hold, lose = fate(weather) {
			<-changed
			weather, changed = n.now()
		}
		if lose {
			return
		}
		if _, err := to.Write(piece[:count]); err != nil {
			return
		}
	}
}
