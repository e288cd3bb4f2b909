package pgbouncer

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/internal/faulty"
	"github.com/fencedb/fencedb/internal/testenv"
)

// S6. The connection between PgBouncer and Postgres breaks at COMMIT. To its client PgBouncer answers with an error of
// its own, which looks like a refusal and is none: it does not know either.
func TestTheOutcomeOfACommitThatPgBouncerLost(t *testing.T) {
	t.Parallel()
	isCommit := func(msg pgproto3.FrontendMessage) bool {
		query, ok := msg.(*pgproto3.Query)
		return ok && query.String == "commit"
	}
	isCommitted := func(msg pgproto3.BackendMessage) bool {
		complete, ok := msg.(*pgproto3.CommandComplete)
		return ok && string(complete.CommandTag) == "COMMIT"
	}
	for name, cut := range map[string]struct {
		committed bool
		arm       func(*faulty.PostgresProxy)
	}{
		"before COMMIT arrives": {false, func(p *faulty.PostgresProxy) { p.OnClient(first(isCommit)) }},
		"before the answer":     {true, func(p *faulty.PostgresProxy) { p.OnServer(first(isCommitted)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			proxy := faulty.NewPostgresProxy(t, w.url())
			pool := w.pool(testenv.PgBouncer(t, proxy.URL(), "transaction"), pgx.QueryExecModeExec)

			err := fencedb.Tx(t.Context(), pool, grant("table:12", 41), func(tx pgx.Tx) error {
				cut.arm(proxy)
				_, err := tx.Exec(t.Context(), insert, 12, "ann")
				return err
			})

			if cut.committed {
				require.NoError(t, err)
				require.Equal(t, []string{"ann"}, w.guests())
			} else {
				require.Error(t, err)
				require.NotErrorIs(t, err, fencedb.ErrCommitUnknown)
				require.Empty(t, w.guests())
			}
		})
	}
}

// first cuts at the first message that matches, and passes the rest.
func first[M any](matches func(M) bool) func(M) faulty.Fate {
	var done bool
	return func(msg M) faulty.Fate {
		if done || !matches(msg) {
			return faulty.Pass
		}
		done = true
		return faulty.Cut
	}
}
