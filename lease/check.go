package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/internal/protocol"
)

// Health is what [Issuer.Check] has found.
type Health struct {
	Servers []ServerHealth
	Config  []Warning // about the issuer's own [Config]
}

// ServerHealth is the state of one server that grants leases: the primary, each master of a
// Cluster.
type ServerHealth struct {
	Addr     string // empty if the client does not tell
	Version  string // "7.2.4"
	Role     string // "master" or "slave"
	Eviction string // maxmemory-policy
	Limited  bool   // whether there is a maxmemory
	AOF      bool   // whether every write is logged
	Replicas int    // connected
	// Clock is how far the server's clock is ahead of [Config.Clock], without its answer of this
	// process's, give or take half of the round trips.
	Clock     time.Duration
	RoundTrip time.Duration

	// Warnings are for people: leases are granted, but are less safe or less useful than they could
	// be.
	Warnings []Warning
}

// Warning is one of them. Programs ask for its code.
type Warning struct {
	Code WarningCode
	Text string
}

// WarningCode tells warnings apart.
type WarningCode string

// The codes of all warnings.
const (
	WarnUnlogged WarningCode = "unlogged" // no log of writes: a crash forgets leases
	WarnEviction WarningCode = "eviction" // an eviction policy that does harm once there is a maxmemory
	WarnReplicas WarningCode = "replicas" // a primary that is cut off from its replicas goes on granting
	WarnClock    WarningCode = "clock"    // the clock differs from [Config.Clock], or that could not be asked
	WarnVersion  WarningCode = "version"  // older than this package is tested with
	WarnHidden   WarningCode = "hidden"   // INFO is forbidden, or does not tell

	WarnTTL       WarningCode = "ttl"       // [Config.TTL] is an hour or more
	WarnUnbounded WarningCode = "unbounded" // [Config.MaxHold] is [Unlimited]
)

// Warnings are those of the configuration and of all servers, each of these with its server's
// address.
func (h Health) Warnings() []string {
	var all []string
	for _, w := range h.Config {
		all = append(all, w.Text)
	}
	for _, s := range h.Servers {
		for _, w := range s.Warnings {
			all = append(all, strings.TrimPrefix(s.Addr+": "+w.Text, ": "))
		}
	}
	return all
}

// Check reports whether leases can be granted and kept, for readiness probes: nil means yes. The
// error is [ErrUnreachable], another error that an acquisition would return, such as [ErrClosed],
// or
// [ErrUnfit] with the reason, such as a policy by which Redis may evict leases, or a disk that it
// cannot save to. Health is returned with an error too, except after [Issuer.Close]. Where the
// server does not tell, because an ACL or a provider forbids INFO, that is a warning.
//
// Check grants nothing, takes a few round
// trips, and is cheap enough for a probe every few seconds. It takes five seconds at most, whatever
// ctx allows.
func (i *Issuer) Check(ctx context.Context) (Health, error) {
	if err := i.ready(); err != nil {
		return Health{}, err
	}
	if i.registry.closing() {
		return Health{}, fmt.Errorf("lease: check: %w", ErrClosed)
	}
	ctx, cancel := protocol.Within(ctx, protocol.Patience)
	defer cancel()
	servers, err := i.store.servers(ctx)
	clock := askReference(ctx, i.cfg.Clock)
	h := Health{Servers: make([]ServerHealth, len(servers)), Config: i.cfg.warnings()}
	for n, found := range together(servers, func(_ int, server *redis.Client) (ServerHealth, error) {
		return checkServer(ctx, server, clock)
	}) {
		h.Servers[n] = found.Value
		if found.Err != nil && err == nil {
			err = fmt.Errorf("lease: check %s: %w", h.Servers[n].Addr, found.Err)
		}
	}
	return h, err
}

func (c Config) warnings() (all []Warning) {
	if c.TTL >= protocol.LongTTL {
		all = append(all, Warning{WarnTTL, fmt.Sprintf("TTL is %v: a holder that dies blocks its resource for that long; "+
			"take seconds, which renewal makes as long as the work", c.TTL)})
	}
	if c.MaxHold == Unlimited {
		all = append(all, Warning{WarnUnbounded, "MaxHold is Unlimited: a holder that is stuck keeps its resource for ever; " +
			"that is for a role which one process has for as long as it lives, as with Lead"})
	}
	return all
}

// minVersion is the first that the protocol is tested with.
const minVersion = 7

func checkServer(ctx context.Context, client *redis.Client, clock reference) (ServerHealth, error) {
	s := ServerHealth{Addr: client.Options().Addr}
	if err := s.askClock(ctx, client, clock); err != nil {
		return s, err
	}
	if err := s.askInfo(ctx, client); err != nil {
		return s, err
	}
	return s, s.askToWrite(ctx, client)
}

func (s *ServerHealth) warn(code WarningCode, format string, args ...any) {
	s.Warnings = append(s.Warnings, Warning{code, fmt.Sprintf(format, args...)})
}

