package lease_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
)

// memoryRedis is the Redis of the simulation: the commands that the scripts of leases use, and Lua.
// It has no clock of its own and does nothing by itself, so whoever calls it decides on all that
// happens. TestTheRedisOfTheSimulationAnswersAsRedisDoes compares it with a real one.
//
// A reply is nil, an int64, a string, a status, an error, or a list of replies.
type memoryRedis struct {
	micros  int64                              // its clock
	publish func(channel, message string) int  // answers how many listen
	edit    func(script, source string) string // breaks a script on purpose; nil for none

	state   *lua.LState
	scripts map[string]string // the sources that it knows, by digest
	data    map[string]*datum
}

type status string

// datum is one key. Only one of text, set and hash is in use, as kind says.
type datum struct {
	kind  string
	text  string
	set   map[string]float64
	hash  map[string]string
	until int64 // in milliseconds of the clock; 0 for ever
}

func (d *datum) clone() *datum {
	c := *d
	c.set, c.hash = maps.Clone(d.set), maps.Clone(d.hash)
	return &c
}

func newMemoryRedis() *memoryRedis {
	m := &memoryRedis{state: lua.NewState(lua.Options{SkipOpenLibs: true})}
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
		lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		m.state.Push(m.state.NewFunction(open))
		m.state.Push(lua.LString(name))
		m.state.Call(1, 0)
	}
	api := m.state.NewTable()
	api.RawSetString("call", m.state.NewFunction(func(l *lua.LState) int { return m.fromScript(l, true) }))
	api.RawSetString("pcall", m.state.NewFunction(func(l *lua.LState) int { return m.fromScript(l, false) }))
	m.state.SetGlobal("redis", api)
	m.reset()
	return m
}

// reset forgets everything.
func (m *memoryRedis) reset() {
	m.scripts, m.data = make(map[string]string), make(map[string]*datum)
}

// snapshot is a copy of the data.
func (m *memoryRedis) snapshot() map[string]*datum {
	saved := make(map[string]*datum, len(m.data))
	for key, d := range m.data {
		saved[key] = d.clone()
	}
	return saved
}

// at is the key, nil if it does not exist or has expired.
func (m *memoryRedis) at(key string) *datum {
	d := m.data[key]
	if d != nil && d.until > 0 && m.micros/1000 > d.until {
		delete(m.data, key)
		return nil
	}
	return d
}

var errWrongType = errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")

// run carries out one command.
func (m *memoryRedis) run(args []string) any {
	name, rest := strings.ToUpper(args[0]), args[1:]
	switch name {
	case "EVAL", "EVALSHA":
		return m.eval(name == "EVALSHA", rest)
	case "TIME":
		return []any{strconv.FormatInt(m.micros/1e6, 10), strconv.FormatInt(m.micros%1e6, 10)}
	case "PUBLISH":
		return int64(m.publish(rest[0], rest[1]))
	case "EXISTS":
		n := int64(0)
		for _, key := range rest {
			n += existed(m.at(key))
		}
		return n
	case "TYPE":
		if d := m.at(rest[0]); d != nil {
			return status(d.kind)
		}
		return status("none")
	}
	c, known := commands[name]
	if !known {
		return fmt.Errorf("ERR unknown command '%s'", args[0])
	}
	d := m.at(rest[0])
	if d != nil && c.kind != "" && d.kind != c.kind && name != "SET" {
		return errWrongType
	}
	if d == nil && c.creates {
		d = &datum{kind: c.kind, set: make(map[string]float64), hash: make(map[string]string)}
		m.data[rest[0]] = d
	}
	reply := c.run(m, d, rest[0], rest[1:])
	if d != nil && (d.kind == "zset" && len(d.set) == 0 || d.kind == "hash" && len(d.hash) == 0) {
		delete(m.data, rest[0])
	}
	return reply
}

