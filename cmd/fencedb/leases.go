package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/lease"
)

const flagLimit = "limit"

func (a *app) leases() *cli.Command {
	return &cli.Command{
		Name:      "leases",
		Usage:     "list what is held now",
		ArgsUsage: "[PREFIX]",
		Description: `Lists the leases whose resource begins with PREFIX. Walks through Redis with SCAN, which holds nobody up; what is
acquired or released meanwhile may or may not be listed.

   fencedb leases                 all
   fencedb leases table: --json   those of type table, for a program`,
		Flags:  []cli.Flag{&cli.IntFlag{Name: flagLimit, Usage: "list at most `N`", Value: 1000}},
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
	holder
	Waiters int `json:"waiters"`
}

func (l *leaseList) print(p page) {
	rows := make([][]string, len(l.Leases))
	for i, h := range l.Leases {
		since := ""
		if h.IssuedAt != nil {
			since = span(max(0, time.Since(*h.IssuedAt)))
		}
		rows[i] = []string{visible(h.Resource), strconv.FormatInt(h.Token, 10), since,
			span(time.Duration(h.ExpiresInMS) * time.Millisecond), strconv.Itoa(h.Waiters), h.LeaseID.String()}
	}
	p.table([]string{"RESOURCE", "TOKEN", "HELD FOR", "ENDS IN", "WAITING", "LEASE"}, rows)
	if l.More {
		fmt.Fprintf(p.out, "\nand more; see --%s\n", flagLimit)
	}
	for _, problem := range l.Problems {
		p.paragraph("* ", problem, "  ")
	}
}

func (a *app) listLeases(ctx context.Context, cmd *cli.Command) error {
	prefix, err := prefixOf(cmd)
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
	list, err := findLeases(ctx, client, cmd.String(flagNamespace), prefix, cmd.Int(flagLimit))
	if err != nil {
		return err
	}
	return a.show(cmd, list)
}

func prefixOf(cmd *cli.Command) (string, error) {
	switch {
	case cmd.Args().Len() > 1:
		return "", usage("%s takes one prefix, got %q", cmd.FullName(), cmd.Args().Slice())
	case cmd.Args().Present() && cmd.Bool(flagHashed):
		return "", usage("with --%s Redis does not know how resources begin; list them without a prefix", flagHashed)
	case cmd.Int(flagLimit) < 1:
		return "", usage("--%s must be at least 1, got %d", flagLimit, cmd.Int(flagLimit))
	}
	return cmd.Args().First(), nil
}

func findLeases(ctx context.Context, client redis.UniversalClient, namespace, prefix string, limit int) (*leaseList, error) {
	names, err := scanOwners(ctx, client, namespace, prefix)
	if err != nil {
		return nil, fmt.Errorf("redis: scan: %w", err)
	}
	// Not hashed here, whatever the programs do: what SCAN found is the name in Redis already.
	i, err := lease.New(client, lease.Config{TTL: time.Minute, Namespace: namespace})
	if err != nil {
		return nil, usage("%w", err)
	}
	list := &leaseList{Leases: []held{}, Problems: []string{}, More: len(names) > limit}
	for _, name := range names[:min(limit, len(names))] {
		known, err := i.Inspect(ctx, name)
		switch {
		case errors.Is(err, lease.ErrCorrupt):
			list.Problems = append(list.Problems, err.Error())
		case err != nil:
			return nil, err
		case known.Token > 0: // otherwise it has ended since
			list.Leases = append(list.Leases, held{name, *newInspection(known).Holder, known.Waiters})
		}
	}
	return list, nil
}

// scanOwners returns the resources that are held, in order.
func scanOwners(ctx context.Context, client redis.UniversalClient, namespace, prefix string) ([]string, error) {
	var mu sync.Mutex
	found := map[string]bool{} // SCAN may name a key twice
	scan := func(ctx context.Context, server redis.Cmdable) error {
		keys := server.Scan(ctx, 0, ownerPattern(namespace, prefix), 1000).Iterator()
		for keys.Next(ctx) {
			if name, ok := resourceOf(keys.Val(), namespace); ok {
				mu.Lock()
				found[name] = true
				mu.Unlock()
			}
		}
		return keys.Err()
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return scan(ctx, master) })
	} else {
		err = scan(ctx, client)
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, err
}

// The names of keys, as package lease makes them: lease:v1:{namespace/resource}:owner
var (
	escaper   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%2F", "/")
	globber   = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`)
)

const (
	beforeName = "lease:v1:{"
	afterName  = "}:owner"
)

func ownerPattern(namespace, prefix string) string {
	return beforeName + globber.Replace(tenant(namespace)+escaper.Replace(prefix)) + "*" + afterName
}

// resourceOf refuses the keys of other namespaces, which a pattern cannot.
func resourceOf(key, namespace string) (string, bool) {
	name, ok := strings.CutPrefix(key, beforeName+tenant(namespace))
	name, whole := strings.CutSuffix(name, afterName)
	return unescaper.Replace(name), ok && whole && !strings.Contains(name, "/")
}

func tenant(namespace string) string {
	if namespace == "" {
		return ""
	}
	return escaper.Replace(namespace) + "/"
}
