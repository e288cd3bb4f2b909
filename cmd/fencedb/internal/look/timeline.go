package look

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// Timeline is what happened to one resource.
type Timeline struct {
	Resource string      `json:"resource"`
	At       *time.Time  `json:"at"`           // nil: the events since a time were asked for
	Last     *Happening  `json:"last_entry"`   // up to At, or now; nil: none is known
	Next     *Happening  `json:"next_entry"`   // after At; nil: none
	Granted  *Happening  `json:"last_grant"`   // likewise, by the feed
	Renewed  *renewal    `json:"last_renewal"` // of that lease, also after At: then it stood at At; nil: no grant is known
	Ended    *Happening  `json:"its_end"`      // of that lease, up to At; nil: it is not known to have ended
	Events   []Happening `json:"events"`       // in order; those of the feed by the clocks of its programs, the others by that of Postgres
	More     bool        `json:"more"`         // there are earlier ones that were asked for
	// What Postgres has committed since then is there: it has not crashed, failed over, or been
	// restored or copied. nil: not known, until something has entered since its start.
	UnbrokenSince *time.Time `json:"unbroken_since"`
	KeptSince     *time.Time `json:"kept_since"` // entries are known since then; nil: history is not kept
	Period        string     `json:"kept_for"`
	Tables        []noting   `json:"tables"`     // to which it may belong
	FeedSince     *time.Time `json:"feed_since"` // leases and refusals are known since then; nil: there are no events
	Elsewhere     []Location `json:"elsewhere"`  // as inspect has it
	Missing       []Missing  `json:"missing"`    // servers that have not told their half
	Notes         []Note     `json:"notes"`

	labels       map[string]string // of holders, by the first 8 characters of lease ids
	renewals     map[int64]renewal // the last one of each token, by the feed
	since        time.Time         // what is shown begins, if there is no At
	feedDenied   bool
	feedReplaced bool // its key is not a stream
	unsearched   error
	namespace    string
	ahead        term.Clocks
}

// Happening is something that happened to one resource.
type Happening struct {
	At     time.Time `json:"at"`
	Source string    `json:"source"`       // history, ledger or audit, by the clock of Postgres; or feed, by that of the program
	Kind   string    `json:"kind"`         // as the source has it
	Token  int64     `json:"token"`        // 0: none
	Former int64     `json:"former_token"` // of an entry, what the fence had before; of a refusal, what it had
	Lease  string    `json:"lease_id"`     // of an event of the feed, its first 8 characters

	Label       string `json:"label"` // of the holder, or who did it by hand; "": not known
	Role        string `json:"role"`
	Application string `json:"application"`
	Client      string `json:"client"`

	Table string `json:"table"`
	Rows  int64  `json:"rows"` // that a statement has written
	Text  string `json:"text"` // the rest, for people
}

// The sources.
const (
	SourceHistory = "history"
	SourceLedger  = "ledger"
	SourceAudit   = "audit"
	SourceFeed    = "feed"
)

// Kinds of happenings that this command looks at.
const (
	KindEnter = "enter"
	KindReset = "reset"

	sealText = "the seal of a revocation"
)

// window is which part of the past is shown: from since, the last so many up to at, and the first
// so many after it.
type window struct {
	since, at     time.Time
	before, after int
}

// cut keeps what is shown of events in their order, and says whether there are earlier ones.
func (w window) cut(events []Happening) (shown []Happening, more bool) {
	n := slices.IndexFunc(events, func(h Happening) bool { return h.At.After(w.at) })
	if n < 0 {
		n = len(events)
	}
	from := max(0, n-w.before)
	return events[from:min(len(events), n+w.after)], from > 0
}

