package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// sealing is the result of revoke --behind.
type sealing struct {
	Sealed  []unsealed `json:"sealed"`
	Failed  []failed   `json:"failed"`
	Unnamed int        `json:"unnamed"`  // that may be behind too: Redis knows only the hash, and the ledger has none of these
	AuditID int64      `json:"audit_id"` // 0: nothing was to be sealed
}

// unsealed is a resource whose last token in Redis is above the one in the ledger.
type unsealed struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
	Ledger   int64  `json:"ledger_token"` // 0: it has none
}

// failed is one that could not be sealed.
type failed struct {
	Resource string `json:"resource"`
	Error    string `json:"error"`
}

func (r *sealing) print(p page) {
	switch {
	case len(r.Sealed)+len(r.Failed) > 0:
		table(p, []string{"SEALED", "TOKEN", "LEDGER HAD"}, r.Sealed, func(u unsealed) []string {
			return []string{visible(u.Resource), tokenText(u.Token), tokenText(u.Ledger)}
		})
		fmt.Fprintln(p.out)
		p.point("In protected tables: only who holds one of these now, or acquires it later, can write. No lease was ended.")
	case r.Unnamed > 0:
		p.say("Nothing to seal that is known by name. Nothing was changed.")
	default:
		p.say("Nothing to seal: Redis has issued no token above the ledger's. Nothing was changed.")
	}
	for _, f := range r.Failed {
		p.point("%s was not sealed: %s", visible(f.Resource), f.Error)
	}
	if r.Unnamed > 0 {
		p.point("Resources of which Redis knows only the hash, and which are not in the ledger: %d. They cannot be sealed from here, and former holders may write to them. Each is sealed when it is next acquired with package guard or lease.Config.Seal, or by its name with fencedb revoke.", r.Unnamed)
	}
	if r.AuditID != 0 {
		fmt.Fprintf(p.out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
	}
}

var (
	errNotAllSealed = errors.New("not all were sealed; call it again when what is in the way has ended")
	errUnnamed      = errors.New("not all were sealed: of some, Redis knows only the hash")
)

// sealBehind seals each resource with the last token that Redis has issued for it: for who holds it
// now, and otherwise for nobody.
func (s *servers) sealBehind(ctx context.Context, e event) error {
	all, unnamed, err := s.behind(ctx)
	if err != nil {
		return err
	}
	done := &sealing{Sealed: []unsealed{}, Failed: []failed{}, Unnamed: unnamed}
	if len(all) > 0 {
		names := make([]string, 0, 5)
		for _, u := range all[:min(len(all), cap(names))] {
			names = append(names, visible(u.Resource))
		}
		question := fmt.Sprintf("Redis has issued tokens above the ledger's for %d resources, such as %s. Shut their former holders out? It ends no lease.",
			len(all), strings.Join(names, ", "))
		if err := s.confirm(ctx, question); err != nil {
			return err
		}
		if err := s.sealAll(ctx, e, all, done); err != nil {
			return err
		}
	}
	switch err := s.show(done); {
	case err != nil:
		return err
	case len(done.Failed) > 0:
		return errNotAllSealed
	case unnamed > 0:
		return errUnnamed
	}
	return nil
}

func (s *servers) sealAll(ctx context.Context, e event, all []unsealed, done *sealing) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var mu sync.Mutex
	asking := errgroup.Group{}
	asking.SetLimit(8)
	for _, u := range all {
		asking.Go(func() error {
			token, err := s.sealLast(ctx, u.Resource)
			mu.Lock()
			defer mu.Unlock()
			switch u.Token = token; {
			case err == nil, errors.Is(err, fencedb.ErrStale): // then a newer one has entered, which seals as well
				done.Sealed = append(done.Sealed, u)
			default:
				done.Failed = append(done.Failed, failed{u.Resource, inWords(err)})
			}
			return nil
		})
	}
	_ = asking.Wait()
	slices.SortFunc(done.Sealed, func(a, b unsealed) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortFunc(done.Failed, func(a, b failed) int { return strings.Compare(a.Resource, b.Resource) })
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout) // also after Ctrl-C
	defer cancel()
	var err error
	if done.AuditID, err = e.record(recording, s.pool, map[string]any{"behind": len(all), "sealed": len(done.Sealed)}); err != nil {
		s.changed = fmt.Sprintf("%d of %d resources were sealed, which may not be recorded in fencedb.audit", len(done.Sealed), len(all))
		return err
	}
	return nil
}

// sealPatience bounds the wait for transactions that hold one of many fences.
const sealPatience = 5 * time.Second

func (s *servers) sealLast(ctx context.Context, resource string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
	known, err := s.issuer.Inspect(ctx, resource)
	if err != nil {
		return 0, err
	}
	token, id := known.LastToken, uuid.New()
	if known.Token > 0 {
		token, id = known.Token, known.Holder
	}
	until, _ := ctx.Deadline()
	return token, fencedb.Seal(ctx, s.pool, fencedb.NewGrant(resource, token, id, until))
}

