package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Leases is the command leases.
func Leases(a *app.State) *cli.Command {
	var wanted selection
	return &cli.Command{
		Name:      "leases",
		Usage:     "list what is held now",
		ArgsUsage: "[PREFIX]",
		Description: `Lists the leases, the permits of semaphores and the claims of package once
whose resource begins with PREFIX. It reads Redis with SCAN, which blocks
nobody. A resource that is acquired or released meanwhile may be missing. If
Redis's clock was set back, some ages are not known; --older-than lists those
resources too. If Redis does not answer, the command lists what entered last,
from the ledger in Postgres; the exit code is 1 then.

   fencedb leases                              all
   fencedb leases table: --json                those of type table, as JSON
   fencedb leases --oldest --older-than 10m    those that may be stuck`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "limit", Destination: &wanted.limit, Usage: "list at most `N` resources", Value: 1000, Validator: app.AtLeast(1)},
			&cli.BoolFlag{Name: "oldest", Destination: &wanted.oldest, Usage: "sort by how long they are held, longest first"},
			&cli.DurationFlag{Name: "older-than", Destination: &wanted.olderThan, Usage: "only those held for longer than this `TIME`", Validator: app.NotNegative},
		},
		Action: conn.TimedAction(a, conn.Redis|conn.Halves, func(*cli.Command) error {
			if wanted.prefix = a.Argument; wanted.prefix != "" && a.Names.Hashed {
				return app.UsageError("with --hash-resources Redis does not know how resources begin; list them without a prefix")
			}
			return nil
		}, func(ctx context.Context, s *conn.Servers) (term.Report, error) {
			if s.RedisAway != nil {
				return nil, errors.Join(showEntered(ctx, s, wanted), s.RedisAway)
			}
			return findLeases(ctx, s, wanted)
		}),
	}
}

// LeaseList is the result of leases.
type LeaseList struct {
	Leases   []held   `json:"leases"`
	Entered  []latest `json:"entered"`  // by the ledger; nil unless Redis is away
	More     bool     `json:"more"`     // more than --limit exist
	Problems []string `json:"problems"` // keys that violate the protocol

	asked     selection
	namespace string
	elsewhere []string // other namespaces with what was asked for, in words, if this one has nothing
}

// nothing says what is not held.
func (l *LeaseList) nothing() string {
	text := "Nothing is held"
	if l.namespace != "" || len(l.elsewhere) > 0 {
		text += " " + app.InNamespace(l.namespace)
	}
	if l.asked.prefix != "" {
		text += fmt.Sprintf(" whose name begins with %q", l.asked.prefix)
	}
	if l.asked.olderThan > 0 {
		text += " for longer than " + term.Span(l.asked.olderThan)
	}
	if len(l.elsewhere) > 0 {
		text += ". Redis has leases " + strings.Join(l.elsewhere, ", ") + ": see --namespace"
	}
	return text + "."
}

// latest is a fence that was entered, by whoever held then.
type latest struct {
	Resource  string    `json:"resource"`
	Token     int64     `json:"token"`
	LeaseID   uuid.UUID `json:"lease_id"`
	EnteredAt time.Time `json:"entered_at"`
}

type held struct {
	Resource string `json:"resource"`
	Kind     string `json:"kind"` // lease, semaphore or once
	Holder
	Waiters int `json:"waiters"`
}

// Print implements [term.Report]. It leaves out the kind if all are leases, and shortens lease ids.
func (l *LeaseList) Print(p term.Page) {
	if l.Entered != nil {
		p.Say("Who holds what is not known, because Redis does not answer. These have entered last, by the ledger in Postgres:")
		term.List(p, []string{"RESOURCE", "TOKEN", "ENTERED", "LEASE"}, l.Entered, func(e latest) []string {
			entered := term.Ago(p.Ahead.SincePostgres(e.EnteredAt))
			return []string{term.Visible(e.Resource), fmt.Sprint(e.Token), entered, e.LeaseID.String()[:8]}
		})
		return
	}
	header := []string{"RESOURCE", "TOKEN", "HELD FOR", "ENDS IN", "WAITING", "LEASE", "HOLDER", "KIND"}
	if !slices.ContainsFunc(l.Leases, func(h held) bool { return h.Kind != protocol.LeaseKind }) {
		header = header[:len(header)-1]
	}
	switch {
	case len(l.Leases) == 0 && len(l.Problems) == 0:
		p.Say("%s", l.nothing())
	case len(l.Leases) > 0:
		term.Table(p, header, l.Leases, func(h held) []string {
			return []string{term.Visible(h.Resource), fmt.Sprint(h.Token), cmp.Or(h.age(p), "not known"),
				term.Millis(h.ExpiresInMS), fmt.Sprint(h.Waiters), h.LeaseID.String()[:8],
				term.Visible(h.Label), h.Kind}[:len(header)]
		})
	}
	if l.More {
		fmt.Fprintln(p.Out, "\nand more; see --limit")
	}
	for _, problem := range l.Problems {
		p.Point("%s", problem)
	}
}

