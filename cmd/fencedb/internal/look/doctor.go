package look

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/urfave/cli/v3"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/migrations"
)

// Doctor is the command doctor.
func Doctor(a *app.State) *cli.Command {
	var long time.Duration
	return &cli.Command{
		Name:  "doctor",
		Usage: "check both servers for what makes leases or fences unsafe",
		Description: `Prints each finding with its reason and what to do, errors first, and nothing
if there is none. The exit code is 1 if there is an error, otherwise 0. If
one server does not answer, that is a finding, and the other is examined.

   fencedb doctor || page somebody`,
		Flags: []cli.Flag{&cli.DurationFlag{Name: "long", Destination: &long, Usage: "report fenced transactions open for this `TIME`", Value: time.Minute}},
		Action: func(ctx context.Context, _ *cli.Command) error {
			s, err := conn.Open(ctx, a, conn.Both) // to connect is a part of the examination
			if err != nil {
				return err
			}
			defer s.Close()
			ctx, cancel := s.Bounded(ctx)
			defer cancel()
			e := &examination{Servers: s, findings: []finding{}, long: long}
			if err := e.run(ctx); err != nil {
				return err
			}
			// Errors first, otherwise in the order of the examination.
			slices.SortStableFunc(e.findings, func(a, b finding) int { return cmp.Compare(a.Severity, b.Severity) })
			if err := a.Show(&Diagnosis{e.findings}); err != nil {
				return err
			}
			if len(e.findings) > 0 && e.findings[0].Severity == failure {
				return errFindings
			}
			return nil
		},
	}
}

// With an error, writes or leases are unsafe now, or do not work. A warning is something to look
// at.
const failure = "error"

var styles = map[string]string{failure: term.Red, "warning": term.Yellow}

// finding is one fault of the set-up. Its code is for programs and does not change.
type finding struct {
	Severity string `json:"severity"`
	Code     string `json:"code"`
	What     string `json:"what"`
	Why      string `json:"why"`
	Do       string `json:"do"`
}

// Diagnosis is the result of doctor.
type Diagnosis struct {
	Findings []finding `json:"findings"`
}

// Print implements [term.Report].
func (d *Diagnosis) Print(p term.Page) {
	for i, f := range d.Findings {
		if i > 0 {
			fmt.Fprintln(p.Out)
		}
		fmt.Fprintln(p.Out, p.Styled(f.Severity, styles[f.Severity])+" "+f.Code)
		for _, text := range []string{f.What, "Why: " + f.Why, "Do: " + f.Do} {
			p.Paragraph("  ", text)
		}
	}
}

var errFindings = errors.New("errors were found")

// examination is a run of doctor.
type examination struct {
	*conn.Servers
	findings []finding
	long     time.Duration

	redis  []lease.ServerHealth // that answered with their clock
	keys   []lease.Key          // of all namespaces
	held   []held               // leases of this namespace
	shared []issuing            // what more than one namespace or form has
	later  later                // of the tokens that are ahead of Redis's clock
}

// add adds the finding of that code in doctor.sql. Each of about is text, an error or a duration.
func (e *examination) add(code string, about ...any) {
	f := texts[slices.IndexFunc(texts, func(f []string) bool { return f[2] == code })]
	for i := range about {
		if err, is := about[i].(error); is {
			about[i] = app.InWords(err)
		}
	}
	what := fmt.Sprintf(f[3], about[:strings.Count(f[3], "%s")]...)
	e.findings = append(e.findings, finding{f[1], code, what, f[4], f[5]})
}

