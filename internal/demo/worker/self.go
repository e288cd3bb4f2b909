package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// selfVar makes this program a worker: its value is a kind, a space and the worker's configuration.
// It is a variable and not an argument, because a URL may hold a password, and ps shows arguments
// to everybody.
const selfVar = "FENCEDB_DEMO_WORKER"

// Start runs this very program as a worker of a kind and returns when it is ready. The program, or
// the test binary, must call [Become] first thing. What [Spawn] says holds.
func Start[E any](ctx context.Context, kind string, config any) (*Process[E], error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), selfVar+"="+kind+" "+string(text))
	return Spawn[E](ctx, command)
}

// Life is what a worker of a kind does, until its orders end. Its first event says that it is
// ready.
type Life func(ctx context.Context, self *Self) error

// Become makes this process a worker and ends it, if [Start] has started it as one. Otherwise it
// does nothing.
func Become(kinds map[string]Life) {
	kind, config, ok := strings.Cut(os.Getenv(selfVar), " ")
	if !ok {
		return
	}
	redis.SetLogger(Silent{})
	err := fmt.Errorf("there is no worker of kind %q", kind)
	if life := kinds[kind]; life != nil {
		self := &Self{config: config, orders: json.NewDecoder(os.Stdin), out: json.NewEncoder(os.Stdout)}
		err = life(context.Background(), self)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Silent keeps the Redis client from writing to the terminal that a Redis is down, where a demo has
// shut it down.
type Silent struct{}

// Printf drops the line.
func (Silent) Printf(context.Context, string, ...any) {}

// Self is a worker seen from inside. It is safe for concurrent use, except Order.
type Self struct {
	config string
	orders *json.Decoder

	mu  sync.Mutex
	out *json.Encoder // guarded by mu
}

// Config reads what the worker was started with.
func (s *Self) Config(config any) error { return json.Unmarshal([]byte(s.config), config) }

// Order waits for the next order. io.EOF says that there will be none: the worker has to end.
func (s *Self) Order(order any) error { return s.orders.Decode(order) }

// Tell sends an event. It cannot fail in a way that matters: when nobody listens any more, the
// orders end too.
func (s *Self) Tell(event any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.out.Encode(event)
}
