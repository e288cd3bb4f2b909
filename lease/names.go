package lease

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Key is the name of a key in Redis, for tools that look at what is held: operators' commands,
// alerts, tests.
//
//	lease:v1:{tenant/table:12}:owner
type Key struct {
	Kind      string // "lease" or "semaphore", as in [TraceStart]; "" is "lease"
	Namespace string // [Config.Namespace]
	Resource  string // as it is in Redis: with [Config.HashResources] its digest, "sha256:..."
	Field     string // "owner", "fence", "queue", "alive", or "ended"; docs/protocol.md says what each holds
}

// String is the name.
func (k Key) String() string { return protocol.Key(k).String() }

// Pattern is a glob for Redis's SCAN that matches the names of all resources that begin with
// k.Resource. Without a namespace it also matches those of other namespaces; [ParseKey] tells them
// apart.
func (k Key) Pattern() string { return protocol.Key(k).Pattern() }

// ParseKey reads what [Key.String] writes. It answers false for any other name.
func ParseKey(name string) (Key, bool) {
	k, ok := protocol.ParseKey(name)
	return Key(k), ok
}

// Resource builds an id of the form type:id, such as "table:12".
func Resource(kind string, id any) string { return kind + ":" + fmt.Sprint(id) }

// ClientName is a name for this process's connections, such as "booking@host-7:4711", to be given
// to the client in its options:
//
//	redis.NewClient(&redis.Options{Addr: addr, ClientName: lease.ClientName("booking")})
//
// CLIENT LIST then tells the program, host and process of a connection; those with sub or ssub
// above 0 are where waiters are woken. This package names no connections, because the client is the
// caller's. Characters that Redis does not allow in a name become "_".
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

// thisProcess is the label of holders that were given none. Of a long host name the end is kept,
// where pods differ.
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

// printable keeps what CLIENT SETNAME takes: from "!" to "~".
func printable(r rune) rune {
	if r < '!' || r > '~' {
		return '_'
	}
	return r
}