// commands work on one key, which is d; nil if there is none.
var commands = map[string]struct {
	kind    string // of the key; "" for any
	creates bool
	run     func(m *memoryRedis, d *datum, key string, args []string) any
}{
	"GET": {"string", false, func(_ *memoryRedis, d *datum, _ string, _ []string) any {
		if d == nil {
			return nil
		}
		return d.text
	}},
	"SET": {"string", true, func(m *memoryRedis, d *datum, _ string, args []string) any {
		*d = datum{kind: "string", text: args[0], until: d.until}
		switch {
		case len(args) == 3 && strings.EqualFold(args[1], "PX"):
			d.until = m.micros/1000 + number(args[2])
		case len(args) == 1:
			d.until = 0
		case len(args) != 2 || !strings.EqualFold(args[1], "KEEPTTL"):
			return errors.New("ERR syntax error")
		}
		return status("OK")
	}},
	"DEL": {"", false, func(m *memoryRedis, d *datum, key string, _ []string) any {
		delete(m.data, key)
		return existed(d)
	}},
	"PEXPIRE": {"", false, func(m *memoryRedis, d *datum, _ string, args []string) any {
		if d != nil {
			d.until = m.micros/1000 + number(args[0])
		}
		return existed(d)
	}},
	"PTTL": {"", false, func(m *memoryRedis, d *datum, _ string, _ []string) any {
		switch {
		case d == nil:
			return int64(-2)
		case d.until == 0:
			return int64(-1)
		}
		return max(d.until-m.micros/1000, 0)
	}},
	"HSET": {"hash", true, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		_, known := d.hash[args[0]]
		d.hash[args[0]] = args[1]
		return counted(!known)
	}},
	"HDEL": {"hash", false, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		n := int64(0)
		for _, field := range args {
			if d != nil {
				_, known := d.hash[field]
				n += counted(known)
				delete(d.hash, field)
			}
		}
		return n
	}},
	"HMGET": {"hash", false, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		values := make([]any, len(args))
		for n, field := range args {
			if d != nil {
				if value, known := d.hash[field]; known {
					values[n] = value
				}
			}
		}
		return values
	}},
	"HVALS": {"hash", false, func(_ *memoryRedis, d *datum, _ string, _ []string) any {
		values := []any{}
		if d != nil {
			for _, field := range slices.Sorted(maps.Keys(d.hash)) {
				values = append(values, d.hash[field])
			}
		}
		return values
	}},
	"ZADD": {"zset", true, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		_, known := d.set[args[len(args)-1]]
		if !strings.EqualFold(args[0], "NX") || !known {
			score, err := strconv.ParseFloat(args[len(args)-2], 64)
			if err != nil {
				return errors.New("ERR value is not a valid float")
			}
			d.set[args[len(args)-1]] = score
		}
		return counted(!known)
	}},
	"ZREM": {"zset", false, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		n := int64(0)
		for _, member := range args {
			if d != nil {
				_, known := d.set[member]
				n += counted(known)
				delete(d.set, member)
			}
		}
		return n
	}},
	"ZRANGE": {"zset", false, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		return replies(d.ranks(args))
	}},
	"ZREMRANGEBYRANK": {"zset", false, func(_ *memoryRedis, d *datum, _ string, args []string) any {
		all := d.ranks(args)
		for _, member := range all {
			delete(d.set, member)
		}
		return int64(len(all))
	}},
}

// members of a sorted set, in order.
func (d *datum) members() []string {
	if d == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(d.set), func(a, b string) int {
		return cmp.Or(cmp.Compare(d.set[a], d.set[b]), cmp.Compare(a, b))
	})
}

// ranks are the members from one rank to another, of which either may count from the end.
func (d *datum) ranks(args []string) []string {
	members := d.members()
	from, to := int(number(args[0])), int(number(args[1]))
	if from < 0 {
		from = max(from+len(members), 0)
	}
	if to < 0 {
		to += len(members)
	}
	if to = min(to+1, len(members)); from >= to {
		return nil
	}
	return members[from:to]
}

func number(s string) int64 {
	f, _ := strconv.ParseFloat(s, 64)
	return int64(f)
}