// run returns an error only if somebody ends it. Redis has half of the time, so that one that hangs
// leaves some for Postgres.
func (e *examination) run(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	half, cancel := context.WithTimeout(ctx, time.Until(deadline)/2)
	defer cancel()
	e.examineRedis(half)
	err := e.Pool.Ping(ctx)
	away := err != nil
	asks := []func(context.Context) error{e.askVersion, e.askSchema, e.askClock, e.askQuestions, e.askCounters,
		e.askSeals, e.askHolders, e.askNamespaces}
	for _, ask := range asks {
		if err == nil {
			err = ask(ctx)
		}
	}
	if e.later.token > 0 {
		at, in := e.passes(e.later.token)
		e.add("tokens_ahead", term.Visible(e.later.resource), at, in)
	}
	refused, is := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil || err == errNoMore:
	case errors.Is(ctx.Err(), context.Canceled):
		return err
	case away:
		e.add("postgres_unreachable", e.PostgresHost()+": "+conn.Reason(err))
	case is && refused.Code == conn.InsufficientPrivilege:
		e.add("missing_rights", e.Pool.Config().ConnConfig.User, refused.Message)
	default: // such as a lock that somebody holds
		e.add("postgres_unfinished", conn.Explained(err))
	}
	return nil
}

var errNoMore = errors.New("the examination cannot go on")

const leastPostgres = 15 // as doctor.sql says

// askVersion reads the version that the server reports when a client connects.
func (e *examination) askVersion(ctx context.Context) error {
	var version string
	err := e.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		version = conn.Conn().PgConn().ParameterStatus("server_version")
		return nil
	})
	var major int
	if _, noNumber := fmt.Sscanf(version, "%d", &major); err == nil && noNumber == nil && major < leastPostgres {
		e.add("postgres_version", version)
		return errNoMore
	}
	return err
}

func (e *examination) askSchema(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(e.Pool)
	defer db.Close()
	steps, err := migrations.Status(ctx, db)
	for _, m := range steps {
		if !m.Applied {
			e.add("schema_pending", m.Name)
			return errNoMore
		}
	}
	return err
}

//go:embed doctor.sql
var doctorSQL string

// The parts of doctor.sql: severity, code, what, why and what to do of each finding; and the query
// of those that have one.
const parts = `(?m)^-- (error|warning) (\w+): (.+)\n-- Why: (.+)\n-- Do: (.+)\n`

var (
	texts     = regexp.MustCompile(parts).FindAllStringSubmatch(doctorSQL, -1)
	questions = regexp.MustCompile(parts+`((?:.+\n)+)`).FindAllStringSubmatch(doctorSQL, -1)
)

func (e *examination) askQuestions(ctx context.Context) error {
	for _, q := range questions {
		rows, _ := e.Pool.Query(ctx, strings.Replace(q[6], "@too_high", TooHigh, 1), pgx.NamedArgs{"long": e.long.Seconds()})
		subjects, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			e.add(q[2], term.Visible(subject))
		}
	}
	return nil
}

// warnings are the findings for warnings of package lease. One of the clock is about the clock of
// this machine, which does not matter; see askClock. Others are about settings of an issuer.
var warnings = map[lease.WarningCode]string{
	lease.WarnUnlogged: "redis_unlogged",
	lease.WarnEviction: "redis_may_evict",
	lease.WarnReplicas: "redis_replicas",
	lease.WarnVersion:  "redis_version",
	lease.WarnHidden:   "redis_hidden",
}

func (e *examination) examineRedis(ctx context.Context) {
	health, problem := e.Issuer.Check(ctx)
	if problem != nil {
		e.addProblem(health, problem)
	}
	for _, s := range health.Servers {
		for _, w := range s.Warnings {
			if code, matters := warnings[w.Code]; matters {
				e.add(code, s.Addr, w.Text)
			}
		}
		if s.RoundTrip > 0 {
			e.redis, e.Ahead.Redis = append(e.redis, s), s.Clock
		}
	}
	if problem == nil {
		e.examineKeys(ctx)
	}
}

// later is the token that is the furthest ahead of Redis's clock.
type later struct {
	resource string
	token    int64
}

// note notes a token that was not issued now, as far as Redis's clock is known here.
func (l *later) note(resource string, token int64, clocks term.Clocks) {
	if token > l.token && clocks.SinceRedis(time.UnixMicro(token)) < -term.Rounding {
		*l = later{resource, token}
	}
}

