package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
		Description: `Lists the leases, the places of semaphores and the claims of package once whose resource begins with PREFIX. Walks through
Redis with SCAN, which holds nobody up; what is acquired or released meanwhile may or may not be listed.

   fencedb leases                              all
   fencedb leases table: --json                those of type table, for a program
   fencedb leases --oldest --older-than 10m    what may be stuck, the longest first`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: flagLimit, Usage: "list at most `N` resources", Value: 1000},
			&cli.BoolFlag{Name: flagOldest, Usage: "those that are held for longest first, instead of by name"},
			&cli.DurationFlag{Name: flagOlderThan, Usage: "only those that are held for longer than this `TIME`"},
		},
		Action: a.listLeases,
	}
}

type leaseList struct {
	Leases   []held   `json:"leases"`
	More     bool     `json:"more"`     // there are more than --limit
	Problems []string `json:"problems"` // keys that are not as the protocol writes them
}

type held struct {
	Resource string `json:"resource"`
	Kind     string `json:"kind"` // lease, semaphore or once
	holder
	Waiters int `json:"waiters"`
}

// print leaves out what would tell nothing apart: the kind if all are leases, and the end of lease ids.
func (l *leaseList) print(p page) {
	header := []string{"RESOURCE", "TOKEN", "HELD FOR", "ENDS IN", "WAITING", "LEASE", "KIND"}
	if !slices.ContainsFunc(l.Leases, func(h held) bool { return h.Kind != leaseKind }) {
		header = header[:len(header)-1]
	}
	rows := make([][]string, len(l.Leases))
	for i, h := range l.Leases {
		rows[i] = []string{visible(h.Resource), strconv.FormatInt(h.Token, 10), since(h.IssuedAt),
			span(time.Duration(h.ExpiresInMS) * time.Millisecond), strconv.Itoa(h.Waiters), h.LeaseID.String()[:8], h.Kind}[:len(header)]
	}
	p.table(header, rows)
	if l.More {
		fmt.Fprintf(p.out, "\nand more; see --%s\n", flagLimit)
	}
	for _, problem := range l.Problems {
		p.paragraph("* ", problem, "  ")
	}
}

// since is empty where the time is not known.
func since(at *time.Time) string {
	if at == nil {
		return ""
	}
	return span(max(0, time.Since(*at)))
}

// selection is what leases is asked for.
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
	ctx, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	client, err := redisClient(ctx, cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	list, err := findLeases(ctx, client, wanted)
	if err != nil {
		return err
	}
	return a.show(cmd, list)
}

func newSelection(cmd *cli.Command) (selection, error) {
	wanted := selection{cmd.String(flagNamespace), cmd.Args().First(), cmd.Int(flagLimit), cmd.Bool(flagOldest), cmd.Duration(flagOlderThan)}
	switch {
	case cmd.Args().Len() > 1:
		return wanted, usage("%s takes one prefix, got %q", cmd.FullName(), cmd.Args().Slice())
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
	// Not hashed here, whatever the programs do: what SCAN found is the name in Redis already.
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
		list.Leases = append(list.Leases, slices.DeleteFunc(holders, wanted.tooNew)...)
	}
	return list, nil
}

// tooNew is asked again of each holder: of a semaphore's some may be new.
func (s selection) tooNew(h held) bool {
	return s.olderThan > 0 && (h.IssuedAt == nil || time.Since(*h.IssuedAt) <= s.olderThan)
}

// holders may be none: the resource may have been released since.
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
