package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

const (
	flagLimit  = "limit"
	flagOldest = "oldest"
)

func (a *app) leases() *cli.Command {
	return &cli.Command{
		Name:      "leases",
		Usage:     "list what is held now",
		ArgsUsage: "[PREFIX]",
		Description: `Lists the leases, the permits of semaphores and the claims of package once
whose resource begins with PREFIX. It reads Redis with SCAN, which blocks
nobody. A resource that is acquired or released meanwhile may be missing.

   fencedb leases                              all
   fencedb leases table: --json                those of type table, as JSON
   fencedb leases --oldest --older-than 10m    those that may be stuck`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: flagLimit, Usage: "list at most `N` resources", Value: 1000},
			&cli.BoolFlag{Name: flagOldest, Usage: "sort by how long they are held, longest first"},
			&cli.DurationFlag{Name: flagOlderThan, Usage: "only those held for longer than this `TIME`"},
		},
		Action: a.listLeases,
	}
}

type leaseList struct {
	Leases   []held   `json:"leases"`
	More     bool     `json:"more"`     // more than --limit exist
	Problems []string `json:"problems"` // keys that violate the protocol
}

type held struct {
	Resource string `json:"resource"`
	Kind     string `json:"kind"` // lease, semaphore or once
	holder
	Waiters int `json:"waiters"`
}

// print leaves out the kind if all are leases, and shortens lease ids.
func (l *leaseList) print(p page) {
	header := []string{"RESOURCE", "TOKEN", "HELD FOR", "ENDS IN", "WAITING", "LEASE", "HOLDER", "KIND"}
	if !slices.ContainsFunc(l.Leases, func(h held) bool { return h.Kind != leaseKind }) {
		header = header[:len(header)-1]
	}
	table(p, header, l.Leases, func(h held) []string {
		return []string{visible(h.Resource), fmt.Sprint(h.Token), since(h.IssuedAt),
			millis(h.ExpiresInMS), fmt.Sprint(h.Waiters), h.LeaseID.String()[:8], visible(h.Label), h.Kind}[:len(header)]
	})
	if l.More {
		fmt.Fprintf(p.out, "\nand more; see --%s\n", flagLimit)
	}
	for _, problem := range l.Problems {
		p.point("%s", problem)
	}
}

// since is empty if the time is unknown.
func since(at *time.Time) string {
	if at == nil {
		return ""
	}
	return elapsed(*at)
}

// selection holds the arguments of leases.
type selection struct {
	namespace, prefix string
	limit             int
	oldest            bool
	olderThan         time.Duration
}

func (a *app) listLeases(ctx context.Context, cmd *cli.Command) error {
	wanted, err := newSelection(cmd)
	if err != nil {
		return err
	}
	return a.onRedis(ctx, cmd, func(ctx context.Context, client redis.UniversalClient) error {
		list, err := findLeases(ctx, client, wanted)
		if err != nil {
			return err
		}
		return a.show(cmd, list)
	})
}

func newSelection(cmd *cli.Command) (selection, error) {
	wanted := selection{cmd.String(flagNamespace), cmd.Args().First(), cmd.Int(flagLimit), cmd.Bool(flagOldest), cmd.Duration(flagOlderThan)}
	switch {
	case cmd.Args().Present() && cmd.Bool(flagHashed):
		return wanted, usage("with --%s Redis does not know how resources begin; list them without a prefix", flagHashed)
	case wanted.limit < 1:
		return wanted, usage("--%s must be at least 1, got %d", flagLimit, wanted.limit)
	case wanted.olderThan < 0:
		return wanted, usage("--%s must not be negative, got %v", flagOlderThan, wanted.olderThan)
	}
	return wanted, nil
}

func findLeases(ctx context.Context, client redis.UniversalClient, wanted selection) (*leaseList, error) {
	owners, err := scanOwners(ctx, client, wanted)
	if err == nil && (wanted.oldest || wanted.olderThan > 0) {
		owners, err = byAge(ctx, client, owners, wanted)
	}
	if err != nil {
		return nil, fmt.Errorf("redis: scan: %w", err)
	}
	// Never hashed: SCAN has found the names that Redis has.
	n := names{namespace: wanted.namespace}
	i, err := issuer(client, n)
	if err != nil {
		return nil, usage("%w", err)
	}
	places, err := newSemaphore(&servers{client: client, names: n})
	if err != nil {
		return nil, usage("%w", err)
	}
	list := &leaseList{Leases: []held{}, Problems: []string{}, More: len(owners) > wanted.limit}
	for _, o := range owners[:min(wanted.limit, len(owners))] {
		holders, err := o.holders(ctx, i, places)
		switch {
		case errors.Is(err, lease.ErrCorrupt):
			list.Problems = append(list.Problems, err.Error())
		case err != nil:
			return nil, err
		}
		list.Leases = append(list.Leases, slices.DeleteFunc(holders, func(h held) bool { // some of a semaphore may be new
			return wanted.olderThan > 0 && (h.IssuedAt == nil || time.Since(*h.IssuedAt) <= wanted.olderThan)
		})...)
	}
	return list, nil
}