// past is what the history has of a resource, and what the ledger has where the history lacks it.
// done is what the audit has, also of tables to which the resource may belong and which are there.
const (
	sealed = `(SELECT '` + sealText + `' FROM fencedb.audit a WHERE a.resource = $1 AND a.event = 'revoke' AND a.details ->> 'lease_id' = lease_id::text LIMIT 1)`
	past   = `past AS NOT MATERIALIZED (
		SELECT 0::bigint AS id, at, lower(event) AS kind, coalesce(token, 0) AS token, coalesce(former_token, 0) AS former, coalesce(lease_id::text, '') AS lease, '' AS label,
			coalesce(role::text, '') AS role, application, coalesce(host(client), '') AS client, coalesce(quote_ident(table_schema) || '.' || quote_ident(table_name), '') AS table_name,
			coalesce(row_count, 0) AS row_count, coalesce(` + sealed + `, '') AS note, 'history' AS source
		FROM fencedb.history WHERE resource = $1
		UNION ALL
		SELECT 0, f.advanced_at, 'enter', f.last_fencing_token, 0, f.lease_id::text, '', '', '', '', '', 0, coalesce(` + sealed + `, 'by the ledger'), 'ledger'
		FROM fencedb.fences f
		WHERE f.resource = $1 AND f.last_fencing_token > 0 AND NOT EXISTS (
			SELECT FROM fencedb.history h WHERE h.resource = $1 AND h.at = f.advanced_at AND h.token = f.last_fencing_token AND h.lease_id = f.lease_id))`
	done = `done AS NOT MATERIALIZED (
		SELECT id, at, event AS kind, coalesce((details ->> 'token')::bigint, 0) AS token, coalesce((details ->> 'former_token')::bigint, 0) AS former, coalesce(details ->> 'lease_id', '') AS lease,
			operator AS label, role::text AS role, '' AS application, '' AS client, coalesce(details ->> 'table', '') AS table_name, 0::bigint AS row_count,
			CASE WHEN event = 'keep_history' THEN coalesce('for ' || (details ->> 'period'), 'not any more') WHEN event IN ('protect', 'observe', 'unprotect') THEN CASE WHEN starts_with(reason, 'found') THEN 'found, changed by hand or restored' ELSE '' END ELSE concat(reason, '; permit ' || (details ->> 'permit'), '; held by ' || nullif(details ->> 'former_holder', '')) END AS note, 'audit' AS source
		FROM fencedb.audit
		WHERE resource = $1 OR event = 'keep_history'
			OR event IN ('protect', 'observe', 'unprotect') AND EXISTS (SELECT FROM jsonb_array_elements_text(details -> 'resource') t WHERE starts_with($1, split_part(t, '{', 1)))
				AND (details ->> 'oid' IN (SELECT oid::text FROM pg_class) OR details ->> 'table' IN (SELECT format('%s.%I', relnamespace::regnamespace, relname) FROM pg_class)))`
	// The lease of a statement is the one that its token had entered with. It is looked for where all
	// that is shown is known: a resource may have a million statements.
	ofToken = `CASE WHEN source = 'history' AND lease = '' AND token > 0 THEN coalesce((
			SELECT e.lease_id::text FROM entered e WHERE e.at <= found.at AND e.token = found.token ORDER BY e.at DESC LIMIT 1), '') ELSE lease END`

	// around takes the last before a time and the first after it. %[1]s is past or done, %[2]s its
	// name, %[3]s a condition.
	around = `WITH %[1]s, found AS MATERIALIZED (
		(SELECT * FROM %[2]s WHERE at >= $2 AND at <= $3 AND %[3]s ORDER BY at DESC, id DESC LIMIT $4) UNION ALL
		(SELECT * FROM %[2]s WHERE at > $3 AND %[3]s ORDER BY at, id LIMIT $5)),
	entered AS MATERIALIZED (
		SELECT at, token, lease_id FROM fencedb.history WHERE resource = $1 AND lease_id IS NOT NULL AND token IN (SELECT token FROM found)
		UNION ALL SELECT advanced_at, last_fencing_token, lease_id FROM fencedb.fences WHERE resource = $1)
	SELECT at, kind, token, former, ` + ofToken + `, label, role, application, client, table_name, row_count, note, source FROM found ORDER BY at, id`
)

func readAround(ctx context.Context, s *conn.Servers, source, name, condition, resource string,
	w window) ([]Happening, error) {
	query := fmt.Sprintf(around, source, name, condition)
	rows, _ := s.Pool.Query(ctx, query, resource, w.since, w.at, w.before, w.after)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Happening, err error) {
		err = row.Scan(&h.At, &h.Kind, &h.Token, &h.Former, &h.Lease, &h.Label, &h.Role,
			&h.Application, &h.Client, &h.Table, &h.Rows, &h.Text, &h.Source)
		h.At = h.At.UTC()
		return h, err
	})
	return found, conn.Explained(err)
}

