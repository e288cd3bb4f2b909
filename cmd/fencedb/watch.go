package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/observe/feed"
)

const (
	flagKind  = "kind"
	flagSince = "since"
)

var kinds = []feed.Kind{feed.Waiting, feed.Granted, feed.Held, feed.Extended, feed.Released, feed.Lost, feed.Revoked, feed.Healed,
	feed.Committed, feed.Refused, feed.Failed}

func (a *app) watch() *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "show what becomes of leases and writes, as it happens",
		ArgsUsage: "[PREFIX]",
		Description: `Follows what programs publish that have package observe/feed switched on, of resources that begin with PREFIX, until Ctrl-C
ends it with exit code 0. Redis may go away meanwhile and come back. With --json each line is one event.

   fencedb watch                                       all, from now on
   fencedb watch table: --kind lost,refused            what went wrong with tables
   fencedb watch --since 10m --json | jq .resource     from ten minutes ago, for a program

Kinds: ` + kindNames() + `.`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: flagKind, Usage: "show only this `KIND`; several with commas"},
			&cli.DurationFlag{Name: flagSince, Usage: "begin with what happened this `TIME` ago; Redis keeps about the last 10000 events"},
		},
		Action: a.follow,
	}
}

func kindNames() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// filter chooses events.
type filter struct {
	prefix string
	kinds  []string // none: all
}

func newFilter(cmd *cli.Command) (filter, error) {
	f := filter{cmd.Args().First(), cmd.StringSlice(flagKind)}
	if cmd.Args().Len() > 1 {
		return f, usage("%s takes one prefix, got %q", cmd.FullName(), cmd.Args().Slice())
	}
	for _, k := range f.kinds {
		if !slices.Contains(kinds, feed.Kind(k)) {
			return f, usage("--%s: there is no %q; there are %s", flagKind, k, kindNames())
		}
	}
	if cmd.Duration(flagSince) < 0 {
		return f, usage("--%s must not be negative, got %v", flagSince, cmd.Duration(flagSince))
	}
	return f, nil
}

func (f filter) passes(e feed.Event) bool {
	return strings.HasPrefix(e.Resource, f.prefix) && (len(f.kinds) == 0 || slices.Contains(f.kinds, string(e.Kind)))
}

func (a *app) follow(ctx context.Context, cmd *cli.Command) error {
	wanted, err := newFilter(cmd)
	if err != nil {
		return err
	}
	if err := a.followFeed(ctx, cmd, wanted); ctx.Err() == nil {
		return err
	}
	return nil // Ctrl-C is how one leaves
}

func (a *app) followFeed(ctx context.Context, cmd *cli.Command, wanted filter) error {
	connecting, cancel, err := bounded(ctx, cmd)
	if err != nil {
		return err
	}
	defer cancel()
	client, err := redisClient(connecting, cmd)
	if err != nil {
		return err
	}
	defer client.Close()
	from, err := startOf(connecting, client, cmd.Duration(flagSince))
	if err != nil {
		return err
	}
	stream := feed.Namespace(cmd.String(flagNamespace))
	hint := time.AfterFunc(a.patience, func() { a.hintAtFeed(ctx, client, stream) })
	defer hint.Stop()

	lines := a.newLines(cmd)
	return feed.Follow(ctx, client, from, func(e feed.Event) error {
		hint.Stop()
		if !wanted.passes(e) {
			return nil
		}
		return lines.write(e)
	}, stream)
}

// startOf is a place in the stream, by Redis's clock.
func startOf(ctx context.Context, client redis.UniversalClient, since time.Duration) (string, error) {
	if since == 0 {
		return "$", nil
	}
	now, err := client.Time(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("redis: time: %w", err)
	}
	return strconv.FormatInt(max(0, now.Add(-since).UnixMilli()), 10), nil
}

// patience is how long watch waits for a first event before it looks whether there is anybody to wait for.
const patience = 5 * time.Second

func (a *app) hintAtFeed(ctx context.Context, client redis.UniversalClient, stream feed.Option) {
	if some, err := published(ctx, client, stream); err != nil || some {
		return
	}
	page{a.errOut, a.screen}.paragraph("", "Nothing yet, and nobody has published here before. Programs do when they are told to: "+
		"events := feed.New(client), from observe/feed, among lease.Config.Tracers and in fencedb.With(pool, fencedb.Trace(events)). "+
		"If they set a Namespace, give it as --"+flagNamespace+".", "")
}
