package look

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

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/observe/feed"
)

var kinds = []feed.Kind{feed.Waiting, feed.Granted, feed.Held, feed.Extended, feed.Released, feed.Lost, feed.Revoked,
	feed.Sealed, feed.NotSealed, feed.Committed, feed.Refused, feed.Failed}

// Watch is the command watch.
func Watch(a *app.State) *cli.Command {
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

Kinds: ` + strings.Replace(term.Words(kinds), ", sealed", ",\nsealed", 1) + `.`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "kind", Destination: &wanted.kinds, Usage: "show only this `KIND`, or several with commas", Validator: knownKinds},
			&cli.DurationFlag{Name: "since", Destination: &wanted.since, Usage: "begin this `TIME` ago", Validator: app.NotNegative},
		},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			wanted.prefix = a.Argument
			err := conn.Action(a, conn.Redis, nil, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
				return nil, follow(ctx, s, wanted)
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
			return fmt.Errorf("there is no %q; there are %s", k, term.Words(kinds))
		}
	}
	return nil
}

func follow(ctx context.Context, s *conn.Servers, wanted filter) error {
	from, err := startOf(ctx, s, wanted.since)
	if err != nil {
		return err
	}
	stream := feed.Namespace(s.Names.Namespace)
	hintAtFeed(ctx, s, stream)
	write := eventWriter(s.State)
	return feed.Follow(ctx, s.Client, from, func(e feed.Event) error {
		ofKind := len(wanted.kinds) == 0 || slices.Contains(wanted.kinds, string(e.Kind))
		if !ofKind || !strings.HasPrefix(e.Resource, wanted.prefix) {
			return nil
		}
		return write(e)
	}, stream, feed.OnOutage(func(err error) {
		if err != nil {
			s.Page(s.ErrOut).Say("Redis does not answer, and until it does, no events are seen: %s", app.InWords(err))
		} else {
			s.Page(s.ErrOut).Say("Redis answers again.")
		}
	}))
}

// startOf returns a place in the stream, by the clock of Redis.
func startOf(ctx context.Context, s *conn.Servers, since time.Duration) (string, error) {
	if since == 0 {
		return "$", nil
	}
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	now, err := s.Client.Time(ctx).Result()
	if err != nil {
		return "", fmt.Errorf("redis: time: %w", err)
	}
	return strconv.FormatInt(max(0, now.Add(-since).UnixMilli()), 10), nil
}

// hintAtFeed says how to publish if no program does.
func hintAtFeed(ctx context.Context, s *conn.Servers, stream feed.Option) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	if Published(ctx, s.Client, stream) != nil {
		return
	}
	s.Page(s.ErrOut).Say("%s", "No events yet, and no program has published any before. To publish, a program passes "+
		"events := feed.New(client), of observe/feed, to lease.Config.Tracers and to fencedb.With(pool, fencedb.Trace(events)). "+
		"If they set a Namespace, give it as --namespace.")
}

// eventWriter returns what writes events as they come. Columns become wider when a longer cell
// comes.
func eventWriter(a *app.State) func(feed.Event) error {
	if a.JSON {
		lines := json.NewEncoder(a.Out)
		return func(e feed.Event) error { return lines.Encode(e) }
	}
	p, widths := a.Page(a.Out), []int{len(clock), 8, len(feed.Committed), 8, 16}
	return func(e feed.Event) error { return printEvent(p, e, widths) }
}

const clock = "15:04:05.000"

func printEvent(p term.Page, e feed.Event, widths []int) error {
	cells := []string{e.At.Local().Format(clock), short(p, e.Worker), short(p, string(e.Kind)), short(p, e.Resource),
		term.TokenText(e.Token)}
	for i, cell := range cells {
		widths[i] = max(widths[i], utf8.RuneCountInString(cell))
	}
	line, more := term.Columns(cells, widths), happened(e)
	if p.Width > 0 && utf8.RuneCountInString(line+more) > p.Width {
		line = strings.TrimRight(line, " ") + "\n" + strings.Repeat(" ", len(clock)) + term.Gap
	}
	_, err := fmt.Fprintln(p.Out, p.Styled(strings.TrimRight(line+more, " "), colors[e.Kind]))
	return err
}

// short shortens a name to leave room for the other columns.
func short(p term.Page, text string) string {
	most := 40
	if p.Width > 0 {
		most = min(most, max(term.LeastCell, p.Width/5))
	}
	return term.Shorten(term.Visible(text), most)
}

// colors mark events that may need attention.
var colors = map[feed.Kind]string{feed.Lost: term.Yellow, feed.Revoked: term.Yellow,
	feed.NotSealed: term.Red, feed.Refused: term.Red, feed.Failed: term.Red}
