package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/cmd/fencedb/internal/act"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/app"
	"github.com/fencedb/fencedb/cmd/fencedb/internal/term"
	"github.com/fencedb/fencedb/internal/testenv"
)

// commandVar makes the test binary the command.
const commandVar = "FENCEDB_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandVar) != "" {
		os.Unsetenv(commandVar)
		main()
	}
	become()
	if os.Getenv(holderVar) != "" {
		hold()
		return
	}
	if signal.Ignored(syscall.SIGHUP) { // by nohup: commands that tests hang up on would never end
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	testenv.Main(m)
}

// console is a person at a terminal: commands in, text and an exit code out.
type console struct {
	*testing.T
	flags   []string
	answer  string // to every question
	screen  term.Screen
	watched bool // a terminal shows its stderr
}

type answer struct {
	code        int
	out, errOut string
}

func newConsole(t *testing.T, flags ...string) *console {
	t.Helper()
	return &console{T: t, flags: flags}
}

func (c *console) run(args ...string) answer {
	c.Helper()
	var out, errOut bytes.Buffer
	if slices.Contains(args, "with") { // it ends processes that this one starts
		command, errOut := c.process(args...)
		command.Stdin, command.Stdout = strings.NewReader(c.answer), &out
		_ = command.Run()
		return answer{command.ProcessState.ExitCode(), out.String(), errOut.String()}
	}
	a := &app.State{In: strings.NewReader(c.answer), Out: &out, ErrOut: &errOut, Screen: c.screen}
	code := run(c.Context(), a, append(append([]string{"fencedb"}, c.flags...), args...))
	return answer{code, out.String(), errOut.String()}
}

// process is the command in a process of its own, as a shell without a terminal runs it.
func (c *console) process(args ...string) (command *exec.Cmd, errOut *bytes.Buffer) {
	c.Helper()
	self, err := os.Executable()
	require.NoError(c, err)
	command = exec.CommandContext(c.Context(), self, append(slices.Clone(c.flags), args...)...)
	command.Env = append(os.Environ(), commandVar+"=1")
	errOut = new(bytes.Buffer)
	command.Stderr = errOut
	return command, errOut
}

// ok runs a command that must succeed, and returns what it printed.
func (c *console) ok(args ...string) string {
	c.Helper()
	got := c.run(args...)
	require.Equal(c, app.ExitDone, got.code, got.errOut)
	return got.out
}

// json runs a command with --json, checks the output against its definition in schema.json, and
// decodes it into value.
func (c *console) json(definition string, value any, args ...string) {
	c.Helper()
	c.decode(definition, value, c.ok(append([]string{"--json"}, args...)...))
}

func (c *console) decode(definition string, value any, out string) {
	c.Helper()
	schema, err := jsonschema.NewCompiler().Compile("schema.json#/$defs/" + definition)
	require.NoError(c, err)
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
	require.NoError(c, err, out)
	require.NoError(c, schema.Validate(document), out)
	require.NoError(c, json.Unmarshal([]byte(out), value))
}

func redisURL(client *redis.Client) string {
	o := client.Options()
	address := url.URL{Scheme: "redis", Host: o.Addr}
	if o.Password != "" {
		address.User = url.UserPassword(o.Username, o.Password)
	}
	return address.String()
}

func TestAWrongCallSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://nobody@127.0.0.1:1/none"
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"command":         {[]string{"mirgate"}, `"mirgate"`},
		"subcommand":      {[]string{"migrate", "sideways"}, `"sideways"`},
		"flag":            {[]string{"migrate", "up", "--fast"}, "there is no flag --fast; did you mean "},
		"no postgres":     {[]string{"migrate", "up"}, "FENCEDB_POSTGRES_URL"},
		"postgres":        {[]string{"--postgres", "postgres://u:hunter2@[", "migrate", "up"}, "--postgres"},
		"timeout":         {[]string{"--postgres", nowhere, "--timeout", "0s", "migrate", "up"}, "--timeout"},
		"timeout no time": {[]string{"--timeout", "soon", "migrate", "up"}, "soon"},
		"argument":        {[]string{"migrate", "up", "3"}, `"3"`},
		"no redis":        {[]string{"leases"}, "FENCEDB_REDIS_URL"},
		"redis":           {[]string{"--redis", "redis://u:hunter2@[", "leases"}, "--redis"},
		"two prefixes":    {[]string{"leases", "a", "b"}, `"b"`},
		"limit":           {[]string{"leases", "--limit", "0"}, "--limit"},
		"no resource":     {[]string{"inspect"}, "table:12"},
		"two resources":   {[]string{"inspect", "a", "b"}, `"b"`},
		"no past":         {[]string{"history"}, "table:12"},
		"no time":         {[]string{"history", "a", "--at", "soon"}, "Fri 20:14"},
		"two times":       {[]string{"history", "a", "--at", "20:14", "--since", "1h"}, "one of them"},
		"no time at all":  {[]string{"history", "a", "--since", "0s"}, "--since"},
		"no reason":       {[]string{"revoke", "table:12"}, "--reason"},
		"blank reason":    {[]string{"revoke", "table:12", "--reason", " "}, "--reason"},
		"revoke nothing":  {[]string{"revoke", "--reason", "it hangs"}, "table:12"},
		"prune too soon":  {[]string{"prune", "--older-than", "24h"}, "--max-hold"},
		"prune a day":     {[]string{"prune", "--older-than", "23h", "--retention", "1h"}, "24h"},
		"prune hold":      {[]string{"prune", "--max-hold", "-1h"}, "--max-hold"},
		"prune for ever":  {[]string{"prune", "--max-hold", "2562047h"}, "--max-hold"},
		"prune silently":  {[]string{"prune", "--apply"}, "--reason"},
		"prune one":       {[]string{"prune", "table:12"}, "table:12"},
		"shell":           {[]string{"completion", "tcsh"}, `"tcsh"`},
		"two types":       {[]string{"ttl", "a", "b"}, `"b"`},
		"no type":         {[]string{"ttl"}, "table"},
		"two tables":      {[]string{"adopt", "a", "b"}, `"b"`},
		"a resource":      {[]string{"ttl", "table:12"}, "before the colon"},
		"pause":           {[]string{"ttl", "table", "--pause", "-1s"}, "--pause"},
		"kind":            {[]string{"watch", "--kind", "lots"}, "refused"},
		"since":           {[]string{"watch", "--since", "-1s"}, "--since"},
		"watch two":       {[]string{"watch", "a", "b"}, `"b"`},
		"older than":      {[]string{"leases", "--older-than", "-1s"}, "--older-than"},
		"print argument":  {[]string{"migrate", "print", "3"}, `"3"`},
		"export for what": {[]string{"migrate", "export", "--for", "make", "."}, "golang-migrate"},
		"export for none": {[]string{"migrate", "export", "."}, `"for"`},
		"export where":    {[]string{"migrate", "export", "--for", "goose"}, "one directory"},
		"export nowhere":  {[]string{"migrate", "export", "--for", "goose", "/no/such"}, "/no/such"},
		"with nothing":    {[]string{"with", "table:12"}, "no command"},
		"with no command": {[]string{"with", "table:12", "--"}, "no command"},
		"with no name":    {[]string{"with", "--", "true"}, "no resource"},
		"with -":          {[]string{"with", "--wait", "-1s", "table:12", "--", "true"}, "--wait"},
		"with no time":    {[]string{"with", "--ttl", "0s", "table:12", "--", "true"}, "--ttl"},
	} {
		got := newConsole(t).run(test.args...)

		require.Equal(t, app.ExitUsage, got.code, name)
		require.Contains(t, got.errOut, test.says, name)
		require.NotContains(t, got.errOut, "hunter2", name)
		require.Empty(t, got.out, name)
	}
}