// holders returns none if the resource was released since.
func (o owner) holders(ctx context.Context, i *lease.Issuer, places *lease.Semaphore) (all []held, err error) {
	if o.kind == semaphoreKind {
		known, err := places.Inspect(ctx, o.resource)
		for _, h := range known.Permits {
			all = append(all, held{o.resource, o.kind, placeOf(h), known.Waiters})
		}
		slices.SortStableFunc(all, func(a, b held) int { return cmp.Compare(a.Token, b.Token) })
		return all, err
	}
	known, err := i.Inspect(ctx, o.resource)
	if err != nil || known.Token == 0 {
		return nil, err
	}
	kind := o.kind
	if strings.HasPrefix(o.resource, onceResources) {
		kind = onceKind
	}
	return []held{{o.resource, kind, *newInspection(known).Holder, known.Waiters}}, nil
}

// Kinds of leases. The first two begin the names of keys; a claim of package once is a lease.
const (
	leaseKind     = "lease"
	semaphoreKind = "semaphore"
	onceKind      = "once"
)

// owner is a key that names the holder of a resource.
type owner struct{ kind, resource, key string }

// scanOwners returns them in the order of their resources.
func scanOwners(ctx context.Context, client redis.UniversalClient, wanted selection) ([]owner, error) {
	var owners []owner
	names := lease.Key{Namespace: wanted.namespace, Resource: wanted.prefix, Field: "owner"}
	keys, err := scanKeys(ctx, client, names)
	for _, k := range keys {
		if k.Namespace == wanted.namespace { // a pattern cannot tell namespaces apart
			owners = append(owners, owner{k.Kind, k.Resource, k.String()})
		}
	}
	slices.SortFunc(owners, func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.kind, b.kind))
	})
	return owners, err
}

// scanKeys returns the keys of leases and semaphores that are there, each once, in no order.
func scanKeys(ctx context.Context, client redis.UniversalClient, names lease.Key) ([]lease.Key, error) {
	var mu sync.Mutex
	found := map[lease.Key]bool{} // SCAN may name a key twice
	scan := func(ctx context.Context, server redis.Cmdable) error {
		for _, kind := range []string{leaseKind, semaphoreKind} {
			names := names
			names.Kind = kind
			keys := server.Scan(ctx, 0, names.Pattern(), 1000).Iterator()
			for keys.Next(ctx) {
				if k, ok := lease.ParseKey(keys.Val()); ok {
					mu.Lock()
					found[k] = true
					mu.Unlock()
				}
			}
			if err := keys.Err(); err != nil {
				return err
			}
		}
		return nil
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return scan(ctx, master) })
	} else {
		err = scan(ctx, client)
	}
	return slices.Collect(maps.Keys(found)), err
}

// byAge returns the owners that are old enough, by their oldest token. An owner whose token has no
// time counts as new.
func byAge(ctx context.Context, client redis.UniversalClient, owners []owner, wanted selection) ([]owner, error) {
	ages := make(map[owner]time.Duration, len(owners))
	for some := range slices.Chunk(owners, 500) {
		tokens, err := oldestTokens(ctx, client, some)
		if err != nil {
			return nil, err
		}
		for i, o := range some {
			if at := issuedAt(tokens[i]); at != nil {
				ages[o] = time.Since(*at)
			}
		}
	}
	owners = slices.DeleteFunc(owners, func(o owner) bool { return wanted.olderThan > 0 && ages[o] <= wanted.olderThan })
	if wanted.oldest {
		slices.SortStableFunc(owners, func(a, b owner) int { return cmp.Compare(ages[b], ages[a]) })
	}
	return owners, nil
}

// oldestTokens reads the tokens in one round trip. A token that is missing or unreadable is 0.
func oldestTokens(ctx context.Context, client redis.UniversalClient, owners []owner) ([]int64, error) {
	pipe := client.Pipeline()
	values := make([]redis.Cmder, len(owners))
	for i, o := range owners {
		if o.kind == semaphoreKind {
			values[i] = pipe.ZRange(ctx, o.key, 0, -1)
		} else {
			values[i] = pipe.Get(ctx, o.key)
		}
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	tokens := make([]int64, len(owners))
	for i, value := range values {
		switch err := value.Err(); {
		case err == nil:
			tokens[i] = oldestToken(value)
		case !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE"):
			return nil, err
		}
	}
	return tokens, nil
}

// oldestToken is the lowest token in values of the form "<lease id>:<token>:<calls>".
func oldestToken(value redis.Cmder) (oldest int64) {
	var holders []string
	switch v := value.(type) {
	case *redis.StringCmd:
		holders = []string{v.Val()}
	case *redis.StringSliceCmd:
		holders = v.Val()
	}
	for _, h := range holders {
		_, rest, _ := strings.Cut(h, ":")
		number, _, _ := strings.Cut(rest, ":")
		token, err := strconv.ParseInt(number, 10, 64)
		if err == nil && (oldest == 0 || token < oldest) {
			oldest = token
		}
	}
	return oldest
}
