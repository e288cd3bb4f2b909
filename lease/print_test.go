package lease_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/lease"
)

// shows reports whether text has id in one of the forms that fmt gives it.
func shows(text string, id uuid.UUID) bool {
	return strings.Contains(text, id.String()) || strings.Contains(text, strings.Trim(fmt.Sprint(id[:]), "[]")) ||
		strings.Contains(text, strings.Trim(fmt.Sprintf("%#v", id[:4]), "[]byte{}"))
}

// Whoever has the id of a lease can end it. And what its methods change is not read without a lock,
// as the race detector checks.
func TestALeaseIsPrintedWithoutItsID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := try(t, w.issuer(t, lease.Config{TTL: time.Minute}), "a")
	require.True(t, shows(fmt.Sprint(l.LeaseID()), l.LeaseID()))
	require.True(t, shows(fmt.Sprint([16]byte(l.LeaseID())), l.LeaseID()))
	require.True(t, shows(fmt.Sprintf("%#v", [16]byte(l.LeaseID())), l.LeaseID()))

	permits, err := lease.NewSemaphore(w.client, lease.SemaphoreConfig{
		Limit: 2, Lease: lease.Config{TTL: time.Minute, Namespace: w.namespace},
	})
	require.NoError(t, err)
	permit, err := permits.Acquire(t.Context(), "a")
	require.NoError(t, err)

	changed := make(chan error)
	go func() { changed <- l.Extend(t.Context()) }()
	for _, c := range []struct {
		lease *lease.Lease
		want  string
	}{
		{l, fmt.Sprintf(`lease on "a" with token %d`, l.Token())},
		{permit, fmt.Sprintf(`permit on "a" with token %d`, permit.Token())},
		{new(lease.Lease), "a lease that was not granted"},
		{nil, "a lease that was not granted"},
	} {
		for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
			require.Equal(t, c.want, fmt.Sprintf(format, c.lease))
			require.Contains(t, fmt.Sprintf(format, struct{ Lease *lease.Lease }{c.lease}), c.want)
			require.Contains(t, fmt.Sprintf(format, lease.Leases{c.lease}), c.want)
		}
		for _, handler := range []func(*strings.Builder) slog.Handler{
			func(b *strings.Builder) slog.Handler { return slog.NewTextHandler(b, nil) },
			func(b *strings.Builder) slog.Handler { return slog.NewJSONHandler(b, nil) },
		} {
			var out strings.Builder
			slog.New(handler(&out)).Info("granted", "lease", c.lease)
			require.False(t, shows(out.String(), c.lease.LeaseID()), out.String())
		}
	}
	require.NoError(t, <-changed)
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, permit.Release(t.Context()))
	require.NoError(t, permits.Close(t.Context()))
}