func TestATypingErrorGetsWhatWasMeant(t *testing.T) {
	t.Parallel()
	for says, calls := range map[string][][]string{
		"did you mean migrate?":      {{"mirgate"}, {"migrat"}, {"help", "mirgate"}, {"mirgate", "up"}},
		"did you mean inspect?":      {{"inspekt", "seat:1"}},
		"did you mean status?":       {{"migrate", "stauts"}, {"migrate", "help", "stauts"}},
		"did you mean --older-than?": {{"leases", "--olderthan", "1m"}, {"leases", "--oldr-than=1m"}},
		"did you mean --reason?":     {{"revoke", "seat:1", "--reson", "it hangs"}},
		"did you mean --postgres?":   {{"--postgress", "x", "leases"}, {"leases", "--postgre", "x"}},
	} {
		for _, args := range calls {
			got := newConsole(t).run(args...)
			require.Equal(t, app.ExitUsage, got.code, args)
			require.Contains(t, got.errOut, says, args)
		}
	}
}

func TestANameThatCannotBeIsAUsageError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, says := range map[string]string{strings.Repeat("x", 600): "more than 512", "table:\xff": `"table:\xff" is not valid UTF-8`} {
		for _, args := range [][]string{
			{"inspect", name}, {"history", name}, {"revoke", name, "--reason", "it hangs", "--yes"},
			{"reset", name, "--to", "1", "--reason", "typed", "--yes"}, {"with", name, "--", "true"},
		} {
			got := w.run(args...)
			require.Equal(t, app.ExitUsage, got.code, args)
			require.Contains(t, got.errOut, "usage error: ", args)
			require.Contains(t, got.errOut, says, args)
		}
	}
}

func TestAServerThatIsAwayIsAFailure(t *testing.T) {
	t.Parallel()
	got := newConsole(t, "--postgres", "postgres://nobody:hunter2@127.0.0.1:1/none").run("migrate", "up")

	require.Equal(t, app.ExitFailed, got.code)
	require.Contains(t, got.errOut, "postgres:")
	require.NotContains(t, got.errOut, "hunter2")
}

func TestTheEnvironmentConfigures(t *testing.T) {
	t.Setenv("FENCEDB_POSTGRES_URL", testenv.PostgresURL(t))
	t.Setenv("FENCEDB_JSON", "true")
	var got act.SchemaReport

	newConsole(t).json("migrate", &got, "migrate", "up")

	require.NotEmpty(t, got.Changed)
}

func TestAnEnvironmentThatIsWrongIsAUsageError(t *testing.T) {
	t.Setenv("FENCEDB_TIMEOUT", "soon")
	for _, args := range [][]string{{"leases"}, {"with", "table:12", "--", "true"}} {
		got := newConsole(t).run(args...)

		require.Equal(t, app.ExitUsage, got.code)
		require.Contains(t, got.errOut, "FENCEDB_TIMEOUT")
	}
}

// requireNarrow requires that text fits a terminal of 80 columns.
func requireNarrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

func TestHelpIsHelp(t *testing.T) {
	t.Parallel()
	c := newConsole(t)

	require.Contains(t, c.ok(), "Exit codes:")
	require.Contains(t, c.ok("migrate"), "status")
	require.Contains(t, c.ok("--version"), "fencedb version")
	for _, command := range root(&app.State{}).Commands {
		help := c.ok(command.Name, "--help")
		require.Contains(t, help, "fencedb "+command.Name, "it teaches by example")
		requireNarrow(t, help)
		for _, sub := range command.Commands {
			requireNarrow(t, c.ok(command.Name, sub.Name, "--help"))
		}
	}
	requireNarrow(t, c.ok())
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Whoever reads the file would take what is not in it for what is not held.
func TestAnAnswerThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"leases"}, {"leases", "--json"}, {"migrate", "print"}, {"completion", "bash"}, {"completion", "fish"}, {"version"}} {
		var errOut bytes.Buffer
		a := &app.State{Out: full{}, ErrOut: &errOut}
		code := run(t.Context(), a, append([]string{"fencedb", "--redis", redisURL(testenv.Redis(t))}, args...))

		require.Equal(t, app.ExitFailed, code, args)
		require.Contains(t, errOut.String(), syscall.ENOSPC.Error())
	}
}