// showEntered shows what the ledger knows of those that hold, if an address of Postgres is given.
func showEntered(ctx context.Context, s *conn.Servers, wanted selection) error {
	if s.PostgresURL == "" {
		return nil
	}
	ledger, err := conn.Open(ctx, s.State, conn.Postgres)
	if err != nil {
		return err
	}
	defer ledger.Close()
	if err := ledger.Connect(ctx, conn.Postgres); err != nil {
		return err
	}
	rows, _ := ledger.Pool.Query(ctx, `SELECT resource, last_fencing_token, lease_id::text, advanced_at FROM fencedb.fences
		WHERE starts_with(resource, $1) ORDER BY advanced_at DESC LIMIT $2`, wanted.prefix, wanted.limit)
	found := &LeaseList{Leases: []held{}, Problems: []string{}}
	if found.Entered, err = pgx.AppendRows([]latest{}, rows, pgx.RowToStructByPos[latest]); err != nil {
		return conn.Explained(err)
	}
	if len(found.Entered) == 0 {
		if err := conn.MaySee(ctx, ledger.Pool); err != nil {
			return err
		}
	}
	for i := range found.Entered {
		found.Entered[i].EnteredAt = found.Entered[i].EnteredAt.UTC()
	}
	s.Ahead.Postgres = ledger.Ahead.Postgres
	return s.Show(found)
}

// selection holds the arguments of leases.
type selection struct {
	prefix    string
	limit     int
	oldest    bool
	olderThan time.Duration
}

func findLeases(ctx context.Context, s *conn.Servers, wanted selection) (*LeaseList, error) {
	keys, err := Survey(ctx, s, func(k lease.Key) bool { return k.Field == "owner" && strings.HasPrefix(k.Resource, wanted.prefix) })
	if err != nil {
		return nil, err
	}
	return listLeases(ctx, s, wanted, keys)
}

// listLeases lists those of owners, which are keys of all namespaces.
func listLeases(ctx context.Context, s *conn.Servers, wanted selection, owners []lease.Key) (*LeaseList, error) {
	shown := app.Names{Namespace: s.Names.Namespace} // never hashed: SCAN finds the names that Redis has
	var keys []lease.Key
	var others []string
	for _, k := range owners {
		if k.Namespace == shown.Namespace {
			keys = append(keys, k)
		} else {
			others = append(others, term.Visible(app.InNamespace(k.Namespace)))
		}
	}
	slices.SortFunc(keys, func(a, b lease.Key) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Kind, b.Kind))
	})
	list := &LeaseList{Leases: []held{}, asked: wanted, namespace: shown.Namespace}
	if len(keys) == 0 {
		slices.Sort(others)
		list.elsewhere = slices.Compact(others)
	}
	if !wanted.oldest && wanted.olderThan == 0 { // otherwise all have to be looked at
		list.More = len(keys) > wanted.limit
		keys = keys[:min(wanted.limit, len(keys))]
	}
	i, err1 := lease.New(s.Client, shown.Config())
	semaphore, err2 := shown.Semaphore(s.Client)
	if err := errors.Join(err1, err2); err != nil {
		return nil, app.UsageError("%w", err)
	}

	now := time.Now().Add(s.Ahead.Redis)
	// Where the token does not tell how old it is, it comes last, and may be older.
	age := func(h held) time.Duration { return now.Sub(*cmp.Or(h.IssuedAt, &now)) }
	younger := func(h held) bool {
		return wanted.olderThan > 0 && h.IssuedAt != nil && age(h) <= wanted.olderThan
	}
	all, problems := make([][]held, len(keys)), make([]string, len(keys))
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(16)
	for n, key := range keys {
		asking.Go(func() error {
			found, err := holdersOf(ctx, s, key, i, semaphore)
			if errors.Is(err, lease.ErrCorrupt) {
				problems[n], err = err.Error(), nil
			}
			all[n] = slices.DeleteFunc(found, younger)
			return err
		})
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	list.Problems = slices.DeleteFunc(problems, func(problem string) bool { return problem == "" })
	all = slices.DeleteFunc(all, func(some []held) bool { return len(some) == 0 })
	if wanted.oldest {
		slices.SortStableFunc(all, func(a, b []held) int { return cmp.Compare(age(b[0]), age(a[0])) })
	}
	list.More = list.More || len(all) > wanted.limit
	list.Leases = append(list.Leases, slices.Concat(all[:min(wanted.limit, len(all))]...)...)
	return list, nil
}

// holdersOf are those of a key, the longest first; none if the resource was released since.
func holdersOf(ctx context.Context, s *conn.Servers, key lease.Key, i *lease.Issuer,
	semaphore *lease.Semaphore) (all []held, err error) {
	if key.Kind == protocol.SemaphoreKind {
		known, err := readPermits(ctx, s.Ahead, semaphore, key.Resource)
		if err != nil {
			return nil, err
		}
		for _, permit := range known.Permits {
			all = append(all, held{key.Resource, key.Kind, permit, known.Waiters})
		}
		return all, nil
	}
	known, err := i.Inspect(ctx, key.Resource)
	if err != nil || known.Token == 0 {
		return nil, err
	}
	if strings.HasPrefix(key.Resource, "once:") {
		key.Kind = protocol.OnceKind
	}
	return []held{{key.Resource, key.Kind, *holderOf(s.Ahead, known), known.Waiters}}, nil
}