// askInfo reads INFO. The error is what makes the server unfit.
func (s *ServerHealth) askInfo(ctx context.Context, client *redis.Client) error {
	// All sections in one reply: naming several at once is not understood by every version.
	text, err := protocol.Bounded(ctx, func() (string, error) { return client.Info(ctx).Result() })
	switch {
	case err != nil && redis.IsPermissionError(err):
		s.warn(WarnHidden, "INFO is forbidden: role, eviction policy and persistence were not checked")
		return nil
	case err != nil:
		return protocol.Failed(ctx, "info", err)
	}
	info := fields(text)
	s.Version = info["redis_version"]
	s.Role = info["role"]
	s.Eviction = info["maxmemory_policy"]
	s.Limited = info["maxmemory"] != "" && info["maxmemory"] != "0"
	s.AOF = info["aof_enabled"] == "1"
	s.Replicas, _ = strconv.Atoi(info["connected_slaves"])

	major, _, _ := strings.Cut(s.Version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < minVersion {
		s.warn(WarnVersion, "version %s is older than %d, with which this package is tested", s.Version, minVersion)
	}
	if !s.AOF {
		s.warn(WarnUnlogged, "appendonly is off: after a crash it forgets leases that are held")
	}
	if good, known := info["min_slaves_good_slaves"]; s.Replicas > 0 && (!known || good == "") {
		s.warn(WarnReplicas, "it has replicas but no min-replicas-to-write: cut off from them it goes on granting leases that a fail-over forgets")
	}
	evicts := s.Eviction != "" && s.Eviction != "noeviction"
	switch {
	case s.Role != "" && s.Role != "master":
		return fmt.Errorf("%w: %w", ErrUnfit, &RefusedError{Code: protocol.ReadOnly})
	case evicts && s.Limited:
		return fmt.Errorf("%w: maxmemory-policy is %s, so leases that are held may be evicted; set it to noeviction", ErrUnfit, s.Eviction)
	case evicts:
		s.warn(WarnEviction, "maxmemory-policy is %s: once there is a maxmemory, leases that are held may be evicted", s.Eviction)
	}
	return nil
}

// fields reads the lines "name:value" of INFO.
func fields(info string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// reference is the clock with which the servers' clocks are compared.
type reference struct {
	name      string
	ahead     time.Duration // of this process's, give or take half of roundTrip
	roundTrip time.Duration
	err       error // it could not be asked
}

var errNoClock = errors.New("no answer in time")

func askReference(ctx context.Context, clock func(context.Context) (time.Time, error)) reference {
	if clock == nil {
		return reference{name: "this process's"}
	}
	r := reference{name: "the data store's"}
	end, _ := ctx.Deadline() // the other half is for Redis
	asking, cancel := protocol.Within(ctx, time.Until(end)/2)
	defer cancel()
	r.ahead, r.roundTrip, r.err = compare(func() (time.Time, error) {
		at, err := protocol.Bounded(asking, func() (time.Time, error) { return clock(asking) })
		if err != nil && asking.Err() != nil {
			err = errNoClock
		}
		return at, err
	})
	return r
}

// compare measures how far a clock is ahead of this process's, at the middle of the round trip.
func compare(ask func() (time.Time, error)) (ahead, roundTrip time.Duration, err error) {
	sent := time.Now()
	told, err := ask()
	roundTrip = time.Since(sent)
	if err != nil {
		return 0, roundTrip, err
	}
	return told.Sub(sent.Add(roundTrip / 2)), roundTrip, nil
}

func (s *ServerHealth) askClock(ctx context.Context, client *redis.Client, clock reference) error {
	ahead, roundTrip, err := compare(func() (time.Time, error) {
		return protocol.Bounded(ctx, func() (time.Time, error) { return client.Time(ctx).Result() })
	})
	if err != nil {
		return protocol.Failed(ctx, "time", err)
	}
	s.RoundTrip, s.Clock = roundTrip, ahead-clock.ahead
	switch {
	case clock.err != nil:
		s.warn(WarnClock, "its clock was not compared with %s: %v", clock.name, clock.err)
	case s.Clock.Abs() > protocol.MaxClockDifference+(roundTrip+clock.roundTrip)/2:
		s.warn(WarnClock, "its clock differs from %s by %v", clock.name, s.Clock.Round(time.Millisecond))
	}
	return nil
}

// idle is a script that may write, by its first line, but does not. Redis refuses such a script
// before it runs whenever it would refuse a write: while it loads, without memory or replicas, or
// if it could not save. So no setting has to be read. The script touches no key, so any server of a
// Cluster answers.
const idle = "#!lua\nreturn 1"

// askToWrite finds out whether the server takes writes now.
func (s *ServerHealth) askToWrite(ctx context.Context, client *redis.Client) error {
	_, err := protocol.Bounded(ctx, func() (any, error) { return client.Eval(ctx, idle, nil).Result() })
	if err == nil {
		return nil
	}
	if answered, ok := errors.AsType[redis.Error](err); ok && strings.HasPrefix(answered.Error(), "ERR ") { // older than 7, or an imitation
		s.warn(WarnVersion, "it does not tell whether it takes writes: it does not know scripts as of version %d", minVersion)
		return nil
	}
	err = protocol.Failed(ctx, "a script that may write", err)
	if protocol.IsRefused(err, protocol.CannotSave) {
		return fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return err
}
