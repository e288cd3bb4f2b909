package browser

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// requireAgreement waits until the page shows what Postgres and Redis hold now. While workers are
// idle that does not change.
func (w *tab) requireAgreement() {
	w.Helper()
	w.until(`[...document.querySelectorAll("#bookings tr[data-evening]")].map((e) => [e.dataset.evening, e.dataset.guest, e.dataset.token].join()).join(" ") === "` +
		strings.Join(w.rows(), " ") + `"`)
	w.until(`document.getElementById("ledger").dataset.token === "` + w.ledger() + `"`)
	w.until(`document.getElementById("redis").dataset.fence === "` + w.get("fence") + `"`)
	w.until(`document.getElementById("redis").dataset.token === "` + w.owner() + `"`)
}

// rows are the bookings, as "evening,guest,token", newest first.
func (w *tab) rows() []string {
	w.Helper()
	rows, err := w.db.Query(w.Context(), `
		SELECT concat_ws(',', (slot AT TIME ZONE 'UTC')::date - '2030-05-31', guest, last_fencing_token) FROM bookings ORDER BY slot DESC`)
	require.NoError(w, err)
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	return found
}

// ledger is the token that Postgres has stored, or "".
func (w *tab) ledger() (token string) {
	w.Helper()
	err := w.db.QueryRow(w.Context(), `SELECT coalesce(fencedb.last_token('table:12')::text, '')`).Scan(&token)
	require.NoError(w, err)
	return token
}

func (w *tab) requireProtected(want bool) {
	w.Helper()
	var protected bool
	err := w.db.QueryRow(w.Context(), `SELECT exists(SELECT FROM fencedb.protected_tables WHERE table_name = 'bookings'::regclass)`).Scan(&protected)
	require.NoError(w, err)
	require.Equal(w, want, protected)
}

// owner is the token of the lease in Redis, or "".
func (w *tab) owner() string {
	w.Helper()
	_, rest, _ := strings.Cut(w.get("owner"), ":")
	token, _, _ := strings.Cut(rest, ":")
	return token
}

// get reads one of the keys of the lease, as an onlooker with redis-cli would.
func (w *tab) get(key string) string {
	w.Helper()
	value, err := w.redis.Get(w.Context(), "lease:v1:{table:12}:"+key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(w, err)
	}
	return value
}

func (w *tab) ttl() time.Duration {
	w.Helper()
	ttl, err := w.redis.PTTL(w.Context(), "lease:v1:{table:12}:owner").Result()
	require.NoError(w, err)
	return ttl
}

// state is that of a process as ps tells it: T is stopped.
func state(t *testing.T, pid string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ps", "-o", "stat=", "-p", pid).Output()
	require.NoError(t, err, fmt.Sprintf("no process %q", pid))
	return string(out[:1])
}
