package main

import (
	"cmp"
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
	Sealed    []unsealed  `json:"sealed"`
	Raised    []raised    `json:"raised"`
	Failed    []failed    `json:"failed"`
	Unnamed   int         `json:"unnamed"`   // that may be behind too: Redis knows only the hash, and the ledger has none of these
	Elsewhere []leftAlone `json:"elsewhere"` // other namespaces with tokens above the ledger's
	AuditID   int64       `json:"audit_id"`  // 0: nothing was changed

	where string // was looked
}

// unsealed is a resource whose last token in Redis is above the one in the ledger.
type unsealed struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
	Ledger   int64  `json:"ledger_token"` // 0: it has none
}

// raised is one whose token in the ledger is above what Redis would issue next.
type raised struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
	Redis    int64  `json:"redis_token"` // the last one that Redis knew; 0: none

	forms []bool // of its name that are to be raised: hashed or not
}

// failed is one that could not be sealed, or raised.
type failed struct {
	Resource string `json:"resource"`
	Error    string `json:"error"`
}

// leftAlone is a namespace that is not that of the flags: whether its programs write to this
// database is not known.
type leftAlone struct {
	Namespace string `json:"namespace"`
	Resources int    `json:"resources"`
	Example   string `json:"example"` // a resource; "": Redis knows only their hashes
}

