package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/testenv"
)

func TestMain(m *testing.M) {
	if os.Getenv(holderVar) != "" {
		hold()
		return
	}
	testenv.Main(m)
}

// console is a person at a terminal: commands in, text and an exit code out.
type console struct {
	*testing.T
	flags  []string
	answer string // to every question
	screen screen

	patience time.Duration
}

type answer struct {
	code        int
	out, errOut string
}

func newConsole(t *testing.T, flags ...string) *console {
	t.Helper()
	return &console{T: t, flags: flags, patience: time.Hour}
}

func (c *console) run(args ...string) answer {
	c.Helper()
	var out, errOut bytes.Buffer
	a := &app{in: strings.NewReader(c.answer), out: &out, errOut: &errOut, screen: c.screen, patience: c.patience}
	code := a.run(c.Context(), append(append([]string{"fencedb"}, c.flags...), args...))
	return answer{code, out.String(), errOut.String()}
}

// ok runs a command that must succeed, and returns what it printed.
func (c *console) ok(args ...string) string {
	c.Helper()
	got := c.run(args...)
	require.Equal(c, exitDone, got.code, got.errOut)
	return got.out
}

// json runs a command with --json, checks the output against its definition in schema.json, and decodes it into value.
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
