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
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Environment variables. Users set them, so each is named only here.
const (
	postgresURLVar = "FENCEDB_POSTGRES_URL"
	redisURLVar    = "FENCEDB_REDIS_URL"
	postgresBinVar = "FENCEDB_POSTGRES_BIN"
)

// host is what testenv asks about the machine. Tests replace the answers.
type host struct {
	getenv   func(string) string
	lookPath func(string) (string, error)
	glob     func(string) ([]string, error)
	output   func(ctx context.Context, bin string, args ...string) (string, error)
}

func thisHost() host {
	return host{getenv: os.Getenv, lookPath: exec.LookPath, glob: filepath.Glob, output: output}
}

// output runs a command and returns its standard output. An error contains its standard error.
func output(ctx context.Context, bin string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", bin, args[0], err, bytes.TrimSpace(complaint.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// service is a kind of server, and how to find it.
type service struct {
	name     string
	urlVar   string
	dirVar   string                                    // names a directory to take the program from; may be empty
	programs []string                                  // that serve, best first
	patterns []string                                  // where distributions keep a program, off PATH
	usable   func(context.Context, host, string) error // what is wrong with a program
	packages struct{ apt, brew string }
}

var (
	postgresService = service{
		name: "Postgres", urlVar: postgresURLVar, dirVar: postgresBinVar,
		programs: []string{"postgres"},
		patterns: []string{
			"/usr/lib/postgresql/*/bin/postgres",                          // Debian, Ubuntu
			"/usr/pgsql-*/bin/postgres",                                   // packages of the project, on Fedora and RHEL
			"/usr/lib/postgresql*/bin/postgres",                           // SUSE
			"/usr/libexec/postgresql*/postgres",                           // Alpine
			"/opt/homebrew/opt/postgresql*/bin/postgres",                  // Homebrew, Apple silicon
			"/usr/local/opt/postgresql*/bin/postgres",                     // Homebrew, Intel
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin/postgres",     // Homebrew, Linux
			"/opt/local/lib/postgresql*/bin/postgres",                     // MacPorts
			"/Applications/Postgres.app/Contents/Versions/*/bin/postgres", // Postgres.app
			"/usr/local/pgsql/bin/postgres",                               // make install
		},
		usable:   usablePostgres,
		packages: struct{ apt, brew string }{"postgresql", "postgresql@17"},
	}
	redisService = service{
		name: "Redis", urlVar: redisURLVar,
		programs: []string{"redis-server", "valkey-server"},
		patterns: []string{
			"/usr/sbin/*-server", "/opt/homebrew/bin/*-server", "/usr/local/bin/*-server",
			"/home/linuxbrew/.linuxbrew/bin/*-server", "/opt/local/bin/*-server",
		},
		usable:   anyVersion,
		packages: struct{ apt, brew string }{"redis-server", "redis"},
	}
	pgbouncerService = service{
		name:     "PgBouncer",
		programs: []string{"pgbouncer"},
		patterns: []string{"/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer", "/usr/local/bin/pgbouncer"},
		usable:   anyVersion,
		packages: struct{ apt, brew string }{"pgbouncer", "pgbouncer"},
	}
)

func anyVersion(context.Context, host, string) error { return nil }

// oldestPostgres is the first major version that has everything the migrations need.
const oldestPostgres = 15

// usablePostgres wants initdb beside postgres, and a version that is new enough.
func usablePostgres(ctx context.Context, h host, postgres string) error {
	initdb := filepath.Join(filepath.Dir(postgres), "initdb")
	if found, err := h.glob(initdb); err != nil || len(found) == 0 {
		return fmt.Errorf("no initdb beside %s", postgres)
	}
	says, err := h.output(ctx, postgres, "--version")
	if err != nil {
		return err
	}
	if versionIn(says) < oldestPostgres {
		return fmt.Errorf("%s is %q, older than %d", postgres, says, oldestPostgres)
	}
	return nil
}

// program finds the program of a service: in the directory of dirVar, on PATH, or where a
// distribution keeps it. The error says where there is none, and which ones cannot be used.
func (s service) program(ctx context.Context, h host) (string, error) {
	if dir := h.getenv(s.dirVar); dir != "" {
		path := filepath.Join(dir, s.programs[0])
		if err := s.usable(ctx, h, path); err != nil {
			return "", fmt.Errorf("%w, as %s says", err, s.dirVar)
		}
		return path, nil
	}
	var unusable []string
	for _, path := range s.candidates(h) {
		err := s.usable(ctx, h, path)
		if err == nil {
			return path, nil
		}
		unusable = append(unusable, err.Error())
	}
	if unusable == nil {
		return "", fmt.Errorf("no %s on PATH or at %s", strings.Join(s.programs, " or "), strings.Join(s.patterns, ", "))
	}
	return "", errors.New(strings.Join(unusable, ", "))
}

// candidates returns the programs that exist: the one on PATH first, then the highest version in a
// path, 17 before 9.6.
func (s service) candidates(h host) []string {
	var paths []string
	for _, name := range s.programs {
		path, err := h.lookPath(name)
		if err != nil {
			continue
		}
		// Postgres finds its other files relative to the real program; a link may stand alone.
		// Redis, on the other hand, chooses what to be by the name of the link.
		if real, err := filepath.EvalSymlinks(path); err == nil && name == "postgres" {
			path = real
		}
		paths = append(paths, path)
	}
	var elsewhere []string
	for _, pattern := range s.patterns {
		matches, _ := h.glob(pattern) // fails only for a malformed pattern
		elsewhere = append(elsewhere, matches...)
	}
	elsewhere = slices.DeleteFunc(elsewhere, func(path string) bool {
		return !slices.Contains(s.programs, filepath.Base(path))
	})
	slices.SortStableFunc(elsewhere, func(a, b string) int { return cmp.Compare(versionIn(b), versionIn(a)) })
	return append(paths, elsewhere...)
}

var number = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)

