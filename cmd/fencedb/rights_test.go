package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/conn"
	"github.com/fencedb/fencedb/fencedb"
	"github.com/fencedb/fencedb/guard"
	"github.com/fencedb/fencedb/internal/testenv"
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
	program := w.login("app", `SELECT fencedb.allow(%[1]s); GRANT SELECT, INSERT, UPDATE, DELETE ON seats TO %[2]s`)
	w.exec(`SELECT fencedb.keep_history('1 day')`)
	serve := func(role string, published bool) {
		options, err := redis.ParseURL(w.redisUser(role))
		require.NoError(t, err)
		client := redis.NewClient(options)
		defer client.Close()
		pool, err := pgxpool.New(t.Context(), program)
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
			require.NotEqual(t, app.ExitUsage, got.code, said)
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

// From empty servers, in the order of the page, with its SQL, its rights and its settings.
func TestThePageLeadsFromEmptyServersToASilentDoctor(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/production.md")
	require.NoError(t, err)
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		sections[heading] = body
	}
	script := func(section string) string {
		found := regexp.MustCompile("(?s)```sql\n(.*?)```").FindStringSubmatch(sections[section])
		require.NotEmpty(t, found, section)
		return found[1]
	}
	server := testenv.OwnPostgres(t)
	as := func(role string) string {
		address, err := url.Parse(server.URL())
		require.NoError(t, err)
		if role == "" { // a superuser, whom doctor would find while it is connected as a program
			address.RawQuery += "&application_name=" + conn.ApplicationName
		} else {
			address.User = url.User(role)
		}
		return address.String()
	}
	exec := func(role, sql string) {
		conn, err := pgx.Connect(t.Context(), as(role))
		require.NoError(t, err)
		defer conn.Close(context.Background())
		_, err = conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, sql)
	}
	w := &world{own: testenv.OwnRedis(t), namespace: "shop"}
	w.redis = w.own.Client()
	w.console = newConsole(t, "--redis", redisURL(w.redis), "--postgres", as("shop_owner"), "--namespace", "shop")

	exec("", script("Roles"))
	w.ok("migrate", "up")
	exec("shop_owner", `CREATE TABLE bookings (table_id int NOT NULL); SELECT fencedb.protect('bookings', resource => 'table:{table_id}')`)
	exec("shop_owner", script("Rights"))
	for _, setting := range regexp.MustCompile("`(tcp_\\w+) = (\\w+)`").FindAllStringSubmatch(sections["Postgres"], -1) {
		exec("", fmt.Sprintf(`ALTER SYSTEM SET %s = '%s'`, setting[1], setting[2]))
	}
	exec("", `SELECT pg_reload_conf()`)
	for _, setting := range regexp.MustCompile("`(maxmemory-policy|append\\w+) (\\w+)`").FindAllStringSubmatch(sections["Redis"], -1) {
		require.NoError(t, w.redis.ConfigSet(t.Context(), setting[1], setting[2]).Err())
	}
	w.as("--redis", w.redisUser("operator")).as("--postgres", as("shop_operator"))
	require.NoError(t, w.redis.Do(t.Context(), "ACL", "SETUSER", "default", "off").Err())

	require.Empty(t, w.ok("doctor"))
	w.ok("with", "table:12", "--", "true")
	require.Empty(t, w.ok("doctor"))
}

// And a role with CREATE on the database, which bare has: what docs/chaos.md says.
func TestDrillAndChaosNeedTheRightsOfLeases(t *testing.T) {
	t.Parallel()
	w := bare(t)
	page, err := os.ReadFile("../../docs/leases.md")
	require.NoError(t, err)
	rules := []string{"reset", "on", ">password", "resetkeys", "resetchannels", "-@all"}
	for _, row := range []string{"`lease`", "`lease.Semaphore`", "`lease/once`", "one Redis"} {
		_, rights, found := strings.Cut(string(page), "\n| "+row+" | ")
		require.True(t, found, row)
		rights, _, _ = strings.Cut(rights, "\n")
		rules = append(rules, regexp.MustCompile(`[+~&][^\s`+"`"+`]+`).FindAllString(rights, -1)...)
	}
	require.NoError(t, w.redis.ACLSetUser(t.Context(), "tester", rules...).Err())
	w.as("--redis", strings.Replace(redisURL(w.redis), "redis://", "redis://tester:password@", 1))
	for _, call := range [][]string{{"chaos", "--for", "1s", "--ttl", "4s", "--workers", "2", "--clients", "1"}, {"drill", "--ttl", "8s"}} {
		got := w.run(call...)
		require.Zero(t, got.code, got.errOut+got.out)
		require.NotContains(t, got.errOut+got.out, "NOPERM")
	}
}
