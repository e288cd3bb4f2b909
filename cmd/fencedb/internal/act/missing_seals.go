package act

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/look"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
)

// Sealing is the result of revoke --behind.
type Sealing struct {
	Sealed    []look.Unsealed `json:"sealed"`
	Raised    []Raised        `json:"raised"`
	Failed    []Failed        `json:"failed"`
	Unnamed   int             `json:"unnamed"`   // that may be behind too: Redis knows only the hash, and the ledger has none of these
	Elsewhere []LeftAlone     `json:"elsewhere"` // other namespaces with tokens above the ledger's
	AuditID   int64           `json:"audit_id"`  // 0: nothing was changed

	where string // was looked
}

// Raised is one whose token in the ledger is above what Redis would issue next.
type Raised struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token"`
	Redis    int64  `json:"redis_token"` // the last one that Redis knew; 0: none

	forms []bool // of its name that are to be raised: hashed or not
}

// Failed is one that could not be sealed, or raised.
type Failed struct {
	Resource string `json:"resource"`
	Error    string `json:"error"`
}

// LeftAlone is a namespace that is not that of the flags: whether its programs write to this
// database is not known.
type LeftAlone struct {
	Namespace string `json:"namespace"`
	Resources int    `json:"resources"`
	Example   string `json:"example"` // a resource; "": Redis knows only their hashes
}

// Print implements [term.Report].
func (r *Sealing) Print(p term.Page) {
	if len(r.Sealed)+len(r.Raised)+len(r.Failed) > 0 {
		term.Table(p, []string{"RESOURCE", "WHAT", "TOKEN", "HAD"}, r.rows(), func(row []string) []string { return row })
		fmt.Fprintln(p.Out)
	} else {
		p.Say("Nothing to seal or to raise %s. Nothing was changed.", r.where)
	}
	if len(r.Sealed) > 0 {
		p.Point("Sealed, in protected tables: only who holds one of these now, or acquires it later, can write. No lease was ended.")
	}
	if len(r.Raised) > 0 {
		p.Point("Raised: whoever acquires one of these next gets a token that the ledger accepts. No lease was ended; whoever holds one with a lower token is refused, as before.")
	}
	for _, f := range r.Failed {
		p.Point("%s was not changed: %s", term.Visible(f.Resource), f.Error)
	}
	if r.Unnamed > 0 {
		p.Point("Resources of which Redis knows only the hash, and which are not in the ledger: %d. They cannot be sealed from here, and former holders may write to them. Each is sealed when it is next acquired with package guard or lease.Config.Seal, or by its name with fencedb revoke.", r.Unnamed)
	}
	for _, e := range r.Elsewhere {
		p.Point("Left alone: Redis has tokens above the ledger's %s too, of %d resources%s. If those programs write to this database, their former holders may write: call it again with that --namespace. Otherwise that is as it should be.",
			app.InNamespace(e.Namespace), e.Resources, term.Prefixed(", such as ", term.Visible(e.Example), ""))
	}
	if r.AuditID != 0 {
		fmt.Fprintf(p.Out, "\nRecorded as %d in fencedb.audit.\n", r.AuditID)
	}
}