// readPast reads what Postgres knows.
func readPast(ctx context.Context, s *conn.Servers, r *Timeline, w window) error {
	if err := readReach(ctx, s, r); err != nil {
		return err
	}
	w.before++ // to know whether there are more
	noted, err := readAround(ctx, s, past, "past", "true", r.Resource, w)
	if err != nil {
		return err
	}
	byHand, err := readAround(ctx, s, done, "done", "true", r.Resource, w)
	if err != nil {
		return err
	}
	entries, err := readAround(ctx, s, past, "past", "kind IN ('enter', 'reset')", r.Resource, window{at: w.at, before: 1, after: 1})
	for _, e := range entries {
		if e.At.After(w.at) {
			r.Next = &e
		} else {
			r.Last = &e
		}
	}
	r.Events = slices.Concat(r.Events, noted, byHand)
	return err
}

// noting is a table to which a resource may belong, and since when statements on it are noted.
type noting struct {
	Table string     `json:"table"`
	Since *time.Time `json:"since"` // nil: they are not
}

// readReach finds out how far back Postgres knows.
func readReach(ctx context.Context, s *conn.Servers, r *Timeline) error {
	err := s.Pool.QueryRow(ctx, `SELECT max(greatest(since, clock_timestamp() - period)), coalesce(max(period)::text, ''),
			CASE WHEN coalesce(pg_sequence_last_value('fencedb.server_epoch') & 16777215 = fencedb.started(), true) THEN to_timestamp(pg_sequence_last_value('fencedb.unbroken_since') / 1000.0) END
		FROM fencedb.history_kept`).
		Scan(&r.KeptSince, &r.Period, &r.UnbrokenSince)
	if err != nil {
		return conn.Explained(err)
	}
	if r.KeptSince == nil {
		if err := conn.MaySee(ctx, s.Pool); err != nil {
			return err
		}
	}
	rows, _ := s.Pool.Query(ctx, `SELECT p.table_name::text, CASE WHEN p.history_since IS NOT NULL AND $2::timestamptz IS NOT NULL THEN greatest(p.history_since, $2) END FROM fencedb.protected_tables p
		WHERE EXISTS (SELECT FROM unnest(p.resource) t WHERE starts_with($1, split_part(t, '{', 1))) ORDER BY 1`, r.Resource, r.KeptSince)
	r.Tables, err = pgx.AppendRows(r.Tables, rows, pgx.RowToStructByPos[noting])
	return conn.Explained(err)
}

// readEvents reads what programs have published.
func readEvents(ctx context.Context, s *conn.Servers, r *Timeline, w window) error {
	digits, revoked := feed.Hashed(r.Resource), int64(0)
	err := feed.Replay(ctx, s.Client, "0", func(e feed.Event) error {
		if r.FeedSince == nil {
			r.FeedSince = app.Optional(e.At.UTC(), true)
		}
		if e.Resource != r.Resource && e.Resource != digits {
			return nil
		}
		if e.Kind == feed.Granted || e.Kind == feed.Extended {
			r.renewals[e.Token] = renewalOf(e)
			r.labels[e.LeaseID] = e.Worker
		}
		text := happened(e)
		switch {
		case e.Kind == feed.Revoked:
			revoked = e.Token
		case e.Kind == feed.Released && e.Token < revoked: // its holder did not know yet
			text = "it had been revoked before"
		}
		switch e.Kind {
		case feed.Granted, feed.Committed, feed.Released, feed.Lost, feed.Revoked, feed.NotSealed, feed.Refused, feed.Failed:
			r.labels[e.LeaseID] = e.Worker
			if !e.At.Before(w.since) {
				r.Events = append(r.Events, Happening{At: e.At.UTC(), Source: SourceFeed, Kind: string(e.Kind), Token: e.Token,
					Former: e.Stored, Lease: e.LeaseID, Label: e.Worker, Text: text})
			}
		}
		return nil
	}, feed.Namespace(s.Names.Namespace))
	if redis.IsPermissionError(err) {
		r.feedDenied = true
		return nil
	}
	if r.feedReplaced = redis.HasErrorPrefix(err, "WRONGTYPE"); r.feedReplaced {
		return nil
	}
	return err
}

