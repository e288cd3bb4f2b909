package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Key is the name of a key in Redis, for tools that look at leases: commands for operators, alerts,
// tests.
//
//	lease:v1:{tenant/table:12}:owner
type Key struct {
	Kind      string // "lease" or "semaphore", as in [TraceStart]; "" is "lease"
	Namespace string // [Config.Namespace]
	Resource  string // as Redis stores it: with [Config.HashResources], its digest, "sha256:..."
	Field     string // "owner", "fence", "queue", "alive", or "ended"; see docs/protocol.md
}

// String returns the name as Redis has it.
func (k Key) String() string { return protocol.Key(k).String() }

// Pattern returns a glob for Redis's SCAN. It matches the keys of all resources that begin with
// k.Resource. If k.Namespace is "", it also matches keys of other namespaces; [ParseKey] tells them
// apart.
func (k Key) Pattern() string { return protocol.Key(k).Pattern() }

// ParseKey reads what [Key.String] writes. It returns false for any other name.
func ParseKey(name string) (Key, bool) {
	k, ok := protocol.ParseKey(name)
	return Key(k), ok
}

// Resource returns an id of the form type:id, such as "table:12".
func Resource(kind string, id any) string { return kind + ":" + fmt.Sprint(id) }

// ClientName returns a name for the connections of this process, such as "booking@host-7:4711". Put
// it into the options of the client:
//
//	redis.NewClient(&redis.Options{Addr: addr, ClientName: lease.ClientName("booking")})
//
// CLIENT LIST then shows the program, host and process of each connection. Waiters are woken
// through the connections with sub or ssub above 0. This package does not name connections itself,
// because the client is the caller's. Characters that Redis does not allow in a name become "_".
func ClientName(program string) string {
	host, _, _ := strings.Cut(hostname(), ".")
	return strings.Map(printable, fmt.Sprintf("%s@%s:%d", program, host, os.Getpid()))
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// thisProcess is the default label of holders. A host name that is too long keeps its end, in which
// pods differ.
var thisProcess = sync.OnceValue(func() string { return labelOf(filepath.Base(os.Args[0]), hostname(), os.Getpid()) })

func labelOf(program, host string, pid int) string {
	host, _, _ = strings.Cut(host, ".")
	label := func() string { return fmt.Sprintf("%s@%s:%d", program, host, pid) }
	tooLong := func() bool { return len(protocol.EscapeLabel(label())) > protocol.MostLabel }
	for len(program) > 8 && tooLong() {
		program = program[:len(program)-1]
	}
	for tooLong() && host != "" {
		host = host[1:]
	}
	for tooLong() {
		program = program[:len(program)-1]
	}
	return label()
}

// printable keeps the characters that CLIENT SETNAME accepts, from "!" to "~".
func printable(r rune) rune {
	if r < '!' || r > '~' {
		return '_'
	}
	return r
}
