package protocol_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
)

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	require.NoError(t, err)
	return string(text)
}

func TestTheNamesOnThePage(t *testing.T) {
	t.Parallel()
	rows := regexp.MustCompile("(?m)^\\| (?:`(.*?)`)? ?\\| `(.*?)` \\| (yes|no) \\| `(.*?)` \\|$").FindAllStringSubmatch(document(t, "protocol.md"), -1)
	require.GreaterOrEqual(t, len(rows), 10)
	for _, row := range rows {
		require.Equal(t, row[4], protocol.KeyOf(protocol.LeaseKind, row[1], row[2], row[3] == "yes").For("owner"))
	}
}

func TestTheCallsOnThePage(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	token := ""
	calls := regexp.MustCompile(`(?m)^> (\w+) (.*) \| (.*)\n< (.*)$`).FindAllStringSubmatch(document(t, "protocol.md"), -1)
	require.GreaterOrEqual(t, len(calls), 7)
	for _, call := range calls {
		var args []any
		for arg := range strings.FieldsSeq(call[3]) {
			args = append(args, strings.ReplaceAll(arg, "TOKEN", token))
		}
		reply, err := client.Eval(t.Context(), sources[call[1]].Source, strings.Fields(call[2]), args...).StringSlice()
		require.NoError(t, err, call[0])
		if token == "" {
			token = reply[1]
		}
		require.Equal(t, strings.ReplaceAll(call[4], "TOKEN", token), strings.Join(reply, " "), call[0])
	}
}

// vectors is docs/protocol.json. Clients in other languages run it too (lab/interop).
type vectors struct {
	Helpers map[string][]string
	Names   []struct {
		Kind, Namespace, Resource string
		Hashed                    bool
		Owner, Fence, Wake        string
	}
	Refused []struct{ Namespace, Resource string }
	Stories []struct {
		Story string
		Steps []step
	}
}

// step is a call of a script, a command of Redis, a subscription, a message that comes, or a
// statement of Postgres.
type step struct {
	Script     string
	Keys, Args []string
	Reply      []string
	Error      json.RawMessage

	Command   []string
	Subscribe string
	Channel   string
	Message   string

	Session, SQL string
	Tag          string
	Row          []*string
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(document(t, "protocol.json")))
	require.NoError(t, decoder.Decode(&v))
	return v
}

func TestTheVectorsName(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, name := range v.Names {
		keys := protocol.KeysOf(name.Kind, name.Namespace, name.Resource, name.Hashed)
		require.Equal(t, []any{name.Owner, name.Fence, name.Wake}, []any{keys.Owner, keys.Fence, keys.Channel})
		require.NoError(t, protocol.CheckRequired("resource", name.Resource, "table:12", protocol.MaxResource))
	}
	for _, name := range v.Refused {
		require.Error(t, errors.Join(protocol.CheckRequired("resource", name.Resource, "table:12", protocol.MaxResource), protocol.CheckName("namespace", name.Namespace, protocol.MaxNamespace)))
	}
}

// As the page says how.
func TestTheVectorsSayHowScriptsArePutTogether(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	require.Len(t, v.Helpers, len(sources))
	read := func(name string) string {
		text, err := os.ReadFile(name + ".lua")
		require.NoError(t, err)
		return string(text) + "\n"
	}
	for name, helpers := range v.Helpers {
		before, after, found := strings.Cut(read(name), "-- The helpers come here.\n")
		if !found {
			before, after = "", before
		}
		for _, helper := range helpers {
			before += read(helper)
		}
		if name == "eval" {
			before = "local function script(KEYS, ARGV)\n" + "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))" + "\nend\n" + before
		}
		require.Equal(t, sources[name].Source, before+after, name)
	}
}

// Every answer that the head of a script lists, but for corrupt keys, which every script may find.
func TestTheVectorsHaveEveryAnswer(t *testing.T) {
	t.Parallel()
	shown := map[string][]string{}
	for _, story := range readVectors(t).Stories {
		for _, step := range story.Steps {
			if step.Reply != nil {
				shown[step.Script] = append(shown[step.Script], step.Reply[0])
			}
		}
	}
	for name := range sources {
		text, err := os.ReadFile(name + ".lua")
		require.NoError(t, err)
		head, _, _ := strings.Cut(string(text), "\n\n")
		answers := regexp.MustCompile(`(?m)^--.* \{'(\w+)'`).FindAllStringSubmatch(head, -1)
		require.NotEmpty(t, answers, name)
		for _, answer := range answers {
			if answer[1] != "corrupt" && !slices.Contains(shown[name], answer[1]) {
				t.Errorf("no call of %s answers %s", name, answer[1])
			}
		}
	}
}

