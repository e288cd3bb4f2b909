package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncerServer is a PgBouncer of one test's own, in front of one database.
type PgBouncerServer struct {
	url     string
	version string
}

// PgBouncer starts a private PgBouncer in front of the database that a URL names, in a pool mode:
// session, transaction or statement. It keeps one connection to Postgres, so that clients meet each
// other's remains, unless the settings, each name=value of its configuration file, say otherwise.
// It ends with the test.
func PgBouncer(t testing.TB, database, poolMode string, settings ...string) *PgBouncerServer {
	t.Helper()
	from, err := pgbouncerService.locate(t.Context(), thisHost(), true)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	node, err := newBouncerNode(ctx, from.program, database, append([]string{"pool_mode=" + poolMode}, settings...))
	check(t, err)
	t.Cleanup(func() {
		if err := node.stop(); err != nil {
			t.Errorf("testenv: stop PgBouncer on port %d: %v", node.port, err)
		}
	})
	return &PgBouncerServer{url: node.url(), version: node.version}
}

// URL returns the URL of the database behind the PgBouncer.
func (b *PgBouncerServer) URL() string { return b.url }

// AtLeast reports whether the PgBouncer has a version, such as 1, 21, or a newer one.
func (b *PgBouncerServer) AtLeast(major, minor int) bool {
	var has [2]int
	_, err := fmt.Sscanf(b.version, "PgBouncer %d.%d", &has[0], &has[1])
	return err == nil && (has[0] > major || has[0] == major && has[1] >= minor)
}

// bouncerNode is one PgBouncer of ours.
type bouncerNode struct {
	node
	bin     string
	backend *pgconn.Config
	port    int
	version string
}

// newBouncerNode starts PgBouncer. On error nothing is left behind.
func newBouncerNode(ctx context.Context, bin, database string, settings []string) (*bouncerNode, error) {
	backend, err := pgconn.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	account, err := postgresAccount() // PgBouncer refuses to run as root too
	if err != nil {
		return nil, err
	}
	base, err := newNode(account)
	if err != nil {
		return nil, err
	}
	n := &bouncerNode{node: base, bin: bin, backend: backend}
	if err := onFreePort(ctx, func(port int) error { return n.start(ctx, port, settings) }); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

func (n *bouncerNode) configFile() string { return filepath.Join(n.dir, "pgbouncer.ini") }

// config accepts every client, as the user in the URL of the database.
func (n *bouncerNode) config(settings []string) string {
	backend := fmt.Sprintf("%s = host=%s port=%d user=%s", n.backend.Database, n.backend.Host, n.backend.Port, inQuotes(n.backend.User))
	if n.backend.Password != "" { // empty quotes are a syntax error there
		backend += " password=" + inQuotes(n.backend.Password)
	}
	lines := []string{
		"[databases]",
		backend,
		"[pgbouncer]",
		"listen_addr = " + loopback,
		"listen_port = " + strconv.Itoa(n.port),
		"unix_socket_dir =",
		"server_tls_sslmode = prefer",
		"auth_type = any",
		"default_pool_size = 1",
		"max_client_conn = 200",
	}
	return strings.Join(append(lines, settings...), "\n") + "\n"
}

func inQuotes(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }

// start starts the process and returns once it answers.
func (n *bouncerNode) start(ctx context.Context, port int, settings []string) error {
	n.port = port
	if err := os.WriteFile(n.configFile(), []byte(n.config(settings)), 0o644); err != nil {
		return err
	}
	if err := n.run(ctx, n.command(stopPgBouncer, n.bin, n.configFile()), n.ready); err != nil {
		return fmt.Errorf("PgBouncer from %s on port %d: %w", n.bin, port, err)
	}
	return nil
}

// ready asks the console, which speaks the simple protocol only, and which tells our process from
// another that was quicker to bind the port.
func (n *bouncerNode) ready(ctx context.Context) bool {
	conn, err := pgx.Connect(ctx, inDatabase(n.url(), "pgbouncer")+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		return false
	}
	defer conn.Close(ctx)
	console := conn.PgConn()
	config, err := console.Exec(ctx, "SHOW CONFIG").ReadAll()
	if err != nil || !holds(config, n.configFile()) {
		return false
	}
	version, err := console.Exec(ctx, "SHOW VERSION").ReadAll()
	if err != nil || len(version) != 1 || len(version[0].Rows) != 1 {
		return false
	}
	n.version = string(version[0].Rows[0][0])
	return true
}

// holds reports whether any field of the results is the text.
func holds(results []*pgconn.Result, text string) bool {
	for _, result := range results {
		for _, row := range result.Rows {
			for _, field := range row {
				if string(field) == text {
					return true
				}
			}
		}
	}
	return false
}

func (n *bouncerNode) url() string {
	return (&url.URL{
		Scheme:   "postgres",
		User:     url.User(n.backend.User),
		Host:     address(n.port),
		Path:     "/" + n.backend.Database,
		RawQuery: "sslmode=disable",
	}).String()
}