// versionIn returns the first number in a path or an answer, or 0.
func versionIn(text string) float64 {
	version, _ := strconv.ParseFloat(number.FindString(text), 64)
	return version
}

// locate finds where a server can be had from first, in the order of the package documentation: at
// a URL, or from a program. It starts nothing. For a server of our own only programs count.
func (s service) locate(ctx context.Context, h host, own bool) (url, program string, err error) {
	remedy := "install " + s.name + " so that its server is on PATH"
	var tried []string
	if !own {
		if url = h.getenv(s.urlVar); url != "" {
			return url, "", nil
		}
		remedy = "docker compose up --wait, then set " + s.urlVar + " as docker-compose.yml says"
		tried = append(tried, s.urlVar+" is not set")
	}
	if program, err = s.program(ctx, h); err != nil {
		err = &UnavailableError{Server: s.name, Tried: append(tried, err.Error()), Remedy: s.remedy(h, remedy)}
	}
	return "", program, err
}

// found is a server that tests share.
type found struct {
	url     string
	source  string       // for Notes
	private bool         // was started here, and ends with this program
	stop    func() error // calling it again does nothing
}

// external is a server that somebody else runs.
func (s service) external(url, host string) found {
	return found{url, s.name + " at " + host + ", from " + s.urlVar, false, func() error { return nil }}
}

// started is a server that was started here. At the latest it stops in [Main].
func (s service) started(url, program string, port int, stop func() error) found {
	stop = sync.OnceValue(stop)
	atEnd(stop)
	return found{url, fmt.Sprintf("%s started from %s on port %d, for this run only", s.name, program, port), true, stop}
}

// own returns the program for a server of a test's own.
func (s service) own(t testing.TB) string {
	t.Helper()
	_, program, err := s.locate(t.Context(), thisHost(), true)
	check(t, err)
	return program
}

// remedy returns the command that installs the server, or otherwise where we do not know it.
func (s service) remedy(h host, otherwise string) string {
	if _, err := h.lookPath("apt-get"); err == nil {
		return "sudo apt-get install --yes " + s.packages.apt
	}
	if _, err := h.lookPath("brew"); err == nil {
		return "brew install " + s.packages.brew
	}
	return otherwise
}

// UnavailableError says that a server can neither be reached nor started on this machine. Nothing
// was started and nothing is left behind.
type UnavailableError struct {
	Server string   // "Postgres" or "Redis"
	Tried  []string // one sentence fragment per source, in the order of the package documentation
	Remedy string   // a command that would help, to be typed as it stands
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("no %s for the tests: %s. This would help: %s", e.Server, strings.Join(e.Tried, "; "), e.Remedy)
}

// Missing returns an [UnavailableError] for each server that can neither be reached nor started,
// and starts nothing. With own, only servers that a test can have for itself count, as [OwnRedis],
// [OwnPostgres] and [PgBouncer] need them.
func Missing(ctx context.Context, own bool) (all []*UnavailableError) {
	for _, s := range []service{postgresService, redisService, pgbouncerService} {
		if !own && s.urlVar == "" {
			continue
		}
		var missing *UnavailableError
		if _, _, err := s.locate(ctx, thisHost(), own); errors.As(err, &missing) {
			all = append(all, missing)
		}
	}
	return all
}