// passes says when Redis's clock passes a token.
func (e *examination) passes(token int64) (at, in string) {
	then := time.UnixMicro(token).UTC()
	return then.Format(time.DateTime + " UTC"), term.Span(-e.Ahead.SinceRedis(then))
}

// hidden adds, once, that something in Redis was not looked at.
func (e *examination) hidden(err error) {
	if !slices.ContainsFunc(e.findings, func(f finding) bool { return f.Code == "leases_hidden" }) {
		e.add("leases_hidden", err)
	}
}

// longHold is long for a lease that is renewed.
const longHold = term.Day

// examineKeys reads the keys of Redis for all that follows. It gives up after a few seconds: a
// Redis may hold more than leases.
func (e *examination) examineKeys(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	var err error
	e.keys, err = Survey(ctx, e.Servers, func(k lease.Key) bool { return IsCounter(k) || k.Field == "owner" || k.Field == "ended" })
	for _, examine := range []func(context.Context) error{e.examineLeases, e.examineCounters, e.examineNamespaces} {
		if err == nil {
			err = examine(ctx)
		}
	}
	if err != nil {
		e.hidden(err)
	}
}

// examineLeases looks for leases that end late or never, or cannot be read.
func (e *examination) examineLeases(ctx context.Context) error {
	const most = 10
	owners := slices.DeleteFunc(slices.Clone(e.keys), func(k lease.Key) bool { return k.Field != "owner" })
	found, err := listLeases(ctx, e.Servers, selection{limit: math.MaxInt}, owners)
	if err != nil {
		return err
	}
	e.held = slices.DeleteFunc(slices.Clone(found.Leases), func(h held) bool { return h.Kind != protocol.LeaseKind })
	for _, problem := range found.Problems[:min(most, len(found.Problems))] {
		e.add("redis_corrupt", term.Visible(problem))
	}
	limit, now := len(e.findings)+most, time.UnixMicro(Floor(e.redis))
	for _, h := range found.Leases {
		left, who := time.Duration(h.ExpiresInMS)*time.Millisecond, cmp.Or(term.Visible(h.Label), "lease "+h.LeaseID.String()[:8])
		switch {
		case len(e.findings) == limit:
			return nil
		case left > protocol.LongTTL:
			e.add("lease_ttl", term.Visible(h.Resource), who, term.Span(left))
		case h.IssuedAt != nil && now.Sub(*h.IssuedAt) > longHold:
			e.add("lease_unbounded", term.Visible(h.Resource), who, term.Span(now.Sub(*h.IssuedAt)))
		}
	}
	return nil
}

// examineCounters looks for last tokens that are ahead of Redis's clock, also of what nobody holds.
func (e *examination) examineCounters(ctx context.Context) error {
	counters := slices.DeleteFunc(slices.Clone(e.keys), func(k lease.Key) bool {
		return !IsCounter(k) || k.Namespace != e.Names.Namespace
	})
	last, err := LastTokens(ctx, e.Servers, counters)
	for n, token := range last {
		if token < protocol.MaxNumber {
			e.later.note(counters[n].Resource, token, e.Ahead)
		}
	}
	return err
}

// askSeals looks for tokens that have entered, or are of a revocation, and that the ledger lacks.
func (e *examination) askSeals(ctx context.Context) error {
	if len(e.redis) == 0 {
		return nil
	}
	search, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	tokens, err := Proven(search, e.Servers, e.Names.Namespace, e.keys)
	if err != nil {
		e.hidden(err)
	}
	names, values := slices.Sorted(maps.Keys(tokens)), []int64{}
	for _, name := range names {
		values = append(values, tokens[name])
	}
	rows, _ := e.Pool.Query(ctx, `SELECT * FROM (`+BehindLedger+`) b WHERE NOT pg_is_in_recovery() LIMIT 10`, names, values)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Unsealed])
	for _, u := range all {
		e.add("seals_missing", fmt.Sprint(u.Token), term.Visible(u.Resource), cmp.Or(term.TokenText(u.Ledger), "none"))
	}
	return err
}

