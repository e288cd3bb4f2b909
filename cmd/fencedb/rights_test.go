package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/lease"
	"github.com/fencedb/fencedb/observe/feed"
)

// documentedRights are those of a role in the table of docs/production.md, in the words of ACL
// SETUSER.
func documentedRights(t *testing.T, role string) (rights []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/production.md")
	require.NoError(t, err)
	_, row, found := strings.Cut(string(page), "\n| "+role+" | ")
	require.True(t, found, "docs/production.md has no row for %s", role)
	row, _, _ = strings.Cut(row, "\n")
	switch {
	case strings.Contains(row, "those of a service with feed"):
		rights = documentedRights(t, "service with feed")
	case strings.Contains(row, "those, and"):
		rights = documentedRights(t, "service")
	}
	return append(rights, regexp.MustCompile(`[+~&][^\s`+"`"+`]+`).FindAllString(row, -1)...)
}

// redisUser makes a user with the documented rights of a role, and returns the URL with which it
// logs in.
func (w *world) redisUser(role string) string {
	w.Helper()
	user := strings.ReplaceAll(role, " ", "-")
	rules := append([]string{"reset", "on", ">password", "resetkeys", "resetchannels", "-@all"}, documentedRights(w.T, role)...)
	require.NoError(w, w.redis.ACLSetUser(w.Context(), user, rules...).Err())
	return strings.Replace(redisURL(w.redis), "redis://", "redis://"+user+":password@", 1)
}

// A recommended set-up once lost every event of the feed, and doctor could not look.
func TestTheDocumentedRightsSuffice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	app := w.login("app", `SELECT fencedb.allow(%[1]s); GRANT SELECT, INSERT, UPDATE, DELETE ON seats TO %[2]s`)
	w.exec(`SELECT fencedb.keep_history('1 day')`)
	serve := func(role string, published bool) {
		options, err := redis.ParseURL(w.redisUser(role))
		require.NoError(t, err)
		client := redis.NewClient(options)
		defer client.Close()
		pool, err := pgxpool.New(t.Context(), app)
		require.NoError(t, err)
		defer pool.Close()
		cfg := lease.Config{TTL: time.Minute, Namespace: w.namespace, Holder: label}
		if published {
			events := feed.New(client, feed.Namespace(w.namespace))
			defer func() {
				require.NoError(t, events.Close(context.Background()))
				require.Zero(t, events.Dropped())
			}()
			cfg.Tracers = []lease.Tracer{events}
		}
		issuer, err := lease.New(client, cfg)
		require.NoError(t, err)
		defer func() { require.NoError(t, issuer.Close(context.Background())) }()
		desk := guard.New(issuer, pool)
		require.NoError(t, desk.Do(t.Context(), "seat:1", func(ctx context.Context, h *guard.Holder) error {
			_, err := h.Exec(ctx, `INSERT INTO seats VALUES (1, 'Ann')`)
			return err
		}))
	}
	serve("service", false)
	serve("service with feed", true)
	kept := w.acquire("seat:2")
	_, err := fencedb.Exec(t.Context(), w.pool, kept, `INSERT INTO seats VALUES (2, 'Ann')`)
	require.NoError(t, err)
	one, rest := w.permit("render"), []*lease.Lease{w.permit("render"), w.permit("render")}

	operator := w.as("--redis", w.redisUser("operator")).as("--postgres", w.login("operator", `SELECT fencedb.allow(%[1]s, operator => true)`))
	for _, call := range []string{
		"doctor", "leases", "inspect seat:1", "inspect seat:2", "history seat:1", "ttl seat", "prune --older-than 720h --apply --yes --reason trial",
		"revoke seat:2 --yes --reason trial", "revoke --behind --yes --reason trial", "reset seat:2 --to 1795896749249118 --force --yes --reason trial",
		"adopt seats", "migrate status", "with seat:3 -- true", "inspect render",
		"revoke render --yes --reason trial --permit " + one.LeaseID().String(), "revoke render --permit all --yes --reason trial",
	} {
		t.Run(call, func(t *testing.T) {
			got := operator.run(strings.Fields(call)...)
			said := fmt.Sprint(got)
			require.NotContains(t, said, "NOPERM")
			require.NotContains(t, said, "permission denied")
			require.NotContains(t, said, "42501")
			require.NotEqual(t, exitUsage, got.code, said)
		})
	}
	for _, l := range append(rest, one) {
		require.ErrorIs(t, l.Extend(t.Context()), lease.ErrRevoked)
	}
	require.Equal(t, "3", w.one(`SELECT count(*) FROM fencedb.audit WHERE details ->> 'permit' = 'revoked'`))
	options, err := redis.ParseURL(w.redisUser("operator"))
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer client.Close()
	seen := errors.New("seen")
	require.ErrorIs(t, feed.Follow(t.Context(), client, "0", func(feed.Event) error { return seen }, feed.Namespace(w.namespace)), seen,
		"what fencedb watch does")
}