// readRedis reads also what the holder of now is called, and where else Redis knows the resource.
func readRedis(ctx context.Context, s *conn.Servers, r *Timeline, w window) error {
	if err := readEvents(ctx, s, r, w); err != nil {
		return fmt.Errorf("redis: the feed: %w", err)
	}
	known, err := s.Issuer.Inspect(ctx, r.Resource)
	if err != nil && !errors.Is(err, lease.ErrCorrupt) { // that is no matter of the past
		return err
	}
	if known.Holder != uuid.Nil {
		held := feed.Short(known.Holder)
		r.labels[held] = cmp.Or(known.Label, r.labels[held])
	}
	var locations map[string][]Location
	if locations, r.unsearched = Search(ctx, s, r.Resource); r.unsearched == nil {
		r.Elsewhere = append([]Location{}, locations[r.Resource]...)
	}
	return nil
}

// dateGrants puts each grant no later than the entry of its token: an event comes a moment after
// the grant, and the entry may have been quicker.
func (r *Timeline) dateGrants() {
	entered := map[int64]time.Time{}
	for _, h := range slices.Concat(r.Events, given(r.Last, r.Next)) {
		if at, known := entered[h.Token]; h.Kind == KindEnter && (!known || h.At.Before(at)) {
			entered[h.Token] = h.At
		}
	}
	for i := range r.Events {
		h := &r.Events[i]
		if at, known := entered[h.Token]; known && h.Kind == string(feed.Granted) && at.Before(h.At) {
			h.At = at
		}
	}
}

// arrange puts in order what the servers have told, says everything once, and names holders.
func (r *Timeline) arrange(w window) {
	r.dateGrants()
	resets, written := map[string]bool{}, map[int64]bool{}
	for _, h := range r.Events {
		resets[h.Lease] = resets[h.Lease] || h.Source == SourceAudit && h.Kind == KindReset
		written[h.Token] = written[h.Token] || h.Rows > 0
	}
	r.Events = slices.DeleteFunc(r.Events, func(h Happening) bool {
		reset := h.Kind == KindReset || h.Source == SourceLedger
		twice := reset && h.Source != SourceAudit && resets[h.Lease]
		return twice || h.Kind == string(feed.Committed) && written[h.Token]
	})
	slices.SortStableFunc(r.Events, func(a, b Happening) int { return a.At.Compare(b.At) })
	r.name(r.Last)
	r.name(r.Next)
	for i := range r.Events {
		r.name(&r.Events[i])
	}
	r.findLease(w)
	r.Events, r.More = w.cut(r.Events)
}

// findLease finds the newest lease that was granted before the end of the window, and what became
// of it by then.
func (r *Timeline) findLease(w window) {
	for _, h := range r.Events {
		if h.Source != SourceFeed || h.At.After(w.at) {
			continue
		}
		switch feed.Kind(h.Kind) {
		case feed.Granted:
			r.Granted, r.Ended = app.Optional(h, true), nil
		case feed.Released, feed.Lost, feed.Revoked:
			if r.Granted != nil && r.Ended == nil && (h.Token == r.Granted.Token || feed.Kind(h.Kind) == feed.Revoked) {
				r.Ended = app.Optional(h, true)
			}
		}
	}
	if r.Granted == nil {
		return
	}
	if r.Ended == nil && r.Last != nil && r.Last.Token > r.Granted.Token {
		r.Ended = r.Last
	}
	r.Renewed = app.Optional(r.renewals[r.Granted.Token], true)
}

// given are those that there are.
func given(all ...*Happening) (there []Happening) {
	for _, h := range all {
		if h != nil {
			there = append(there, *h)
		}
	}
	return there
}

// name says whose lease it was, as far as Redis knows.
func (r *Timeline) name(h *Happening) {
	if h != nil && h.Label == "" && len(h.Lease) >= 8 {
		h.Label = r.labels[h.Lease[:8]]
	}
}
