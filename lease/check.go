package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
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
	// Clock is how far the server's clock is ahead of this process's, give or take half of the round
	// trip.
	Clock     time.Duration
	RoundTrip time.Duration

	// Warnings are for people: leases are granted, but are less safe or less useful than they could
	// be.
	Warnings []Warning
}

// Warning is one finding of [Issuer.Check]. Programs ask for its code.
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
	WarnClock    WarningCode = "clock"    // the clock differs from this process's
	WarnVersion  WarningCode = "version"  // older than this package is tested with
	WarnHidden   WarningCode = "hidden"   // INFO is forbidden, or does not tell

	WarnTTL       WarningCode = "ttl"       // [Config.TTL] is an hour or more
	WarnUnbounded WarningCode = "unbounded" // [Config.MaxHold] is [Unlimited]
)

// Warnings returns the warnings about the configuration and about all servers; the latter name the
// address of their server.
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
// or [ErrUnfit] with the reason, such as a policy by which Redis may evict leases, or a disk that
// it cannot save to. Health is returned with an error too, except after [Issuer.Close]. If an ACL
// or a provider forbids INFO, that is a warning.
//
// On each server Check acquires a lease on a resource of its own, "fencedb.check:" and a random id,
// waits for it with a second call, releases it, and checks that the second call is woken. The lease
// is not among the issuer's, and no tracer is called; after an error it expires within five
// seconds. It takes some ten round trips and a connection for the messages, which is cheap enough
// for a probe every few seconds. It takes five seconds at most, whatever ctx allows.
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
	h := Health{Servers: make([]ServerHealth, len(servers)), Config: i.cfg.warnings()}
	failed := make([]error, len(servers))
	var all sync.WaitGroup // at once, so that one that hangs does not delay the others
	for n, server := range servers {
		all.Go(func() { h.Servers[n], failed[n] = i.checkServer(ctx, server) })
	}
	all.Wait()
	for n, why := range failed {
		if why != nil && err == nil {
			err = fmt.Errorf("lease: check %s: %w", h.Servers[n].Addr, why)
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

func (i *Issuer) checkServer(ctx context.Context, client *redis.Client) (ServerHealth, error) {
	s := ServerHealth{Addr: client.Options().Addr}
	if err := s.askClock(ctx, client); err != nil {
		return s, err
	}
	if err := s.askInfo(ctx, client, isSharded(i.store.client)); err != nil {
		return s, err
	}
	err := i.tryOut(ctx, client)
	if protocol.IsRefused(err, protocol.CannotSave) {
		err = fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return s, err
}

func (s *ServerHealth) warn(code WarningCode, format string, args ...any) {
	s.Warnings = append(s.Warnings, Warning{code, fmt.Sprintf(format, args...)})
}

// askInfo reads INFO. The error is what makes the server unfit.
func (s *ServerHealth) askInfo(ctx context.Context, client *redis.Client, sharded bool) error {
	// All sections in one reply: naming several at once is not understood by every version.
	text, err := protocol.Bounded(ctx, protocol.Over(client), "info", "",
		func() (string, error) { return client.Info(ctx).Result() })
	switch {
	case err != nil && redis.IsPermissionError(err):
		s.warn(WarnHidden, "INFO is forbidden: role, eviction policy and persistence were not checked")
		return nil
	case err != nil:
		return err
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
	if !s.AOF && info["loading"] != "1" { // while it loads its file, it says that it has none
		s.warn(WarnUnlogged, "appendonly is off: after a crash it forgets leases that are held")
	}
	if good, known := info["min_slaves_good_slaves"]; s.Replicas > 0 && (!known || good == "") {
		s.warn(WarnReplicas, "it has replicas but no min-replicas-to-write: cut off from them it goes on granting leases that a fail-over forgets")
	}
	evicts := s.Eviction != "" && s.Eviction != "noeviction"
	switch {
	case s.Role != "" && s.Role != "master":
		return fmt.Errorf("%w: %w", ErrUnfit, &RefusedError{Code: protocol.ReadOnly})
	case info["redis_mode"] != "" && (info["redis_mode"] == "cluster") != sharded:
		return fmt.Errorf("%w: its mode is %s, and this client is one of another: its waiters do not hear those who use the right one",
			ErrUnfit, info["redis_mode"])
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

// askClock measures at the middle of the round trip.
func (s *ServerHealth) askClock(ctx context.Context, client *redis.Client) error {
	sent := time.Now()
	told, err := protocol.Bounded(ctx, protocol.Over(client), "time", "",
		func() (time.Time, error) { return client.Time(ctx).Result() })
	if err != nil {
		return err
	}
	s.RoundTrip = time.Since(sent)
	s.Clock = told.Sub(sent.Add(s.RoundTrip / 2))
	if s.Clock.Abs() > protocol.MaxClockDifference+s.RoundTrip/2 {
		s.warn(WarnClock, "its clock differs from this process's by %v", s.Clock.Round(time.Millisecond))
	}
	return nil
}

// tryTime is how long what Check has acquired, and what Redis remembers of it, lasts.
const tryTime = protocol.Patience

// tryOut has two callers ask for a resource that nobody else asks for: one gets it, the other
// waits, is called, gets it too, and releases it. So whatever keeps leases from working is met
// here: a right that is missing, a command that was renamed, messages that do not arrive, or a
// server that refuses writes. After an error the rest expires.
func (i *Issuer) tryOut(ctx context.Context, server *redis.Client) error {
	s := *i.store
	s.ttl, s.retention = tryTime.Milliseconds(), tryTime.Milliseconds()
	k, err := s.resourceOn(ctx, server)
	if err != nil {
		return err
	}
	holder, waiter := term{keys: k, id: uuid.NewString()}, term{keys: k, id: uuid.NewString()}
	ask := func(t *term, how mode, free bool) error {
		answer, err := protocol.Query(ctx, s.redis, s.acquire([]*protocol.Keys{k}, t.id, how),
			func(r protocol.Reply) (acquired, error) { return s.decodeAcquire(r, 1) })
		switch granted := answer.tokens != nil; {
		case err != nil:
			return err
		case granted && !free:
			return fmt.Errorf("%w: two hold at once", ErrUnfit)
		case !granted && free:
			return fmt.Errorf("%w: nobody is granted what is free", ErrUnfit)
		case granted:
			t.token = answer.tokens[0]
		}
		return nil
	}
	if err := ask(&holder, modeTry, true); err != nil {
		return err
	}
	if err := ask(&waiter, modeWait, false); err != nil {
		return err
	}
	news := s.subscribe(k.Channel.(string), waiter.id.(string))
	if news == nil {
		return fmt.Errorf("%w: nobody knows where to listen", ErrUnfit)
	}
	defer news.close()
	if err := news.await(ctx, server, "a subscription is not confirmed", func(n notice) bool { return n.listens }); err != nil {
		return err
	}
	news.listenFor(waiter.id.(string))
	if _, err := protocol.Query(ctx, s.redis, s.release(holder), decodeGivenBack); err != nil {
		return err
	}
	if err := news.await(ctx, server, "a release does not call the waiter", func(n notice) bool { return n.called }); err != nil {
		return err
	}
	if err := ask(&waiter, modeWait, true); err != nil {
		return err
	}
	_, err = protocol.Query(ctx, s.redis, s.release(waiter), decodeGivenBack)
	return err
}

// resourceOn is one that the server has.
func (s *store) resourceOn(ctx context.Context, server *redis.Client) (*protocol.Keys, error) {
	return protocol.Bounded(ctx, s.redis, "cluster slots", "", func() (*protocol.Keys, error) {
		for ctx.Err() == nil {
			k := protocol.KeysOf(s.cfg.kind(), s.cfg.Namespace, protocol.Trial+uuid.NewString(), s.cfg.HashResources)
			if s.cluster == nil {
				return k, nil
			}
			master, err := s.cluster.MasterForKey(ctx, k.Owner.(string))
			if err != nil {
				return nil, err
			}
			if master == server {
				return k, nil
			}
		}
		return nil, ctx.Err()
	})
}

// await returns when that is so, or an error that says what is missing.
func (s *subscription) await(ctx context.Context, server *redis.Client, missing string, so func(notice) bool) error {
	began := time.Now()
	for {
		n := s.told()
		switch {
		case n.refused != nil:
			return n.refused
		case so(n):
			return nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), ErrUnreachable) {
				return fmt.Errorf("%s: %w", missing, protocol.Over(server).Unanswered(ctx, "", began))
			}
			return fmt.Errorf("%w: %s within %v; its waiters are not woken", ErrUnfit, missing, protocol.Patience)
		}
	}
}
