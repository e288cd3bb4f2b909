package feed

import (
	"fmt"
	"os"

	"github.com/fencedb/fencedb/observe/internal/outcome"
)

// Option changes what [New], [Follow] or [Replay] do; each says for which it counts.
type Option func(*options)

type options struct {
	key    string
	worker string
	hashed bool
}

// Namespace keeps the events of several tenants or environments apart in one Redis: give it the Namespace of the issuers that
// the feed hears of. For [New], [Follow] and [Replay]. Defaults to none.
func Namespace(name string) Option {
	return func(o *options) {
		if name != "" {
			o.key = "fencedb:v1:" + name + ":events"
		}
	}
}

// Worker is what the events call this process. For [New]. Defaults to host:pid.
func Worker(name string) Option { return func(o *options) { o.worker = name } }

// HashResources publishes the first 12 hexadecimal digits of the SHA-256 of resources instead of their names, for names that are
// personal data; logs of observe/slog show the same digits. For [New]. Defaults to off.
func HashResources() Option { return func(o *options) { o.hashed = true } }

func newOptions(opts []Option) options {
	o := options{key: "fencedb:v1:events"}
	for _, opt := range opts {
		opt(&o)
	}
	if o.worker == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.worker = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	return o
}

func (o options) name(resource string) string {
	if !o.hashed {
		return resource
	}
	return outcome.Hashed(resource)
}
