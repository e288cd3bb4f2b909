package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

// told is a row of fencedb.history, in the order of time. Entries alone have a lease.
type told struct {
	Transaction int64
	Resource    string
	Event       string
	Token       int64
	Lease       uuid.UUID
	Former      int64
	Table       string
	Rows        int64
}

// done is a committed write to one resource, as the judge knows it.
type done struct {
	Transaction int64
	Resource    string
	Token       int64
	Lease       uuid.UUID
}

// fence is the ledger's own row of a resource, in the end.
type fence struct {
	Resource string
	Token    int64
	Lease    uuid.UUID
}

// record is what a run has left: its history, and what has to agree with it.
type record struct {
	told   []told
	done   []done
	fences []fence
}

func (r *record) read(ctx context.Context, s *stage) error {
	var failed [3]error
	// A row carries 32 bits of its transaction's id.
	rows, _ := s.pool.Query(ctx, `SELECT xid::text::bigint & 4294967295, resource, event, coalesce(token, 0), coalesce(lease_id, '00000000-0000-0000-0000-000000000000'),
		coalesce(former_token, 0), coalesce(table_name, ''), coalesce(row_count, 0) FROM fencedb.history ORDER BY at`)
	r.told, failed[0] = pgx.CollectRows(rows, pgx.RowToStructByPos[told])
	rows, _ = s.pool.Query(ctx, s.in(`SELECT xmin::text::bigint, resource, token, lease_id FROM stage.effects`))
	r.done, failed[1] = pgx.CollectRows(rows, pgx.RowToStructByPos[done])
	rows, _ = s.pool.Query(ctx, `SELECT resource, last_fencing_token, lease_id FROM fencedb.fences`)
	r.fences, failed[2] = pgx.CollectRows(rows, pgx.RowToStructByPos[fence])
	return errors.Join(failed[:]...)
}

// retold says where the history and the record of the judge disagree. It rebuilds the run from the
// history alone: the fences, entry by entry, and what each transaction has written.
func (r record) retold() (wrong []string) {
	fences, written := map[string]fence{}, map[done]map[string]int64{}
	entered := map[fence]bool{}
	for _, h := range r.told {
		if h.Event != "enter" {
			at := fences[h.Resource]
			if at.Token != h.Token {
				wrong = append(wrong, fmt.Sprintf("a statement with token %d on %s, whose fence is at %d", h.Token, h.Resource, at.Token))
			}
			by := done{h.Transaction, h.Resource, h.Token, at.Lease}
			if written[by] == nil {
				written[by] = map[string]int64{}
			}
			written[by][h.Table] += h.Rows
			continue
		}
		if before := fences[h.Resource].Token; h.Former != before || h.Token <= before {
			wrong = append(wrong, fmt.Sprintf("token %d entered %s after %d, and the fence was at %d", h.Token, h.Resource, h.Former, before))
		}
		now := fence{h.Resource, h.Token, h.Lease}
		fences[h.Resource], entered[now] = now, true
	}
	for _, f := range r.fences {
		if fences[f.Resource] != f {
			wrong = append(wrong, fmt.Sprintf("the fence of %s is at %d in the end, and the history ends at %d", f.Resource, f.Token, fences[f.Resource].Token))
		}
	}
	for _, d := range r.done {
		tables := written[d]
		if !entered[fence{d.Resource, d.Token, d.Lease}] || len(tables) != 2 || tables["effects"] != 1 {
			wrong = append(wrong, fmt.Sprintf("the history has %v of %v", tables, d))
		}
		for table, rows := range tables {
			if rows != 1 {
				wrong = append(wrong, fmt.Sprintf("the history has %d rows of %s of %v", rows, table, d))
			}
		}
		delete(written, d)
	}
	for d := range written {
		wrong = append(wrong, fmt.Sprintf("the judge has nothing of %v", d))
	}
	return wrong
}

// A run of a few seconds, under faults. What a history row tells is missed when that row is lost.
func TestARunCanBeRebuiltFromItsHistoryAlone(t *testing.T) {
	t.Parallel()
	pool := testenv.Postgres(t)
	_, err := pool.Exec(t.Context(), `SELECT fencedb.keep_history('1 day')`)
	require.NoError(t, err)
	var r record

	v := try(t, Config{
		PostgresURL: pool.Config().ConnString(), RedisURL: testenv.OwnRedis(t).Addr(), For: 3 * time.Second,
		Only: []string{"pause", "jitter", "redis keys set back"}, witness: r.read,
	})

	require.Empty(t, v.Violations)
	require.Empty(t, r.retold())
	require.Len(t, r.done, v.Effects)
	require.Greater(t, v.Effects, 10, "on a busy machine")
	require.True(t, slices.ContainsFunc(r.told, func(h told) bool { return strings.Contains(h.Resource, "account:") }), "two at once")
	for lost := 0; lost < len(r.told); lost += 1 + len(r.told)/100 {
		without := record{slices.Delete(slices.Clone(r.told), lost, lost+1), r.done, r.fences}
		require.NotEmpty(t, without.retold(), "without %v", r.told[lost])
	}
}