// askHolders looks for holders that are stale. Since their leases were read, they may have released
// them, and the next holder may have entered. So Redis is asked again.
func (e *examination) askHolders(ctx context.Context) error {
	known, nameless := map[string]string{}, []string{}
	for _, h := range e.held {
		if strings.HasPrefix(h.Resource, "sha256:") {
			nameless = append(nameless, h.Resource)
		}
	}
	if _, err := NameDigests(ctx, e.Servers, e.Names.Namespace, nameless, known); err != nil {
		return err
	}
	resources, tokens, ids := make([]string, len(e.held)), make([]int64, len(e.held)), make([]string, len(e.held))
	for n, h := range e.held {
		resources[n], tokens[n], ids[n] = cmp.Or(known[h.Resource], h.Resource), h.Token, h.LeaseID.String()
	}
	rows, _ := e.Pool.Query(ctx, `SELECT h.n - 1, f.last_fencing_token
		FROM unnest($1::text[], $2::bigint[], $3::text[]::uuid[]) WITH ORDINALITY h(resource, token, lease_id, n) JOIN fencedb.fences f ON f.resource = h.resource
		WHERE f.last_fencing_token > h.token OR f.last_fencing_token = h.token AND f.lease_id <> h.lease_id ORDER BY h.n`, resources, tokens, ids)
	issuer, err := lease.New(e.Client, app.Names{Namespace: e.Names.Namespace}.Config())
	if err != nil {
		return err
	}
	var n, fence int64
	limit := len(e.findings) + 10
	_, err = pgx.ForEachRow(rows, []any{&n, &fence}, func() error {
		if len(e.findings) == limit {
			return nil
		}
		h := e.held[n]
		now, err := issuer.Inspect(ctx, h.Resource)
		switch {
		case err != nil:
			e.hidden(err)
		case now.Token == h.Token && now.Holder == h.LeaseID:
			e.add("stale_holder", term.Visible(resources[n]), h.Name(), fmt.Sprint(h.Token), fmt.Sprint(fence))
		}
		return nil
	})
	return err
}

// examineNamespaces lists the namespaces whose tokens Redis knows, if there is one that is not
// looked at, and keeps the tokens of the last hour of what more than one has, or both forms.
func (e *examination) examineNamespaces(ctx context.Context) error {
	count, places := map[string]int{}, map[string][]lease.Key{}
	for _, k := range e.keys {
		if IsCounter(k) {
			places[Digest(k)] = append(places[Digest(k)], k)
			if k.Namespace != e.Names.Namespace {
				count[k.Namespace]++
			}
		}
	}
	if len(count) > 0 {
		var all []string
		for _, namespace := range slices.Sorted(maps.Keys(count)) {
			all = append(all, fmt.Sprintf("%d %s", count[namespace], app.InNamespace(namespace)))
		}
		e.add("namespaces", app.InNamespace(e.Names.Namespace), term.Visible(strings.Join(all, ", ")))
	}
	var shared []lease.Key
	for _, keys := range places {
		if len(keys) > 1 {
			shared = append(shared, keys...)
		}
	}
	tokens, err := LastTokens(ctx, e.Servers, shared)
	for n, token := range tokens {
		if e.Ahead.SinceRedis(time.UnixMicro(token)) < time.Hour {
			e.shared = append(e.shared, issuing{shared[n], token})
		}
	}
	return err
}

// issuing is a place in Redis, and the last token from there.
type issuing struct {
	lease.Key
	token int64
}