func counted(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func existed(d *datum) int64 { return counted(d != nil) }

func replies(all []string) []any {
	list := make([]any, len(all))
	for n, s := range all {
		list[n] = s
	}
	return list
}

// compiled holds scripts, by source.
var compiled sync.Map

func compile(source string) *lua.FunctionProto {
	if proto, known := compiled.Load(source); known {
		return proto.(*lua.FunctionProto)
	}
	chunk, err := parse.Parse(strings.NewReader(source), "script")
	if err != nil {
		panic(err)
	}
	proto, err := lua.Compile(chunk, "script")
	if err != nil {
		panic(err)
	}
	compiled.Store(source, proto)
	return proto
}

// eval runs a script, given by its digest or in full.
func (m *memoryRedis) eval(byDigest bool, args []string) any {
	source := args[0]
	if byDigest {
		var known bool
		if source, known = m.scripts[source]; !known {
			return errors.New("NOSCRIPT No matching script. Please use EVAL.")
		}
	} else {
		m.scripts[digestOf(source)] = source
	}
	if m.edit != nil {
		source = m.edit(nameOf(digestOf(source)), source)
	}
	keys := int(number(args[1]))
	m.state.SetGlobal("KEYS", m.table(args[2:2+keys]))
	m.state.SetGlobal("ARGV", m.table(args[2+keys:]))
	m.state.Push(m.state.NewFunctionFromProto(compile(source)))
	defer m.state.SetTop(0)
	if err := m.state.PCall(0, 1, nil); err != nil {
		return fmt.Errorf("ERR %w", err)
	}
	return fromLua(m.state.Get(-1))
}

// digests of scripts, by source.
var digests sync.Map

func digestOf(source string) string {
	if digest, known := digests.Load(source); known {
		return digest.(string)
	}
	digest := redis.NewScript(source).Hash()
	digests.Store(source, digest)
	return digest
}

func (m *memoryRedis) table(all []string) *lua.LTable {
	t := m.state.CreateTable(len(all), 0)
	for _, s := range all {
		t.Append(lua.LString(s))
	}
	return t
}

// fromScript is redis.call if it raises errors, else redis.pcall.
func (m *memoryRedis) fromScript(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for n := range args {
		switch arg := l.Get(n + 1).(type) {
		case lua.LString:
			args[n] = string(arg)
		case lua.LNumber:
			args[n] = fmt.Sprintf("%.17g", float64(arg))
		default:
			l.RaiseError("ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	reply := m.run(args)
	if err, failed := reply.(error); failed && raises {
		l.RaiseError("%s", err.Error())
	}
	l.Push(toLua(l, reply))
	return 1
}

func toLua(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case nil:
		return lua.LFalse
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case []any:
		t := l.CreateTable(len(r), 0)
		for _, each := range r {
			t.Append(toLua(l, each))
		}
		return t
	case status:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(r))
		return t
	case error:
		t := l.NewTable()
		t.RawSetString("err", lua.LString(r.Error()))
		return t
	}
	panic(fmt.Sprintf("reply of type %T", reply))
}

func fromLua(value lua.LValue) any {
	switch v := value.(type) {
	case lua.LString:
		return string(v)
	case lua.LNumber:
		return int64(math.Trunc(float64(v)))
	case lua.LBool:
		if v {
			return int64(1)
		}
		return nil
	case *lua.LTable:
		list := make([]any, 0, v.Len())
		for n := 1; n <= v.Len(); n++ {
			list = append(list, fromLua(v.RawGetInt(n)))
		}
		return list
	}
	return nil
}

// The same calls of the scripts, in any order, on a Redis and on the one of the simulation: the
// same answers, keys and news. Nothing expires here, and both have the same clock.
func TestTheRedisOfTheSimulationAnswersAsRedisDoes(t *testing.T) {
	t.Parallel()
	ctx, client := t.Context(), testenv.OwnRedis(t).Client()
	all := protocol.KeysOf(protocol.LeaseKind, "", "r", false)
	k := struct{ Owner, Fence, Queue, Alive, Ended, Channel string }{
		fmt.Sprint(all.Owner), fmt.Sprint(all.Fence), fmt.Sprint(all.Queue),
		fmt.Sprint(all.Alive), fmt.Sprint(all.Ended), fmt.Sprint(all.Channel),
	}
	hears := k.Channel + ":hears"
	subscription := client.Subscribe(ctx, hears)
	defer subscription.Close()
	_, err := subscription.Receive(ctx)
	require.NoError(t, err)

	var told []string
	m := newMemoryRedis()
	m.micros = epoch
	m.publish = func(channel, message string) int {
		if channel != hears {
			return 0
		}
		told = append(told, message)
		return 1
	}
	const long = "10000000"
	forever := strings.NewReplacer("local MINUTE = 60000", "local MINUTE = "+long,
		"q.queue, PATIENCE + GRACE)", "q.queue, "+long+")", "q.alive, PATIENCE + GRACE)", "q.alive, "+long+")")
	id := func(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", n) }
	answers := make(map[string]int)
	d := newDice(1)
	for range 1500 {
		m.micros += int64(d.upTo([]int{500, 500_000, 3_000_000}[d.upTo(3)]))
		held, token, next := id(d.upTo(40)), strconv.Itoa(1), id(d.upTo(40))
		if owner := m.at(k.Owner); owner != nil && d.is(0.8) {
			if parts := strings.Split(owner.text, ":"); len(parts) == 3 {
				held, token = parts[0], parts[1]
			}
		}
		mode, listener := []string{"try", "wait", "wait", "try"}[d.upTo(4)], []string{"hears", "deaf"}[d.upTo(2)]
		h := protocol.LeaseHolding
		test := []struct {
			script     protocol.Script
			keys, args []string
		}{
			{h.Acquire, []string{k.Owner, k.Fence, k.Queue, k.Alive}, []string{next, "label", long, long, mode, "PUBLISH", listener}},
			{h.Acquire, []string{k.Owner, k.Fence, k.Queue, k.Alive}, []string{next, "label", long, long, mode, "PUBLISH", listener}},
			{h.Release, []string{k.Owner, k.Queue, k.Alive, k.Ended}, []string{held, token, "PUBLISH"}},
			{h.Withdraw, []string{k.Owner, k.Queue, k.Alive}, []string{[]string{held, next}[d.upTo(2)], "PUBLISH"}},
			{h.Extend, []string{k.Owner, k.Fence, k.Ended}, []string{held, token, long, long}},
			{h.Inspect, []string{k.Owner, k.Fence, k.Queue, k.Alive, k.Ended}, nil},
			{protocol.Revoke, []string{k.Owner, k.Fence, k.Queue, k.Alive, k.Ended}, []string{id(d.upTo(3)), []string{"0", token}[d.upTo(2)], long, "PUBLISH"}},
			{protocol.Raise, []string{k.Fence}, []string{strconv.FormatInt(m.micros+int64(d.upTo(1000)), 10), long}},
		}[d.upTo(8)]
		if d.is(0.02) {
			require.NoError(t, client.FlushAll(ctx).Err())
			clear(m.data)
		}
		source := forever.Replace(test.script.Source)
		clock := fmt.Sprintf("{'%d','%d'}", m.micros/1e6, m.micros%1e6)
		args := make([]any, len(test.args))
		for n, arg := range test.args {
			args[n] = arg
		}
		want, err := client.Eval(ctx, strings.ReplaceAll(source, "redis.call('TIME')", clock), test.keys, args...).StringSlice()
		got, _ := wordsOf(m.run(slices.Concat([]string{"EVAL", source, strconv.Itoa(len(test.keys))}, test.keys, test.args)))
		if len(want) == 9 && want[0] == "inspected" { // what is left of two keys, by a clock that goes on
			want[3], want[5] = got[3], got[5]
		}
		require.NoError(t, err)
		require.Equal(t, want, got, "%s %v", test.script.Name, test.args)
		answers[test.script.Name+" "+got[0]]++
		requireSameData(t, client, m)
		if d.is(0.01) {
			require.NoError(t, client.ScriptFlush(ctx).Err())
		}
	}
	for _, message := range told {
		heard, err := subscription.ReceiveMessage(ctx)
		require.NoError(t, err)
		require.Equal(t, heard.Payload, message)
	}
	require.GreaterOrEqual(t, len(answers), 13, "%v", answers)
}

func requireSameData(t *testing.T, client *redis.Client, m *memoryRedis) {
	t.Helper()
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.Len(t, m.data, len(keys))
	for _, key := range keys {
		d := m.at(key)
		require.NotNil(t, d, key)
		switch d.kind {
		case "string":
			require.Equal(t, client.Get(t.Context(), key).Val(), d.text)
		case "hash":
			require.Equal(t, client.HGetAll(t.Context(), key).Val(), d.hash)
		case "zset":
			set := make(map[string]float64)
			for _, z := range client.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
				set[z.Member.(string)] = z.Score
			}
			require.Equal(t, set, d.set)
		}
	}
}