func (r *Sealing) rows() (rows [][]string) {
	for _, u := range r.Sealed {
		rows = append(rows, []string{term.Visible(u.Resource), "sealed", term.TokenText(u.Token), cmp.Or(term.TokenText(u.Ledger), "none")})
	}
	for _, u := range r.Raised {
		rows = append(rows, []string{term.Visible(u.Resource), "raised", term.TokenText(u.Token), cmp.Or(term.TokenText(u.Redis), "none")})
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
func sealBehind(ctx context.Context, s *conn.Servers, e event, force bool) error {
	c, err := compare(ctx, s)
	if err != nil {
		return err
	}
	done := &Sealing{Sealed: []look.Unsealed{}, Raised: []Raised{}, Failed: []Failed{},
		Unnamed: c.unnamed, Elsewhere: c.elsewhere, where: "in any namespace"}
	if len(c.elsewhere) > 0 || c.unnamed > 0 {
		done.where = app.InNamespace(s.Names.Namespace) + " that is known by name"
	}
	if len(c.ahead)+len(c.low) > 0 {
		if err := s.Confirm(ctx, c.question()); err != nil {
			return err
		}
		if err := level(ctx, s, e, c, done); err != nil {
			return err
		}
	}
	switch err := s.Show(done); {
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
	ahead     []look.Unsealed
	low       []Raised
	unnamed   int
	elsewhere []LeftAlone
}

func (c *comparison) question() string {
	such := func(n int, name func(int) string) string {
		names := make([]string, min(n, 5))
		for i := range names {
			names[i] = term.Visible(name(i))
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
func level(ctx context.Context, s *conn.Servers, e event, c comparison, done *Sealing) error {
	fences := make([]string, len(c.ahead))
	for n, u := range c.ahead {
		fences[n] = u.Resource
	}
	ctx, cancel := s.Bounded(ctx, fences...)
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
				done.Failed = append(done.Failed, Failed{resource, app.InWords(err)})
			}
			return nil
		})
	}
	for _, u := range c.ahead {
		each(u.Resource, func() (int64, error) { return sealLast(ctx, s, u.Resource) }, func(token int64) {
			u.Token = token
			done.Sealed = append(done.Sealed, u)
		})
	}
	for _, r := range c.low {
		each(r.Resource, func() (int64, error) { return r.Token, raise(ctx, s, r) }, func(int64) {
			done.Raised = append(done.Raised, r)
		})
	}
	_ = asking.Wait()
	slices.SortFunc(done.Sealed, func(a, b look.Unsealed) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortFunc(done.Raised, func(a, b Raised) int { return strings.Compare(a.Resource, b.Resource) })
	slices.SortFunc(done.Failed, func(a, b Failed) int { return strings.Compare(a.Resource, b.Resource) })
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout) // also after Ctrl-C
	defer cancel()
	var err error
	details := map[string]any{"behind": len(c.ahead), "sealed": len(done.Sealed), "raised": len(done.Raised)}
	if done.AuditID, err = e.record(recording, s.Pool, details); err != nil {
		s.Changed = fmt.Sprintf("%d of %d resources were sealed and %d of %d raised, which may not be recorded in fencedb.audit",
			len(done.Sealed), len(c.ahead), len(done.Raised), len(c.low))
		return err
	}
	return nil
}

// sealPatience bounds the wait for transactions that hold one of many fences.
const sealPatience = 5 * time.Second

// sealLast seals with the higher token of both forms of the name.
func sealLast(ctx context.Context, s *conn.Servers, resource string) (token int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
	id := uuid.New()
	for _, hashed := range []bool{false, true} {
		p := look.Location{Namespace: s.Names.Namespace, Hashed: hashed}
		if err := p.Read(ctx, s, resource); err != nil {
			return 0, err
		}
		if h := p.Holder; h != nil && h.Token > token {
			token, id = h.Token, h.LeaseID
		} else if h == nil && app.Value(p.LastToken) > token {
			token, id = *p.LastToken, uuid.New()
		}
	}
	until, _ := ctx.Deadline()
	return token, fencedb.Seal(ctx, s.Pool, fencedb.NewGrant(resource, token, id, until))
}

func raise(ctx context.Context, s *conn.Servers, r Raised) error {
	for _, hashed := range r.forms {
		i, err := lease.New(s.Client, app.Names{Namespace: s.Names.Namespace, Hashed: hashed}.Config())
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
func compare(ctx context.Context, s *conn.Servers) (c comparison, err error) {
	ctx, cancel := s.Bounded(ctx)
	defer cancel()
	if err := mayCall(ctx, s.Pool, recorded, entered); err != nil {
		return c, err
	}
	keys, err := look.Survey(ctx, s, func(k lease.Key) bool { return look.IsCounter(k) || k.Field == "ended" && k.Kind == protocol.LeaseKind })
	if err != nil {
		return c, err
	}
	counters := slices.DeleteFunc(slices.Clone(keys), func(k lease.Key) bool { return !look.IsCounter(k) })
	tokens, err := look.LastTokens(ctx, s, counters)
	if err != nil {
		return c, err
	}
	issued := map[string]map[lease.Key]int64{s.Names.Namespace: {}}
	for n, k := range counters {
		if issued[k.Namespace] == nil {
			issued[k.Namespace] = map[lease.Key]int64{}
		}
		issued[k.Namespace][k] = tokens[n]
	}
	for _, namespace := range slices.Sorted(maps.Keys(issued)) {
		all, unnamed, err := missingSeals(ctx, s, namespace, issued[namespace], keys)
		if err != nil {
			return c, conn.Explained(err)
		}
		if namespace == s.Names.Namespace {
			c.ahead, c.unnamed = all, unnamed
		} else if n := len(all) + unnamed; n > 0 {
			left := LeftAlone{Namespace: namespace, Resources: n}
			if len(all) > 0 {
				left.Example = all[0].Resource
			}
			c.elsewhere = append(c.elsewhere, left)
		}
	}
	c.low, err = low(ctx, s, issued)
	return c, conn.Explained(err)
}

// missingSeals finds the resources for which Redis has issued a token, in a namespace, that the
// ledger has not seen. A digest does not tell the name, so hashed ones are those that the ledger
// has; unnamed are how many Redis knows beside these. Claims of package once, one for each key that
// ever was, count only if they are known to have entered. keys are those of revocations, too.
func missingSeals(ctx context.Context, s *conn.Servers, namespace string, issued map[lease.Key]int64,
	keys []lease.Key) (all []look.Unsealed, unnamed int, err error) {
	last, known, nameless := map[string]int64{}, map[string]string{}, []string{}
	for k, token := range issued {
		d := look.Digest(k)
		last[d] = max(last[d], token)
		if !look.IsHashed(k) {
			known[d] = k.Resource
		}
	}
	for d := range last {
		if known[d] == "" {
			nameless = append(nameless, d)
		}
	}
	if unnamed, err = look.NameDigests(ctx, s, namespace, nameless, known); err != nil {
		return nil, 0, err
	}
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(known)), look.BatchSize) {
		resources, tokens := make([]string, len(batch)), make([]int64, len(batch))
		for n, d := range batch {
			resources[n], tokens[n] = known[d], last[d]
		}
		rows, _ := s.Pool.Query(ctx, look.BehindLedger, resources, tokens)
		if all, err = pgx.AppendRows(all, rows, pgx.RowToStructByPos[look.Unsealed]); err != nil {
			return nil, 0, err
		}
	}
	claim := func(u look.Unsealed) bool { return u.Ledger == 0 && strings.HasPrefix(u.Resource, "once:") }
	if slices.ContainsFunc(all, claim) {
		seen, err := look.Proven(ctx, s, namespace, keys)
		if err != nil {
			return nil, 0, err
		}
		all = slices.DeleteFunc(all, func(u look.Unsealed) bool { return claim(u) && seen[u.Resource] == 0 })
	}
	slices.SortFunc(all, func(a, b look.Unsealed) int { return strings.Compare(a.Resource, b.Resource) })
	return all, unnamed, nil
}

// low finds the fences that are above what Redis would issue next in the namespace of the flags:
// above the clock of Redis, which is the floor of new tokens, and above the last token in each form
// of the name that is known. Where another namespace has issued the token, its fence is from there.
func low(ctx context.Context, s *conn.Servers, issued map[string]map[lease.Key]int64) (all []Raised, err error) {
	health, err := s.Issuer.Check(ctx) // a server that is unfit has a clock too
	least := look.Floor(health.Servers)
	if least == 0 {
		return nil, cmp.Or(err, errors.New("redis: its clock is not known"))
	}
	rows, _ := s.Pool.Query(ctx, `SELECT f.resource, f.last_fencing_token FROM fencedb.fences f
		WHERE f.last_fencing_token > $1 AND NOT `+look.Foreign+` AND NOT `+look.TooHigh+` ORDER BY f.resource`, least)
	var r Raised
	_, err = pgx.ForEachRow(rows, []any{&r.Resource, &r.Token}, func() error {
		r.Redis, r.forms = 0, nil
		here := false
		for namespace, counters := range issued {
			for _, hashed := range []bool{false, true} {
				last, known := counters[app.Names{Namespace: namespace, Hashed: hashed}.Key(r.Resource)]
				switch {
				case namespace != s.Names.Namespace && last >= r.Token:
					return nil
				case namespace != s.Names.Namespace || !known:
					continue
				case last < r.Token:
					r.forms = append(r.forms, hashed)
				}
				here, r.Redis = true, max(r.Redis, last)
			}
		}
		if !here {
			r.forms = []bool{s.Names.Hashed}
		}
		if len(r.forms) > 0 {
			all = append(all, r)
		}
		return nil
	})
	return all, err
}
