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
	Addr     string // "the primary of the Sentinel group" if the client does not show it
	Version  string // "7.2.4"
	Role     string // "master" or "slave"
	Eviction string // maxmemory-policy
	Limited  bool   // whether maxmemory is set
	AOF      bool   // whether appendonly is on
	Replicas int    // how many are connected
	// Clock is how far the server's clock is ahead of this process's, give or take half of
	// RoundTrip.
	Clock     time.Duration
	RoundTrip time.Duration

	// Warnings are for people: leases work, but are less safe or less useful than they could be.
	Warnings []Warning
}

// Warning is one finding of [Issuer.Check]. Programs look at its code.
type Warning struct {
	Code WarningCode
	Text string
}

// WarningCode is the kind of a [Warning].
type WarningCode string

// The codes of all warnings.
const (
	WarnUnlogged WarningCode = "unlogged" // appendonly is off: after a crash, Redis forgets leases
	WarnEviction WarningCode = "eviction" // Redis may evict leases as soon as maxmemory is set
	WarnReplicas WarningCode = "replicas" // a primary that is cut off from its replicas goes on granting
	WarnClock    WarningCode = "clock"    // the server's clock differs from this process's
	WarnVersion  WarningCode = "version"  // the server is older than any that this package is tested with
	WarnHidden   WarningCode = "hidden"   // INFO is forbidden

	WarnTTL       WarningCode = "ttl"       // [Config.TTL] is an hour or more
	WarnUnbounded WarningCode = "unbounded" // [Config.MaxHold] is [Unlimited]
)

// Warnings returns the texts of all warnings: about the configuration, and about each server, with
// its address.
func (h Health) Warnings() []string {
	var all []string
	for _, w := range h.Config {
		all = append(all, w.Text)
	}
	for _, s := range h.Servers {
		for _, w := range s.Warnings {
			all = append(all, s.Addr+": "+w.Text)
		}
	}
	return all
}

// Check reports whether leases can be granted and kept, for readiness probes: nil means yes. The
// error is [ErrUnreachable]; or another error that an acquisition would return, such as
// [ErrClosed]; or [ErrUnfit] with the reason, such as an eviction policy that may remove leases, or
// a disk that Redis cannot save to. Health is returned with an error too, except after
// [Issuer.Close]. An ACL or a provider that forbids INFO causes only a warning.
//
// On each server Check acquires a lease on a resource of its own, "fencedb.check:" and a random id.
// A second caller waits for it. Check releases the lease, and checks that the second caller is
// woken. The issuer does not list this lease, and no tracer is called for it; after an error it
// expires within five seconds. Check takes some ten round trips and one connection for the
// messages: cheap enough for a probe every few seconds. It takes five seconds at most, even if ctx
// allows more.
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
	var all sync.WaitGroup // all at once, so that a server that hangs does not delay the others
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

// minVersion is the first major version that the protocol is tested with.
const minVersion = 7

func (i *Issuer) checkServer(ctx context.Context, client *redis.Client) (ServerHealth, error) {
	s := ServerHealth{Addr: protocol.Address(client)}
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

// askInfo reads INFO. The error says what makes the server unfit, or why there is no answer.
func (s *ServerHealth) askInfo(ctx context.Context, client *redis.Client, sharded bool) error {
	// It asks for all sections, because not every version accepts the names of several.
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
	if !s.AOF && info["loading"] != "1" { // a server that loads its log reports that it has none
		s.warn(WarnUnlogged, "appendonly is off: after a crash it forgets leases that are held")
	}
	if good, known := info["min_slaves_good_slaves"]; s.Replicas > 0 && (!known || good == "") {
		s.warn(WarnReplicas, "it has replicas but no min-replicas-to-write: cut off from them, it goes on granting leases that a fail-over forgets")
	}
	evicts := s.Eviction != "" && s.Eviction != "noeviction"
	switch {
	case s.Role != "" && s.Role != "master":
		return fmt.Errorf("%w: %w", ErrUnfit, &RefusedError{Code: protocol.ReadOnly})
	case info["redis_mode"] != "" && (info["redis_mode"] == "cluster") != sharded:
		return fmt.Errorf("%w: its mode is %s, but this client is for another mode, so clients of the right mode do not wake its waiters",
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

// askClock compares the server's clock with that of this process at the middle of the round trip.
func (s *ServerHealth) askClock(ctx context.Context, client *redis.Client) error {
	sent := time.Now()
	clock, err := protocol.Bounded(ctx, protocol.Over(client), "time", "",
		func() (time.Time, error) { return client.Time(ctx).Result() })
	if err != nil {
		return err
	}
	s.RoundTrip = time.Since(sent)
	s.Clock = clock.Sub(sent.Add(s.RoundTrip / 2))
	if s.Clock.Abs() > protocol.MaxClockDifference+s.RoundTrip/2 {
		s.warn(WarnClock, "its clock differs from this process's by %v", s.Clock.Round(time.Millisecond))
	}
	return nil
}

// tryTime is the TTL of the lease that Check acquires, and how long Redis remembers its last token.
const tryTime = protocol.Patience

// tryOut acquires a lease for one caller on a new resource. A second caller waits for it, is called
// when the first releases it, gets it, and releases it. That finds what keeps leases from working:
// a missing right, a renamed command, messages that do not arrive, a server that refuses writes.
// After an error, what was acquired expires.
func (i *Issuer) tryOut(ctx context.Context, server *redis.Client) error {
	s := *i.store
	s.ttl, s.retention = tryTime.Milliseconds(), tryTime.Milliseconds()
	k, err := s.resourceOn(ctx, server)
	if err != nil {
		return err
	}
	holder, waiter := term{keys: k, id: uuid.NewString()}, term{keys: k, id: uuid.NewString()}
	ask := func(t *term, how mode, free bool) error {
		answer, err := protocol.Query(ctx, s.redis, protocol.Patience, s.acquire([]*protocol.Keys{k}, t.id, how),
			func(r protocol.Reply) (acquired, error) { return s.decodeAcquire(r, 1) })
		switch granted := answer.tokens != nil; {
		case err != nil:
			return err
		case granted && !free:
			return fmt.Errorf("%w: a resource that is held was granted to another", ErrUnfit)
		case !granted && free:
			return fmt.Errorf("%w: a resource that is free was not granted", ErrUnfit)
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
		return fmt.Errorf("%w: the server of the waiters' channel is not known", ErrUnfit)
	}
	defer news.close()
	if err := news.await(ctx, server, "a subscription is not confirmed", func(n notice) bool { return n.listens }); err != nil {
		return err
	}
	news.listenFor(waiter.id.(string))
	if _, err := protocol.Query(ctx, s.redis, protocol.Patience, s.release(holder), decodeGivenBack); err != nil {
		return err
	}
	if err := news.await(ctx, server, "a release does not call the waiter", func(n notice) bool { return n.called }); err != nil {
		return err
	}
	if err := ask(&waiter, modeWait, true); err != nil {
		return err
	}
	_, err = protocol.Query(ctx, s.redis, protocol.Patience, s.release(waiter), decodeGivenBack)
	return err
}

// resourceOn returns the keys of a new resource that the server is responsible for.
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

// await returns nil when so is true of the news. Its error names what is missing.
func (s *subscription) await(ctx context.Context, server *redis.Client, missing string, so func(notice) bool) error {
	began := time.Now()
	for {
		n := s.latest()
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
