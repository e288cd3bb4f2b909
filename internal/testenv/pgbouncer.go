package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// PgBouncerServer is a PgBouncer of one test's own, in front of one database.
type PgBouncerServer struct {
	node
	backend *pgconn.Config
	port    int

	Version string // such as "PgBouncer 1.21.0"
}

var processUp = regexp.MustCompile(`process up: (PgBouncer [0-9.]+)`)

// PgBouncer starts a private PgBouncer in front of the database that a URL names, in a pool mode:
// session, transaction or statement. It keeps one connection to Postgres, so that clients meet each
// other's remains, unless the settings, each name=value of its configuration file, say otherwise.
// It ends with the test.
func PgBouncer(t testing.TB, database, poolMode string, settings ...string) *PgBouncerServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	bin := pgbouncerService.own(t)
	account := must(postgresAccount())(t) // PgBouncer refuses to run as root too
	n := &PgBouncerServer{node: must(newNode(account))(t), backend: must(pgconn.ParseConfig(database))(t)}
	t.Cleanup(func() { check(t, n.stop()) })
	settings = append([]string{"pool_mode=" + poolMode}, settings...)
	file := filepath.Join(n.dir, "pgbouncer.ini")
	err := onFreePort(ctx, func(port int) error {
		n.port = port
		if err := os.WriteFile(file, []byte(n.config(settings)), 0o644); err != nil {
			return err
		}
		return n.run(ctx, processUp, stopByKill, bin, file)
	})
	if err != nil {
		t.Fatalf("testenv: PgBouncer from %s on port %d: %v", bin, n.port, err)
	}
	n.Version = n.logged(processUp)
	return n
}

// config accepts every client, as the user in the URL of the database.
func (n *PgBouncerServer) config(settings []string) string {
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

// URL returns the URL of the database behind the PgBouncer.
func (n *PgBouncerServer) URL() string {
	return postgresURL(n.backend.User, n.port, n.backend.Database, "")
}
