package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/observe/feed"
)

var kinds = []feed.Kind{feed.Waiting, feed.Granted, feed.Held, feed.Extended, feed.Released, feed.Lost, feed.Revoked,
	feed.Sealed, feed.NotSealed, feed.Committed, feed.Refused, feed.Failed}

func (a *app) watch() *cli.Command {
	var wanted filter
	return &cli.Command{
		Name:      "watch",
		Usage:     "show events of leases and writes as they happen",
		ArgsUsage: "[PREFIX]",
		Description: `Shows the events that programs publish with package observe/feed, for
resources that begin with PREFIX. It runs until Ctrl-C, which ends it with
exit code 0; --timeout bounds only its beginning. It says when Redis does not
answer, and goes on when it does. With --json each line is one event.

   fencedb watch                               all, from now on
   fencedb watch table: --kind lost,refused    what went wrong with tables
   fencedb watch --since 10m --json | jq .resource

Kinds: ` + strings.Replace(words(kinds), ", sealed", ",\nsealed", 1) + `.`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "kind", Destination: &wanted.kinds, Usage: "show only this `KIND`, or several with commas", Validator: knownKinds},
			&cli.DurationFlag{Name: "since", Destination: &wanted.since, Usage: "begin this `TIME` ago", Validator: notNegative},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			wanted.prefix = a.argument
			err := a.on(onRedis, nil, func(ctx context.Context, s *servers) (report, error) {
				return nil, s.follow(ctx, wanted)
			})(ctx, cmd)
			if ctx.Err() != nil {
				return nil // Ctrl-C ends watch
			}
			return err
		},
	}
}

// filter selects events.
type filter struct {
	prefix string
	kinds  []string // none: all
	since  time.Duration
}

func knownKinds(names []string) error {
	for _, k := range names {
		if !slices.Contains(kinds, feed.Kind(k)) {
			return fmt.Errorf("there is no %q; there are %s", k, words(kinds))
		}
	}
	return nil
}

func (s *servers) follow(ctx context.Context, wanted filter) error {
	from, err := s.startOf(ctx, wanted.since)
	if err != nil {
		return err
	}
	stream := feed.Namespace(s.names.namespace)
	s.hintAtFeed(ctx, stream)
	write := s.eventWriter()
	return feed.Follow(ctx, s.client, from, func(e feed.Event) error {
		ofKind := len(wanted.kinds) == 0 || slices.Contains(wanted.kinds, string(e.Kind))
		if !ofKind || !strings.HasPrefix(e.Resource, wanted.prefix) {
			return nil
		}
		return write(e)
	}, stream, feed.Interrupted(func(err error) {
		if err != nil {
			s.page(s.errOut).say("Redis does not answer, and until it does, no events are seen: %s", inWords(err))
		} else {
			s.page(s.errOut).say("Redis answers again.")
		}
	}))
}

// startOf returns a place in the stream, by the clock of Redis.
func (s *servers) startOf(ctx context.Context, since time.Duration) (string, error) {
	if since == 0 {
		return "$", nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("redis: time: %w", err)
	}
	return strconv.FormatInt(max(0, now.Add(-since).UnixMilli()), 10), nil
}

// hintAtFeed says how to publish if no program does.
func (s *servers) hintAtFeed(ctx context.Context, stream feed.Option) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	if published(ctx, s.client, stream) != nil {
		return
	}
	s.page(s.errOut).say("%s", "No events yet, and no program has published any before. To publish, a program passes "+
		"events := feed.New(client), of observe/feed, to lease.Config.Tracers and to fencedb.With(pool, fencedb.Trace(events)). "+
		"If they set a Namespace, give it as --namespace.")
}

// eventWriter returns what writes events as they come. Columns become wider when a longer cell
// comes.
func (a *app) eventWriter() func(feed.Event) error {
	if a.json {
		lines := json.NewEncoder(a.out)
		return func(e feed.Event) error { return lines.Encode(e) }
	}
	p, widths := a.page(a.out), []int{len(clock), 8, len(feed.Committed), 8, 16}
	return func(e feed.Event) error { return p.event(e, widths) }
}

const clock = "15:04:05.000"

func (p page) event(e feed.Event, widths []int) error {
	cells := []string{e.At.Local().Format(clock), p.name(e.Worker), p.name(string(e.Kind)), p.name(e.Resource),
		tokenText(e.Token)}
	for i, cell := range cells {
		widths[i] = max(widths[i], utf8.RuneCountInString(cell))
	}
	line, more := columns(cells, widths), happened(e)
	if p.width > 0 && utf8.RuneCountInString(line+more) > p.width {
		line = strings.TrimRight(line, " ") + "\n" + strings.Repeat(" ", len(clock)) + gap
	}
	_, err := fmt.Fprintln(p.out, p.styled(strings.TrimRight(line+more, " "), colors[e.Kind]))
	return err
}

// name shortens a name to leave room for the other columns.
func (p page) name(text string) string {
	most := 40
	if p.width > 0 {
		most = min(most, max(leastCell, p.width/5))
	}
	return shorten(visible(text), most)
}

// colors mark events that may need attention.
var colors = map[feed.Kind]string{feed.Lost: yellow, feed.Revoked: yellow,
	feed.NotSealed: red, feed.Refused: red, feed.Failed: red}
