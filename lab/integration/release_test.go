package integration

// A release is rehearsed: the module as a stranger gets it from a proxy, in an empty module outside
// of this repository and with an empty module cache.

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/fencedb/fencedb/internal/testenv"
)

var root = "../.."

// published is the module of the libraries. The others that are released lie in directories below
// it, and need it and each other in the same version.
var published = module.Version{Path: "github.com/fencedb/fencedb", Version: "v0.1.0"}

var nested = []string{"observe", "grant/grpc", "cmd/fencedb"}

func TestTheReleaseInstalls(t *testing.T) {
	t.Parallel()
	r := rehearse(t)

	t.Run("the program of the README", func(t *testing.T) {
		dir := r.module()
		goBlocks, sqlBlocks := blocks(t, "go"), blocks(t, "sql")
		write(t, filepath.Join(dir, "setup.go"), goBlocks[0])
		write(t, filepath.Join(dir, "main.go"), goBlocks[1])
		write(t, filepath.Join(dir, "00001_reservations.sql"), sqlBlocks[0])
		r.run(dir, "go", "get", published.String())
		r.run(dir, "go", "mod", "tidy")
		needed := read(t, filepath.Join(dir, "go.mod"))
		for _, name := range []string{"prometheus", "opentelemetry", "urfave/cli"} {
			require.NotContains(t, string(needed), name, "who imports neither observe nor the command pays for neither")
			downloaded, err := filepath.Glob(filepath.Join(r.cache, "cache", "download", "*", "*"+name+"*", "*", "@v", "*.zip"))
			require.NoError(t, err)
			require.Empty(t, downloaded)
		}
		r.run(dir, "go", "build", "-o", "program", ".")

		database, client := testenv.PostgresURL(t), testenv.Redis(t)
		r.env = append(r.env, "FENCEDB_POSTGRES_URL="+database, "FENCEDB_REDIS_URL=redis://"+client.Options().Addr+"/0")
		require.Empty(t, r.run(dir, "./program"))
		require.NoError(t, client.Del(t.Context(), "lease:v1:{table:12}:fence").Err()) // it has no namespace to be found by
		conn, err := pgx.Connect(t.Context(), database)
		require.NoError(t, err)
		defer conn.Close(t.Context())
		var guest string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT guest FROM reservations`).Scan(&guest))
		require.Equal(t, "Ann", guest)
		_, err = conn.Exec(t.Context(), `UPDATE reservations SET guest = 'Eve'`)
		require.ErrorContains(t, err, "without a fencing token")
	})

	t.Run("the adapters", func(t *testing.T) {
		dir := r.module()
		write(t, filepath.Join(dir, "main.go"), `package main

import (
	"github.com/fencedb/fencedb/lease"
	fenceotel "github.com/fencedb/fencedb/observe/otel"
	"github.com/fencedb/fencedb/observe/prom"
)

func main() { _ = []lease.Tracer{prom.New(prom.Config{}), fenceotel.New(fenceotel.Config{})} }
`)
		r.run(dir, "go", "get", published.Path+"/observe/prom@"+published.Version, published.Path+"/observe/otel@"+published.Version)
		r.run(dir, "go", "run", ".")
	})

	t.Run("a grant over gRPC", func(t *testing.T) {
		dir := r.module()
		write(t, filepath.Join(dir, "main.go"), `package main

import fencegrpc "github.com/fencedb/fencedb/grant/grpc"

func main() { _ = fencegrpc.UnaryClient }
`)
		r.run(dir, "go", "get", published.Path+"/grant/grpc@"+published.Version)
		r.run(dir, "go", "run", ".")
	})

	t.Run("the command", func(t *testing.T) {
		dir := t.TempDir()
		r.env = append(r.env, "GOBIN="+dir)
		r.run(dir, "go", "install", published.Path+"/cmd/fencedb@"+published.Version)
		require.Contains(t, r.run(dir, "./fencedb", "--version"), published.Version)
	})
}

// rehearsal has the module in a proxy of files.
type rehearsal struct {
	*testing.T
	cache string // of modules, empty at first
	env   []string
}

func rehearse(t *testing.T) *rehearsal {
	t.Helper()
	proxy, tree := filepath.Join(t.TempDir(), "proxy"), checkout(t)
	tree.passes("exit 0")
	tree.commit()
	tree.run(tree.dir, "sh", "internal/tools/release.sh", strings.TrimPrefix(published.Version, "v"))
	for _, dir := range append([]string{"."}, nested...) {
		tree.run(tree.dir, "git", "checkout", "--quiet", path.Join(dir, published.Version))
		mod, err := modfile.Parse("go.mod", read(t, filepath.Join(tree.dir, dir, "go.mod")), nil)
		require.NoError(t, err)
		require.Empty(t, mod.Replace, "%s: go install refuses a module that replaces another", dir)
		m := module.Version{Path: path.Join(published.Path, dir), Version: published.Version}
		require.Equal(t, m.Path, mod.Module.Mod.Path)

		versions := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
		require.NoError(t, os.MkdirAll(versions, 0o700))
		at := filepath.Join(versions, m.Version)
		write(t, filepath.Join(versions, "list"), m.Version+"\n")
		write(t, at+".mod", string(read(t, filepath.Join(tree.dir, dir, "go.mod"))))
		info, err := json.Marshal(map[string]any{"Version": m.Version, "Time": time.Now().UTC()})
		require.NoError(t, err)
		write(t, at+".info", string(info))
		archive, err := os.Create(at + ".zip")
		require.NoError(t, err)
		require.NoError(t, zip.CreateFromDir(archive, m, filepath.Join(tree.dir, dir)))
		require.NoError(t, archive.Close())
	}

	r := &rehearsal{T: t, cache: t.TempDir()}
	// What our tests were built with is in the cache of this machine. What only the module of a
	// stranger asks for, such as the go.mod of an older version, may not be.
	here := strings.Fields(r.run(root, "go", "env", "GOMODCACHE", "GOPROXY"))
	downloads := filepath.Join(here[0], "cache", "download")
	r.env = []string{
		"GOMODCACHE=" + r.cache, "GOPROXY=file://" + proxy + ",file://" + downloads + "," + here[1], "GONOSUMDB=" + published.Path,
		"GOSUMDB=off", "GOWORK=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "GOFLAGS=-modcacherw -trimpath", "GOENV=off",
	}
	return r
}

// clone is a repository with the files of this one.
type clone struct {
	rehearsal
	dir string
}

func checkout(t *testing.T) *clone {
	t.Helper()
	c := &clone{rehearsal{T: t, env: []string{
		"GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@example.test", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@example.test",
	}}, copied(t)}
	c.run(c.dir, "git", "init", "--quiet")
	return c
}

func (c *clone) commit() {
	c.Helper()
	c.run(c.dir, "git", "add", "--all")
	c.run(c.dir, "git", "commit", "--quiet", "--message", "x")
}

// passes makes .ci/run a script that only says whether it passes.
func (c *clone) passes(script string) {
	c.Helper()
	write(c.T, filepath.Join(c.dir, ".ci", "run"), "#!/bin/sh\n"+script+"\n")
	require.NoError(c, os.Chmod(filepath.Join(c.dir, ".ci", "run"), 0o700))
}

func TestMakeRelease(t *testing.T) {
	t.Parallel()
	r := checkout(t)
	dir, commit, passes := r.dir, r.commit, r.passes
	refuses := func(version, because string) {
		release := exec.CommandContext(t.Context(), "sh", "internal/tools/release.sh", version)
		release.Dir, release.Env = dir, append(os.Environ(), r.env...)
		said, err := release.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(said), because)
		require.Empty(t, r.run(dir, "git", "tag", "--list", "v0.2*"))
	}
	changelog := func() string { return string(read(t, filepath.Join(dir, "CHANGELOG.md"))) }

	passes("exit 0")
	refuses("0.2.0", "not committed")
	commit()
	refuses("v0.2", "no version")
	refuses("", "no version")
	passes("exit 1")
	commit()
	refuses("0.2.0", ".ci/run has failed")
	passes("echo x >made")
	commit()
	refuses("0.2.0", "has changed files")
	require.NoError(t, os.Remove(filepath.Join(dir, "made")))

	passes("exit 0")
	commit()
	r.run(dir, "sh", "internal/tools/release.sh", "0.1.0")
	require.Equal(t, []string{"cmd/fencedb/v0.1.0", "grant/grpc/v0.1.0", "observe/v0.1.0", "v0.1.0"}, strings.Fields(r.run(dir, "git", "tag", "--list")))
	require.Equal(t, "CHANGELOG.md\nsbom.cdx.json\n", r.run(dir, "git", "diff", "--name-only", "HEAD~2"), "the replacements are back")
	require.Regexp(t, `## \[Unreleased\]\n\n## \[0\.1\.0\] - \d{4}-\d\d-\d\d\n`, changelog())
	var sbom struct {
		Metadata struct{ Component struct{ Version string } }
	}
	require.NoError(t, json.Unmarshal(read(t, filepath.Join(dir, "sbom.cdx.json")), &sbom))
	require.Equal(t, "0.1.0", sbom.Metadata.Component.Version)
	require.Empty(t, r.run(dir, "git", "status", "--porcelain"))
	refuses("0.1.0", "there already")
	refuses("0.2.0", "nothing under [Unreleased]")
}

// copied is a copy of what git has of the repository, with what a commit would add. The directory
// itself also has what was built there.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700))
		write(t, filepath.Join(dir, name), string(text))
	}
	return dir
}

// module is an empty one.
func (r *rehearsal) module() string {
	r.Helper()
	dir := r.TempDir()
	r.run(dir, "go", "mod", "init", "example.test/stranger")
	return dir
}

// run returns what a command prints.
func (r *rehearsal) run(dir, name string, args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), r.env...)
	said, err := cmd.CombinedOutput()
	require.NoError(r, err, "%s %v\n%s", name, args, said)
	return string(said)
}

// blocks are those of a language in the README.
func blocks(t *testing.T, language string) (all []string) {
	t.Helper()
	fence := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
	for _, block := range fence.FindAllStringSubmatch(string(read(t, filepath.Join(root, "README.md"))), -1) {
		all = append(all, block[1])
	}
	require.NotEmpty(t, all)
	return all
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return text
}

func write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}