// askNamespaces looks for fences that tokens of two namespaces, or of both forms of a name, have
// reached: their programs write to this database, and do not see each other. What another database
// is written with does not reach the fence, unless it is older.
func (e *examination) askNamespaces(ctx context.Context) error {
	if len(e.shared) == 0 {
		return nil
	}
	var digests, places []string
	var tokens []int64
	for _, k := range e.shared {
		place := app.InNamespace(k.Namespace)
		if IsHashed(k.Key) {
			place += ", hashed"
		}
		digests, tokens, places = append(digests, Digest(k.Key)), append(tokens, k.token), append(places, place)
	}
	rows, _ := e.Pool.Query(ctx, `SELECT f.resource, string_agg(i.place, '; ' ORDER BY i.place)
		FROM unnest($1::text[], $2::bigint[], $3::text[]) i(digest, token, place)
		JOIN (SELECT resource, last_fencing_token, `+ledgerDigest+` AS digest FROM fencedb.fences WHERE last_fencing_token >= $4) f
		  ON f.digest = i.digest AND f.last_fencing_token >= i.token
		GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 10`, digests, tokens, places, slices.Min(tokens))
	var resource, all string
	_, err := pgx.ForEachRow(rows, []any{&resource, &all}, func() error {
		e.add("namespaces_overtake", term.Visible(resource), term.Visible(all))
		return nil
	})
	return err
}

// addProblem finds the server that the error of Check is about, if possible.
func (e *examination) addProblem(health lease.Health, problem error) {
	before := len(e.findings)
	for _, s := range health.Servers {
		switch {
		case s.Role != "" && s.Role != "master":
			e.add("redis_replica", s.Addr)
		case s.Limited && s.Eviction != "" && s.Eviction != "noeviction":
			e.add("redis_evicts", s.Addr, s.Eviction)
		}
	}
	switch {
	case len(e.findings) > before:
	case errors.Is(problem, lease.ErrUnreachable), errors.Is(problem, context.DeadlineExceeded):
		e.add("redis_unreachable", problem)
	default:
		e.add("redis_unfit", problem)
	}
}

// askClock compares Postgres's clock with this process's, as [lease.Issuer.Check] does Redis's: a
// Postgres that hangs must not keep Redis from being examined.
func (e *examination) askClock(ctx context.Context) error {
	sent := time.Now()
	now, err := fencedb.Clock(e.Pool)(ctx)
	if err != nil {
		return err
	}
	took := time.Since(sent)
	ours := now.Sub(sent.Add(took / 2)) // how far Postgres's clock is ahead of this process's
	for _, s := range e.redis {
		ahead := s.Clock - ours
		if ahead.Abs() <= protocol.MaxClockDifference+(s.RoundTrip+took)/2 {
			continue
		}
		way := "ahead of"
		if ahead < 0 {
			way = "behind"
		}
		e.add("clock_difference", s.Addr, ahead.Abs().Round(time.Second), way)
	}
	return nil
}

// askCounters looks for fences that new tokens cannot pass: those ahead of the clock of Redis,
// which is the floor of new tokens, and of the last token in Redis.
func (e *examination) askCounters(ctx context.Context) error {
	if len(e.redis) == 0 {
		return nil
	}
	const most = 100 // that are named; one is enough to act
	rows, _ := e.Pool.Query(ctx, `SELECT f.resource, f.last_fencing_token FROM fencedb.fences f
		WHERE f.last_fencing_token > $1 AND NOT `+Foreign+` AND NOT `+TooHigh+` ORDER BY f.last_fencing_token DESC, f.resource LIMIT $2`,
		Floor(e.redis), most)
	type ahead struct {
		Resource string
		Token    int64
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ahead])
	if err != nil {
		return err
	}
	for _, f := range all {
		known, err := e.Issuer.Inspect(ctx, f.Resource)
		if err != nil {
			return err
		}
		switch at, in := e.passes(f.Token); {
		case Floor(e.redis) > f.Token: // the clock has passed it meanwhile
		case known.LastToken < f.Token:
			e.add("redis_behind", fmt.Sprint(f.Token), term.Visible(f.Resource), cmp.Or(term.TokenText(known.LastToken), "none"), at, in)
		default:
			e.later.note(f.Resource, f.Token, e.Ahead)
		}
	}
	return nil
}