func (r *sealing) print(p page) {
	if len(r.Sealed)+len(r.Raised)+len(r.Failed) > 0 {
		table(p, []string{"RESOURCE", "WHAT", "TOKEN", "HAD"}, r.rows(), func(row []string) []string { return row })
		fmt.Fprintln(p.out)
	} else {
		p.say("Nothing to seal or to raise %s. Nothing was changed.", r.where)
	}
	if len(r.Sealed) > 0 {
		p.point("Sealed, in protected tables: only who holds one of these now, or acquires it later, can write. No lease was ended.")
	}
	if len(r.Raised) > 0 {
		p.point("Raised: whoever acquires one of these next gets a token that the ledger accepts. No lease was ended; whoever holds one with a lower token is refused, as before.")
	}
	for _, f := range r.Failed {
		p.point("%s was not changed: %s", visible(f.Resource), f.Error)
	}
	if r.Unnamed > 0 {
		p.point("Resources of which Redis knows only the hash, and which are not in the ledger: %d. They cannot be sealed from here, and former holders may write to them. Each is sealed when it is next acquired with package guard or lease.Config.Seal, or by its name with fencedb revoke.", r.Unnamed)
	}
	for _, e := range r.Elsewhere {
		p.point("Left alone: Redis has tokens above the ledger's %s too, of %d resources%s. If those programs write to this database, their former holders may write: call it again with that --namespace. Otherwise that is as it should be.",
			inNamespace(e.Namespace), e.Resources, prefixed(", such as ", visible(e.Example), ""))
	}
	if r.AuditID != 0 {
		fmt.Fprintf(p.out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
	}
}

func (r *sealing) rows() (rows [][]string) {
	for _, u := range r.Sealed {
		rows = append(rows, []string{visible(u.Resource), "sealed", tokenText(u.Token), cmp.Or(tokenText(u.Ledger), "none")})
	}
	for _, u := range r.Raised {
		rows = append(rows, []string{visible(u.Resource), "raised", tokenText(u.Token), cmp.Or(tokenText(u.Redis), "none")})
	}
	return rows
}

var (
	errNotAllSealed = errors.New("not all were sealed or raised; call it again when what is in the way has ended")
	errUnnamed      = errors.New("not all were sealed: of some, Redis knows only the hash")
	errLeftAlone    = errors.New("other namespaces have tokens above the ledger's, and were left alone; with --force that is no error")
)

// sealBehind seals each resource of the namespace with the last token that Redis has issued for it:
// for who holds it now, and otherwise for nobody. It raises the counters of those whose fence is
// above what Redis would issue.
func (s *servers) sealBehind(ctx context.Context, e event, force bool) error {
	c, err := s.compare(ctx)
	if err != nil {
		return err
	}
	done := &sealing{Sealed: []unsealed{}, Raised: []raised{}, Failed: []failed{},
		Unnamed: c.unnamed, Elsewhere: c.elsewhere, where: "in any namespace"}
	if len(c.elsewhere) > 0 || c.unnamed > 0 {
		done.where = inNamespace(s.names.namespace) + " that is known by name"
	}
	if len(c.ahead)+len(c.low) > 0 {
		if err := s.confirm(ctx, c.question()); err != nil {
			return err
		}
		if err := s.level(ctx, e, c, done); err != nil {
			return err
		}
	}
	switch err := s.show(done); {
	case err != nil:
		return err
	case len(done.Failed) > 0:
		return errNotAllSealed
	case c.unnamed > 0:
		return errUnnamed
	case len(c.elsewhere) > 0 && !force:
		return errLeftAlone
	}
	return nil
}

// comparison is what the two servers do not know of each other.
type comparison struct {
	ahead     []unsealed
	low       []raised
	unnamed   int
	elsewhere []leftAlone
}

func (c *comparison) question() string {
	such := func(n int, name func(int) string) string {
		names := make([]string, min(n, 5))
		for i := range names {
			names[i] = visible(name(i))
		}
		return fmt.Sprintf("%d resources, such as %s", n, strings.Join(names, ", "))
	}
	var text string
	if n := len(c.ahead); n > 0 {
		text += fmt.Sprintf("Redis has issued tokens above the ledger's for %s. Shut their former holders out? ", such(n, func(i int) string { return c.ahead[i].Resource }))
	}
	if n := len(c.low); n > 0 {
		text += fmt.Sprintf("The ledger has tokens above those that Redis would issue for %s. Raise these? ", such(n, func(i int) string { return c.low[i].Resource }))
	}
	return text + "It ends no lease."
}

// level seals and raises, and records what it has done.
func (s *servers) level(ctx context.Context, e event, c comparison, done *sealing) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var mu sync.Mutex
	asking := errgroup.Group{}
	asking.SetLimit(8)
	each := func(resource string, do func() (int64, error), ok func(token int64)) {
		asking.Go(func() error {
			token, err := do()
			mu.Lock()
			defer mu.Unlock()
			if err == nil || errors.Is(err, fencedb.ErrStale) { // then a newer one has entered, which seals as well
				ok(token)
			} else {
				done.Failed = append(done.Failed, failed{resource, inWords(err)})
			}
			return nil
		})
	}
	for _, u := range c.ahead {
		each(u.Resource, func() (int64, error) { return s.sealLast(ctx, u.Resource) }, func(token int64) {
			u.Token = token
			done.Sealed = append(done.Sealed, u)
		})
	}
	for _, r := range c.low {
		each(r.Resource, func() (int64, error) { return r.Token, s.raise(ctx, r) }, func(int64) {
			done.Raised = append(done.Raised, r)
		})
	}
	_ = asking.Wait()
	slices.SortFunc(done.Sealed, func(a, b unsealed) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortFunc(done.Raised, func(a, b raised) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortFunc(done.Failed, func(a, b failed) int { return strings.Compare(a.Resource, b.Resource) })
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout) // also after Ctrl-C
	defer cancel()
	var err error
	details := map[string]any{"behind": len(c.ahead), "sealed": len(done.Sealed), "raised": len(done.Raised)}
	if done.AuditID, err = e.record(recording, s.pool, details); err != nil {
		s.changed = fmt.Sprintf("%d of %d resources were sealed and %d of %d raised, which may not be recorded in fencedb.audit",
			len(done.Sealed), len(c.ahead), len(done.Raised), len(c.low))
		return err
	}
	return nil
}

// sealPatience bounds the wait for transactions that hold one of many fences.
const sealPatience = 5 * time.Second

// sealLast seals with the higher token of both forms of the name.
func (s *servers) sealLast(ctx context.Context, resource string) (token int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
	id := uuid.New()
	for _, hashed := range []bool{false, true} {
		p := location{Namespace: s.names.namespace, Hashed: hashed}
		if err := p.look(ctx, s, resource); err != nil {
			return 0, err
		}
		if h := p.Holder; h != nil && h.Token > token {
			token, id = h.Token, h.LeaseID
		} else if h == nil && value(p.LastToken) > token {
			token, id = *p.LastToken, uuid.New()
		}
	}
	until, _ := ctx.Deadline()
	return token, fencedb.Seal(ctx, s.pool, fencedb.NewGrant(resource, token, id, until))
}

func (s *servers) raise(ctx context.Context, r raised) error {
	for _, hashed := range r.forms {
		i, err := lease.New(s.client, names{s.names.namespace, hashed}.config())
		if err == nil {
			_, err = i.Raise(ctx, r.Resource, r.Token)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compare compares the last tokens of all namespaces and forms with the ledger.
func (s *servers) compare(ctx context.Context) (c comparison, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if err := mayCall(ctx, s.pool, recorded, entered); err != nil {
		return c, err
	}
	keys, err := s.survey(ctx, func(k lease.Key) bool { return counts(k) || k.Field == "ended" && k.Kind == protocol.LeaseKind })
	if err != nil {
		return c, err
	}
	counters := slices.DeleteFunc(slices.Clone(keys), func(k lease.Key) bool { return !counts(k) })
	tokens, err := s.lastTokens(ctx, counters)
	if err != nil {
		return c, err
	}
	issued := map[string]map[lease.Key]int64{s.names.namespace: {}}
	for n, k := range counters {
		if issued[k.Namespace] == nil {
			issued[k.Namespace] = map[lease.Key]int64{}
		}
		issued[k.Namespace][k] = tokens[n]
	}
	for _, namespace := range slices.Sorted(maps.Keys(issued)) {
		all, unnamed, err := s.missingSeals(ctx, namespace, issued[namespace], keys)
		if err != nil {
			return c, explained(err)
		}
		if namespace == s.names.namespace {
			c.ahead, c.unnamed = all, unnamed
		} else if n := len(all) + unnamed; n > 0 {
			left := leftAlone{Namespace: namespace, Resources: n}
			if len(all) > 0 {
				left.Example = all[0].Resource
			}
			c.elsewhere = append(c.elsewhere, left)
		}
	}
	c.low, err = s.low(ctx, issued)
	return c, explained(err)
}

// missingSeals finds the resources for which Redis has issued a token, in a namespace, that the
// ledger has not seen. A digest does not tell the name, so hashed ones are those that the ledger
// has; unnamed are how many Redis knows beside these. Claims of package once, one for each key that
// ever was, count only if they are known to have entered. keys are those of revocations, too.
func (s *servers) missingSeals(ctx context.Context, namespace string, issued map[lease.Key]int64,
	keys []lease.Key) (all []unsealed, unnamed int, err error) {
	last, known, nameless := map[string]int64{}, map[string]string{}, []string{}
	for k, token := range issued {
		d := digest(k)
		last[d] = max(last[d], token)
		if !hashed(k) {
			known[d] = k.Resource
		}
	}
	for d := range last {
		if known[d] == "" {
			nameless = append(nameless, d)
		}
	}
	if unnamed, err = s.named(ctx, namespace, nameless, known); err != nil {
		return nil, 0, err
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(known)), batchSize) {
		resources, tokens := make([]string, len(batch)), make([]int64, len(batch))
		for n, d := range batch {
			resources[n], tokens[n] = known[d], last[d]
		}
		rows, _ := s.pool.Query(ctx, behindLedger, resources, tokens)
		if all, err = pgx.AppendRows(all, rows, pgx.RowToStructByPos[unsealed]); err != nil {
			return nil, 0, err
		}
	}
	claim := func(u unsealed) bool { return u.Ledger == 0 && strings.HasPrefix(u.Resource, "once:") }
	if slices.ContainsFunc(all, claim) {
		seen, err := s.proven(ctx, namespace, keys)
		if err != nil {
			return nil, 0, err
		}
		all = slices.DeleteFunc(all, func(u unsealed) bool { return claim(u) && seen[u.Resource] == 0 })
	}
	slices.SortFunc(all, func(a, b unsealed) int { return strings.Compare(a.Resource, b.Resource) })
	return all, unnamed, nil
}

// named adds the names of digests to known, by the ledger, and says how many others there are:
// neither trials of Check, whose fences last for seconds, nor claims of package once with a result.
func (s *servers) named(ctx context.Context, namespace string, digests []string,
	known map[string]string) (others int, err error) {
	rows, _ := s.pool.Query(ctx, `SELECT digest, resource FROM (SELECT `+ledgerDigest+` AS digest, resource FROM fencedb.fences) f
		WHERE cardinality($1::text[]) > 0 AND digest = ANY($1)`, digests)
	var d, name string
	if _, err = pgx.ForEachRow(rows, []any{&d, &name}, func() error { known[d] = name; return nil }); err != nil {
		return 0, err
	}
	digests = slices.DeleteFunc(digests, func(d string) bool { return known[d] != "" })
	for batch := range slices.Chunk(digests, batchSize) {
		lasts, results := make([]*redis.DurationCmd, len(batch)), make([]*redis.IntCmd, len(batch))
		_, wrong := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n, digest := range batch {
				k := protocol.Key{Namespace: namespace, Resource: digest}
				lasts[n] = pipe.PTTL(ctx, k.For("fence"))
				k.Kind = protocol.OnceKind
				results[n] = pipe.Exists(ctx, k.For("record"))
			}
			return nil
		})
		if wrong != nil {
			return 0, fmt.Errorf("redis: %w", wrong)
		}
		for n := range batch {
			if lasts[n].Val() > protocol.Patience && results[n].Val() == 0 {
				others++
			}
		}
	}
	return others, nil
}

// low finds the fences that are above what Redis would issue next in the namespace of the flags:
// above the clock of Redis, which is the floor of new tokens, and above the last token in each form
// of the name that is known. Where another namespace has issued the token, its fence is from there.
func (s *servers) low(ctx context.Context, issued map[string]map[lease.Key]int64) (all []raised, err error) {
	health, err := s.issuer.Check(ctx) // a server that is unfit has a clock too
	least := floor(health.Servers)
	if least == 0 {
		return nil, cmp.Or(err, errors.New("redis: its clock is not known"))
	}
	rows, _ := s.pool.Query(ctx, `SELECT f.resource, f.last_fencing_token FROM fencedb.fences f
		WHERE f.last_fencing_token > $1 AND NOT `+foreign+` AND NOT `+tooHigh+` ORDER BY f.resource`, least)
	var r raised
	_, err = pgx.ForEachRow(rows, []any{&r.Resource, &r.Token}, func() error {
		r.Redis, r.forms = 0, nil
		here := false
		for namespace, counters := range issued {
			for _, hashed := range []bool{false, true} {
				last, known := counters[names{namespace, hashed}.key(r.Resource)]
				switch {
				case namespace != s.names.namespace && last >= r.Token:
					return nil
				case namespace != s.names.namespace || !known:
					continue
				case last < r.Token:
					r.forms = append(r.forms, hashed)
				}
				here, r.Redis = true, max(r.Redis, last)
			}
		}
		if !here {
			r.forms = []bool{s.names.hashed}
		}
		if len(r.forms) > 0 {
			all = append(all, r)
		}
		return nil
	})
	return all, err
}

// ledgerDigest is the digest of a resource of the ledger, as Redis has it.
const ledgerDigest = `'sha256:' || encode(sha256(convert_to(resource, 'UTF8')), 'hex')`

// behindLedger are those of resources ($1) with tokens ($2) that the ledger has not seen.
const behindLedger = `SELECT n.resource, n.token, coalesce(f.last_fencing_token, 0)
	FROM unnest($1::text[], $2::bigint[]) AS n(resource, token) LEFT JOIN fencedb.fences f ON f.resource = n.resource
	WHERE n.token > coalesce(f.last_fencing_token, 0) AND f.reset_from IS NULL
	  AND NOT EXISTS (SELECT FROM fencedb.foreign_issuers i WHERE i.resource_type = split_part(n.resource, ':', 1)) ORDER BY n.resource`

// hashedName is how [feed.Hashed] writes one, which the ledger does not have.
var hashedName = regexp.MustCompile(`(^|:)[0-9a-f]{12}$`)

// proven are the tokens in a namespace that are known to have entered, or to be revoked, by the
// feed and by what Redis remembers of revocations, which is in keys: where the ledger is below one,
// it has lost it.
func (s *servers) proven(ctx context.Context, namespace string, keys []lease.Key) (map[string]int64, error) {
	found := map[string]int64{}
	now := time.Now().Add(s.ahead.redis)
	err := feed.Replay(ctx, s.client, "0", func(e feed.Event) error {
		if proves(e) && now.Sub(e.At) < provenWithin && !hashedName.MatchString(e.Resource) {
			found[e.Resource] = max(found[e.Resource], e.Token)
		}
		return nil
	}, feed.Namespace(namespace))
	if err != nil && !redis.IsPermissionError(err) {
		return nil, err
	}
	i, err := lease.New(s.client, names{namespace: namespace}.config())
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if k.Field != "ended" || k.Kind != protocol.LeaseKind || k.Namespace != namespace || hashed(k) {
			continue
		}
		known, err := i.Inspect(ctx, k.Resource)
		if err != nil && !errors.Is(err, lease.ErrCorrupt) {
			return nil, err
		}
		found[k.Resource] = max(found[k.Resource], known.RevokedTo)
	}
	return found, nil
}
