package testenv

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
)

// Environment variables. Part of the contract with the user, so each is named once.
const (
	postgresURLVar = "FENCEDB_POSTGRES_URL"
	redisURLVar    = "FENCEDB_REDIS_URL"
	postgresBinVar = "FENCEDB_POSTGRES_BIN"
)

// host is what testenv asks about the machine it runs on. Tests put other answers in.
type host struct {
	os       string
	getenv   func(string) string
	lookPath func(string) (string, error)
	glob     func(string) ([]string, error)
	isFile   func(string) bool
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
	}
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

// postgresBin finds the directory that holds both postgres and initdb.
func (h host) postgresBin() (dir string, found bool) {
	if dir := h.getenv(postgresBinVar); dir != "" {
		return dir, h.holdsPostgres(dir)
	}
	if path, err := h.lookPath("postgres"); err == nil {
		// Postgres finds its other files relative to the real binary; a link may stand alone.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		if dir := filepath.Dir(path); h.holdsPostgres(dir) {
			return dir, true
		}
	}
	for _, dir := range h.newestFirst(postgresDirs) {
		if h.holdsPostgres(dir) {
			return dir, true
		}
	}
	return "", false
}

func (h host) holdsPostgres(dir string) bool {
	return h.isFile(filepath.Join(dir, "postgres")) && h.isFile(filepath.Join(dir, "initdb"))
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

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// versionIn returns the last number in a path, or 0.
func versionIn(path string) float64 {
	all := number.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	version, _ := strconv.ParseFloat(all[len(all)-1], 64) // digits, by the expression above
	return version
}

// redisBin finds a Redis, or the Valkey that took its place in some distributions.
func (h host) redisBin() (path string, found bool) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := h.lookPath(name); err == nil {
			return path, true
		}
	}
	for _, path := range redisPaths {
		if h.isFile(path) {
			return path, true
		}
	}
	return "", false
}

// remedy returns the command that puts a missing server onto this kind of machine.
func (h host) remedy(server string) string {
	packages := map[string]map[string]string{
		"Postgres": {"apt-get": "postgresql", "dnf": "postgresql-server", "apk": "postgresql", "brew": "postgresql@17"},
		"Redis":    {"apt-get": "redis-server", "dnf": "redis", "apk": "redis", "brew": "redis"},
	}[server]
	for _, tool := range []struct{ name, install string }{
		{"apt-get", "sudo apt-get install --yes "},
		{"dnf", "sudo dnf install --assumeyes "},
		{"apk", "sudo apk add "},
		{"brew", "brew install "},
	} {
		if _, err := h.lookPath(tool.name); err == nil {
			return tool.install + packages[tool.name]
		}
	}
	if h.os == "darwin" {
		return "install Homebrew (https://brew.sh), then: brew install " + packages["brew"]
	}
	return "docker compose up --wait, then set " + postgresURLVar + " and " + redisURLVar + " as docker-compose.yml says"
}