// behind finds the resources for which Redis has issued a token that the ledger has not seen, in
// the namespace of the flags. A digest does not tell the name, so hashed ones are those that the
// ledger has; unnamed are how many Redis knows beside these. Claims of package once, one for each
// key that ever was, count only if they are known to have entered.
func (s *servers) behind(ctx context.Context) (all []unsealed, unnamed int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := mayCall(ctx, s.pool, recorded, entered); err != nil {
		return nil, 0, err
	}
	keys, err := scanKeys(ctx, s.client, lease.Key{Namespace: s.names.namespace, Field: "fence"}, func(k lease.Key) bool {
		return k.Kind == protocol.LeaseKind && k.Namespace == s.names.namespace &&
			strings.HasPrefix(k.Resource, "sha256:") == s.names.hashed && !strings.HasPrefix(k.Resource, protocol.Trial)
	})
	names := make([]string, len(keys))
	for n, k := range keys {
		names[n] = k.Resource
	}
	if err == nil && s.names.hashed {
		names, unnamed, err = s.named(ctx, names)
	}
	if err != nil {
		return nil, 0, explained(err)
	}
	slices.Sort(names)
	for batch := range slices.Chunk(names, batchSize) {
		if err == nil {
			all, err = s.compared(ctx, batch, all)
		}
	}
	claim := func(u unsealed) bool { return u.Ledger == 0 && strings.HasPrefix(u.Resource, "once:") }
	if err == nil && slices.ContainsFunc(all, claim) {
		var seen map[string]int64
		seen, err = s.proven(ctx)
		all = slices.DeleteFunc(all, func(u unsealed) bool { return claim(u) && seen[u.Resource] == 0 })
	}
	return all, unnamed, err
}

// named are the resources with these digests, by the ledger, and how many others there are: neither
// trials of Check, whose fences last for seconds, nor claims of package once with a result.
func (s *servers) named(ctx context.Context, digests []string) (names []string, others int, err error) {
	rows, _ := s.pool.Query(ctx, `SELECT resource FROM fencedb.fences`)
	ledger, err := pgx.CollectRows(rows, pgx.RowTo[string])
	nameless := map[string]bool{}
	for _, digest := range digests {
		nameless[digest] = true
	}
	for _, name := range ledger {
		if digest := protocol.Digest(name); nameless[digest] {
			names = append(names, name)
			delete(nameless, digest)
		}
	}
	for batch := range slices.Chunk(slices.Collect(maps.Keys(nameless)), batchSize) {
		lasts, results := make([]*redis.DurationCmd, len(batch)), make([]*redis.IntCmd, len(batch))
		_, wrong := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n, digest := range batch {
				k := protocol.Key{Namespace: s.names.namespace, Resource: digest}
				lasts[n] = pipe.PTTL(ctx, k.For("fence"))
				k.Kind = protocol.OnceKind
				results[n] = pipe.Exists(ctx, k.For("record"))
			}
			return nil
		})
		if wrong != nil {
			return nil, 0, fmt.Errorf("redis: %w", wrong)
		}
		for n := range batch {
			if lasts[n].Val() > protocol.Patience && results[n].Val() == 0 {
				others++
			}
		}
	}
	return names, others, err
}

// compared adds those of names whose last token is above the ledger's. A fence that was set back is
// below on purpose.
func (s *servers) compared(ctx context.Context, names []string, all []unsealed) ([]unsealed, error) {
	answers := make([]*redis.StringCmd, len(names))
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for n, resource := range names {
			answers[n] = pipe.Get(ctx, s.key(resource).String())
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return all, fmt.Errorf("redis: %w", err)
	}
	tokens := make([]int64, len(names))
	for n, answer := range answers {
		tokens[n], _ = answer.Int64() // 0 where it has gone, or is none
	}
	rows, _ := s.pool.Query(ctx, behindLedger, names, tokens)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[unsealed])
	return append(all, found...), explained(err)
}

// behindLedger are those of resources ($1) with tokens ($2) that the ledger has not seen.
const behindLedger = `SELECT n.resource, n.token, coalesce(f.last_fencing_token, 0)
	FROM unnest($1::text[], $2::bigint[]) AS n(resource, token) LEFT JOIN fencedb.fences f ON f.resource = n.resource
	WHERE n.token > coalesce(f.last_fencing_token, 0) AND f.reset_from IS NULL
	  AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(n.resource, ':', 1)) ORDER BY n.resource`

// provenWithin is how far back events prove something: no fence is forgotten that is younger.
const provenWithin = day

// proves tells whether a token has entered, or is that of a revocation.
func proves(e feed.Event) bool {
	return e.Kind == feed.Revoked || e.Kind == feed.Sealed || e.Kind == feed.Committed
}

// hashedName is how [feed.Hashed] writes one, which the ledger does not have.
var hashedName = regexp.MustCompile(`(^|:)[0-9a-f]{12}$`)

// proven are the tokens that are known to have entered, or to be revoked, by the feed and by what
// Redis remembers of revocations: where the ledger is below one, it has lost it.
func (s *servers) proven(ctx context.Context) (map[string]int64, error) {
	found := map[string]int64{}
	now := time.Now().Add(s.ahead.redis)
	err := feed.Replay(ctx, s.client, "0", func(e feed.Event) error {
		if proves(e) && now.Sub(e.At) < provenWithin && !hashedName.MatchString(e.Resource) {
			found[e.Resource] = max(found[e.Resource], e.Token)
		}
		return nil
	}, feed.Namespace(s.names.namespace))
	if err != nil && !redis.IsPermissionError(err) {
		return nil, err
	}
	keys, err := scanKeys(ctx, s.client, lease.Key{Namespace: s.names.namespace, Field: "ended"}, func(k lease.Key) bool {
		return k.Kind == protocol.LeaseKind && k.Namespace == s.names.namespace && !strings.HasPrefix(k.Resource, "sha256:")
	})
	for _, k := range keys {
		known, wrong := s.issuer.Inspect(ctx, k.Resource)
		if err == nil && !errors.Is(wrong, lease.ErrCorrupt) {
			err = wrong
		}
		found[k.Resource] = max(found[k.Resource], known.RevokedTo)
	}
	return found, err
}
