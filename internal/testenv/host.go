package testenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// host is what testenv asks about the machine it runs on. Tests put other answers in.
type host struct {
	os       string
	getenv   func(string) string
	lookPath func(string) (string, error)
	glob     func(string) ([]string, error)
	isFile   func(string) bool
	output   func(ctx context.Context, bin string, args ...string) (string, error)
}

func thisHost() host {
	return host{
		os:       runtime.GOOS,
		getenv:   os.Getenv,
		lookPath: exec.LookPath,
		glob:     filepath.Glob,
		isFile: func(path string) bool {
			info, err := os.Stat(path)
			return err == nil && info.Mode().IsRegular()
		},
		output: output,
	}
}

// output runs a command and returns what it says; an error holds what it complains about.
func output(ctx context.Context, bin string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", bin, args[0], err, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// postgresDirs are the directories in which distributions keep Postgres's binaries, off PATH.
var postgresDirs = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // packages of the project, on Fedora and RHEL
	"/usr/lib/postgresql*/bin",                           // SUSE
	"/usr/libexec/postgresql*",                           // Alpine
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew, Apple silicon
	"/usr/local/opt/postgresql*/bin",                     // Homebrew, Intel
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew, Linux
	"/opt/local/lib/postgresql*/bin",                     // MacPorts
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/usr/local/pgsql/bin",                               // make install
}

// redisPaths are the places in which distributions keep Redis's binary, off PATH.
var redisPaths = []string{
	"/usr/sbin/redis-server",
	"/usr/sbin/valkey-server",
	"/opt/homebrew/bin/redis-server",
	"/opt/homebrew/bin/valkey-server",
	"/usr/local/bin/redis-server",
	"/usr/local/bin/valkey-server",
	"/home/linuxbrew/.linuxbrew/bin/redis-server",
	"/opt/local/bin/redis-server",
}

// pgbouncerPaths are the places in which distributions keep PgBouncer's binary, off PATH.
var pgbouncerPaths = []string{
	"/usr/sbin/pgbouncer",
	"/usr/bin/pgbouncer",
	"/opt/homebrew/bin/pgbouncer",
	"/usr/local/bin/pgbouncer",
}

// oldestPostgres is the first major version that has everything the migrations need.
const oldestPostgres = 15

// postgresBin finds the directory that holds both postgres and initdb. An error says where there is
// none and which ones will not do.
func (h host) postgresBin(ctx context.Context) (string, error) {
	if dir := h.getenv(postgresBinVar); dir != "" {
		if err := h.usablePostgres(ctx, dir); err != nil {
			return "", fmt.Errorf("%w, where %s points", err, postgresBinVar)
		}
		return dir, nil
	}
	var unusable []string
	for _, dir := range h.postgresCandidates() {
		err := h.usablePostgres(ctx, dir)
		if err == nil {
			return dir, nil
		}
		unusable = append(unusable, err.Error())
	}
	if unusable == nil {
		return "", fmt.Errorf("no postgres on PATH or in %s", strings.Join(postgresDirs, ", "))
	}
	return "", errors.New(strings.Join(unusable, ", "))
}

// postgresCandidates returns the directories that may hold Postgres, best first.
func (h host) postgresCandidates() []string {
	var dirs []string
	if path, err := h.lookPath("postgres"); err == nil {
		// Postgres finds its other files relative to the real binary; a link may stand alone.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	return append(dirs, h.newestFirst(postgresDirs)...)
}

// usablePostgres says what is wrong with the Postgres in a directory, if anything.
func (h host) usablePostgres(ctx context.Context, dir string) error {
	postgres := filepath.Join(dir, "postgres")
	if !h.isFile(postgres) || !h.isFile(filepath.Join(dir, "initdb")) {
		return fmt.Errorf("no postgres and initdb in %s", dir)
	}
	says, err := h.output(ctx, postgres, "--version")
	if err != nil {
		return err
	}
	major, _ := strconv.Atoi(digits.FindString(says)) // digits, or "" and with it 0
	if major < oldestPostgres {
		return fmt.Errorf("%s is %q, older than %d", postgres, says, oldestPostgres)
	}
	return nil
}

// newestFirst expands the patterns and sorts by the version in the path, 17 before 9.6.
func (h host) newestFirst(patterns []string) []string {
	var dirs []string
	for _, pattern := range patterns {
		matches, _ := h.glob(pattern) // fails only for a malformed pattern
		dirs = append(dirs, matches...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
	return dirs
}

var (
	number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	digits = regexp.MustCompile(`[0-9]+`)
)

// versionIn returns the last number in a path, or 0.
func versionIn(path string) float64 {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	version, _ := strconv.ParseFloat(all[len(all)-1], 64) // digits, by the expression above
	return version
}

// redisBin finds a Redis, or the Valkey that took its place in some distributions. An error says
// where there is none.
func (h host) redisBin(context.Context) (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := h.lookPath(name); err == nil {
			return path, nil
		}
	}
	for _, path := range redisPaths {
		if h.isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no redis-server or valkey-server on PATH or at %s", strings.Join(redisPaths, ", "))
}

// pgbouncerBin finds PgBouncer, which distributions keep where only root looks.
func (h host) pgbouncerBin(context.Context) (string, error) {
	if path, err := h.lookPath("pgbouncer"); err == nil {
		return path, nil
	}
	for _, path := range pgbouncerPaths {
		if h.isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no pgbouncer on PATH or at %s", strings.Join(pgbouncerPaths, ", "))
}