func TestTheVectors(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	pool := testenv.Postgres(t)
	sessions, channels := map[string]*pgx.Conn{}, map[string]*redis.PubSub{}
	for _, story := range readVectors(t).Stories {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		r := &run{T: t, story: story.Story, known: map[string]string{}}
		for _, step := range story.Steps {
			switch {
			case step.Script != "":
				r.call(client, step)
			case step.Command != nil:
				require.NoError(t, client.Do(t.Context(), r.fill(step.Command)...).Err())
			case step.Subscribe != "":
				channels[step.Subscribe] = client.Subscribe(t.Context(), step.Subscribe)
				defer channels[step.Subscribe].Close()
				_, err := channels[step.Subscribe].Receive(t.Context()) // that it is confirmed
				require.NoError(t, err)
			case step.Channel != "":
				message, err := channels[step.Channel].ReceiveMessage(t.Context())
				require.NoError(t, err)
				r.same(step.Message, message.Payload)
			default:
				if sessions[step.Session] == nil {
					conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
					require.NoError(t, err)
					defer conn.Close(t.Context())
					sessions[step.Session] = conn
				}
				r.query(sessions[step.Session], step)
			}
		}
	}
}

// run is one story. A word that begins with $ stands for a value: the first time for any.
type run struct {
	*testing.T
	story string
	known map[string]string
}

func (r *run) fill(words []string) (filled []any) {
	for _, word := range words {
		for name, value := range r.known {
			word = strings.ReplaceAll(word, name, value)
		}
		filled = append(filled, word)
	}
	return filled
}

func (r *run) same(wanted, got string) {
	r.Helper()
	words, others := strings.Split(wanted, " "), strings.Split(got, " ")
	require.Len(r, others, len(words), "%s: %s instead of %s", r.story, got, wanted)
	for n, word := range words {
		if strings.HasPrefix(word, "$") {
			if _, known := r.known[word]; !known {
				r.known[word] = others[n]
			}
			word = r.known[word]
		}
		require.Equal(r, word, others[n], r.story)
	}
}

func (r *run) call(client *redis.Client, s step) {
	r.Helper()
	reply, err := client.Eval(r.Context(), sources[s.Script].Source, s.Keys, r.fill(s.Args)...).StringSlice()
	if s.Error != nil {
		var text string
		require.NoError(r, json.Unmarshal(s.Error, &text))
		require.ErrorContains(r, err, text, r.story)
		return
	}
	require.NoError(r, err, "%s: %s", r.story, s.Script)
	require.Len(r, reply, len(s.Reply), "%s: %s: %s", r.story, s.Script, reply)
	for n, wanted := range s.Reply {
		r.same(wanted, reply[n])
	}
}

func (r *run) query(conn *pgx.Conn, s step) {
	r.Helper()
	sql := r.fill([]string{s.SQL})[0].(string)
	results, err := conn.PgConn().Exec(r.Context(), sql).ReadAll()
	if s.Error != nil {
		var wanted struct {
			SQLState string
			Detail   map[string]any
		}
		require.NoError(r, json.Unmarshal(s.Error, &wanted))
		var refused *pgconn.PgError
		require.ErrorAs(r, err, &refused, "%s: %s", r.story, sql)
		require.Equal(r, wanted.SQLState, refused.Code, "%s: %s: %v", r.story, sql, err)
		if wanted.Detail != nil {
			var detail map[string]any
			require.NoError(r, json.Unmarshal([]byte(refused.Detail), &detail))
			for name, value := range wanted.Detail {
				require.Equal(r, value, detail[name], "%s: %s", r.story, sql)
			}
		}
		return
	}
	require.NoError(r, err, "%s: %s", r.story, sql)
	if s.Tag != "" {
		require.Equal(r, s.Tag, results[0].CommandTag.String(), "%s: %s", r.story, sql)
	}
	if s.Row == nil {
		return
	}
	require.Len(r, results[0].Rows, 1, "%s: %s", r.story, sql)
	row := results[0].Rows[0]
	require.Equal(r, slices.IndexFunc(row, func(v []byte) bool { return v == nil }), slices.Index(s.Row, nil), "%s: %s", r.story, sql)
	for n, wanted := range s.Row {
		if wanted != nil {
			r.same(*wanted, string(row[n]))
		}
	}
}

func TestTheConstantsOnThePage(t *testing.T) {
	t.Parallel()
	page := document(t, "protocol.md")
	text, err := os.ReadFile("common.lua")
	require.NoError(t, err)
	constants := regexp.MustCompile(`(?m)^local ([A-Z]+) = (\d+) +-- `).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, constants)
	for _, c := range constants {
		if c[1] != "LOOK" && !strings.HasPrefix(c[1], "M") { // MAX_WHOLE, MOST_CALLS, MOST_OVER
			require.Contains(t, page, c[1]+" "+c[2]+" ")
		}
	}
}
