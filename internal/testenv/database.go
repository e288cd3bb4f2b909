package testenv

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/fencedb/fencedb/migrations"
)

// createDatabase makes a database and returns its URL. With a template it starts as a copy of it.
func (s *postgresServer) createDatabase(ctx context.Context, name, template string) (string, error) {
	sql := "CREATE DATABASE " + quote(name)
	if template != "" {
		sql += " TEMPLATE " + quote(template)
	}
	if err := s.admin(ctx, sql); err != nil {
		return "", fmt.Errorf("create a database for the test, at %s: %w", s.source, err)
	}
	return inDatabase(s.adminURL, name), nil
}

// dropDatabase ends whatever is still connected to the database and removes it.
func (s *postgresServer) dropDatabase(ctx context.Context, name string) error {
	return s.admin(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)")
}

// template returns the name of a database that holds the migrated schema and nothing else, and
// makes it if the server has none. Test binaries that share an external server share it; its name
// tells the migrations it was made from, so two versions of them never meet.
func (s *postgresServer) template(ctx context.Context) (string, error) {
	name := "fencedb_template_" + migrationsHash()
	conn, err := pgx.Connect(ctx, s.adminURL)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) // and with it the advisory lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", name); err != nil {
		return "", err
	}
	var complete bool
	err = conn.QueryRow(ctx, "SELECT datistemplate FROM pg_database WHERE datname = $1", name).Scan(&complete)
	if complete || err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return name, err
	}
	return name, s.buildTemplate(ctx, name)
}

// buildTemplate makes the template anew. The mark IS_TEMPLATE comes last: a database of that name
// without it was left half-built by a program that died. The caller holds the advisory lock.
func (s *postgresServer) buildTemplate(ctx context.Context, name string) error {
	if err := s.dropDatabase(ctx, name); err != nil {
		return err
	}
	url, err := s.createDatabase(ctx, name, "")
	if err != nil {
		return err
	}
	if err := migrate(ctx, url); err != nil {
		return errors.Join(err, s.dropDatabase(context.WithoutCancel(ctx), name))
	}
	// Without connections, since a template cannot be copied while anybody is connected to it.
	return s.admin(ctx, "ALTER DATABASE "+quote(name)+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
}

func migrate(ctx context.Context, url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	return errors.Join(migrations.Up(ctx, db), db.Close())
}

// admin runs one statement as the administrator, on a connection of its own.
func (s *postgresServer) admin(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.adminURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// inDatabase returns a connection string, in either of Postgres's two forms, for another database.
func inDatabase(conn, database string) string {
	if u, err := url.Parse(conn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Path = "/" + database
		return u.String()
	}
	return conn + " dbname=" + database // the later of two settings counts
}

// migrationsHash is short for the whole text of the migrations.
func migrationsHash() string {
	hash := sha256.New()
	files := migrations.Files()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(text), text)
		return err
	})
	if err != nil {
		panic("bug: embedded files cannot be read: " + err.Error())
	}
	return hex.EncodeToString(hash.Sum(nil)[:8])
}
