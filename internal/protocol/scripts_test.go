package protocol_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/fencedb/fencedb/internal/protocol"
	"github.com/fencedb/fencedb/internal/testenv"
)

const (
	holder  = "0b0a2a4e-7f5b-4d4c-9b57-0d1f4f2c8a11"
	another = "6a3f9a52-52f6-4f0c-8d2e-0a4c3b1d7e22"
)

// sample is a script with a call of it that works, on the keys and in the state of a resource that
// is held and waited for.
type sample struct {
	name string // of the script
	keys string // their kinds, in order
	args string // in order, each as kind=value
}

const everywhere = "publish=PUBLISH"

var samples = []sample{
	{"acquire", "owner fence queue alive", "uuid=" + another + " name=host-7 number=1000 retention=1000 mode=wait publish=PUBLISH name=me"},
	{"extend", "owner fence ended", "uuid=" + holder + " number=41 number=1000 retention=1000"},
	{"release", "owner queue alive ended", "uuid=" + holder + " number=41 " + everywhere},
	{"withdraw", "owner queue alive", "uuid=" + holder + " " + everywhere},
	{"revoke", "owner fence queue alive ended", "uuid=" + another + " from=0 number=1000 " + everywhere},
	{"raise", "fence", "number=99 number=1000"},
	{"inspect", "owner fence queue alive ended", ""},
	{"eval", "owner fence ended data", "uuid=" + holder + " number=41 one=1 two=2 any=SET any=x"},

	{"semaphore_acquire", "owner fence queue alive", "uuid=" + another + " name=host-7 number=1000 retention=1000 mode=wait publish=PUBLISH name=me number=1"},
	{"semaphore_extend", "owner fence ended", "uuid=" + holder + " number=41 number=1000 retention=1000"},
	{"semaphore_release", "owner queue alive ended", "uuid=" + holder + " number=41 " + everywhere},
	{"semaphore_withdraw", "owner queue alive", "uuid=" + holder + " " + everywhere},
	{"semaphore_revoke", "owner ended queue alive", "uuid=" + holder + " " + everywhere},
	{"semaphore_inspect", "owner alive", ""},

	{"once_look", "owner record", ""},
	{"once_record", "owner record", "uuid=" + holder + " number=41 number=1000 print= any=paid"},
	{"once_forget", "record", ""},

	{"admission_fixed", "count", "number=3 number=1000"},
	{"admission_sliding", "log", "number=3 number=1000 uuid=" + another},
}

// words are the arguments.
func (s sample) words() (kinds []string, args []any) {
	for _, arg := range strings.Fields(s.args) {
		kind, value, _ := strings.Cut(arg, "=")
		kinds, args = append(kinds, kind), append(args, value)
	}
	return kinds, args
}

// rare are the arguments of a call that no common case answers, and so is looked at in full.
func (s sample) rare() (kinds []string, args []any) {
	if s.name == "extend" || s.name == "release" {
		s.args = strings.Replace(s.args, "=41", "=42", 1)
	}
	return s.words()
}

// quiet are the common cases, which scripts do first: nobody waits. A kind with a dash is of a key
// that does not exist.
var quiet = []sample{
	{"acquire", "-owner fence -queue -alive", "uuid=" + another + " name=host-7 number=1000 retention=1000 mode=wait publish=PUBLISH name=me"},
	{"extend", "owner fence ended", "uuid=" + holder + " number=41 number=1000 retention=1000"},
	{"release", "owner -queue -alive ended", "uuid=" + holder + " number=41 publish=PUBLISH"},
}

var sources = func() map[string]protocol.Script {
	all := make(map[string]protocol.Script)
	leases, semaphores := protocol.LeaseHolding, protocol.SemaphoreHolding
	for _, s := range []protocol.Script{
		leases.Acquire, leases.Extend, leases.Release, leases.Withdraw, leases.Inspect,
		protocol.Revoke, protocol.Raise, protocol.Eval("return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))"),
		semaphores.Acquire, semaphores.Extend, semaphores.Release, semaphores.Withdraw, semaphores.Inspect,
		protocol.SemaphoreRevoke,
		protocol.OnceLook, protocol.OnceRecord, protocol.OnceForget, protocol.AdmissionFixed, protocol.AdmissionSliding,
	} {
		all[s.Name] = s
	}
	return all
}()

// What an argument of each kind cannot be. "any" takes everything.
var bad = map[string][]string{
	"uuid":    {"", "x", strings.ToUpper(holder), holder + "0", holder[1:], strings.ReplaceAll(holder, "-", "a"), "0b0a2a4e7-f5b-4d4c-9b57-0d1f4f2c8a11"},
	"name":    {"", "a b", "a@b", "a:b", "!a", "a,b", strings.Repeat("a", 65)},
	"number":  {"", "x", "0", "-1", "1.5", "1e3", "0x10", "9007199254740992", " 1"},
	"from":    {"", "x", "-1", "1.5", "9007199254740992"},
	"one":     {"", "x", "0", "2", "-1", "1.5"},
	"two":     {"", "x", "0", "1", "3", "-1", "1.5"},
	"mode":    {"", "Wait", "queue"},
	"publish": {"", "publish", "GET", "FLUSHALL"},
	"print":   {"x", strings.Repeat("x", 33)},
}

func init() { bad["retention"] = append([]string{"1", "999"}, bad["number"]...) } // the ttl is 1000

// state prepares the keys as a resource that is held by holder with token 41, waited for by one,
// and whose last holder was revoked.
func prepare(t *testing.T, client *redis.Client, s sample) (names []string) {
	t.Helper()
	ctx := t.Context()
	places := strings.Contains(s.name, "semaphore")
	for _, kind := range strings.Fields(s.keys) {
		key := "{r}:" + strings.TrimPrefix(kind, "-")
		names = append(names, key)
		var err error
		switch kind {
		case "owner":
			if places {
				err = client.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: holder + ":41:host-7"}).Err()
			} else {
				err = client.Set(ctx, key, holder+":41:host-7", time.Hour).Err()
			}
		case "fence":
			err = client.Set(ctx, key, "41", time.Hour).Err()
		case "queue":
			err = client.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().UnixMicro()), Member: "waits"}).Err()
		case "alive":
			err = client.HSet(ctx, key, "waits", fmt.Sprintf("%d:%d:0:0@you", time.Now().Add(5*time.Second).UnixMilli(), time.Now().UnixMilli())).Err()
		case "ended":
			member := another + ":40:" + holder + ":41"
			if places {
				member = another + ":40:ca12"
			}
			err = client.ZAdd(ctx, key, redis.Z{Score: 41, Member: member}).Err()
		}
		require.NoError(t, err)
	}
	return names
}

func dump(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, key := range client.Keys(t.Context(), "*").Val() {
		value, err := client.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		all[key] = fmt.Sprintf("%x %v", value, client.PExpireTime(t.Context(), key).Val())
	}
	return all
}

// Every script, called as its header says but for one thing, refuses and changes nothing: a wrong
// argument, one too many or too few, and the same for keys.
func TestScriptsCheckTheirArguments(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	for n, s := range append(samples, quiet...) {
		kinds, args := s.rare()
		body := sources[s.name].Source
		keys := prepare(t, client, s)
		before := dump(t, client)
		refuses := func(what string, keys []string, args []any) {
			t.Helper()
			err := client.Eval(t.Context(), body, keys, args...).Err()
			require.Error(t, err, "%s: %s", s.name, what)
			require.ErrorContains(t, err, "nothing was changed", "%s: %s", s.name, what)
			require.Equal(t, before, dump(t, client), "%s: %s", s.name, what)
		}
		refuses("a key too few", keys[1:], args)
		refuses("a key too many", append(slices.Clone(keys), "{r}:another"), args)
		refuses("no keys", nil, args)
		refuses("an argument too many", keys, append(slices.Clone(args), "x"))
		if len(args) > 0 {
			refuses("an argument too few", keys, args[:len(args)-1])
		}
		if n >= len(samples) { // nothing else is looked at
			kinds = nil
		}
		for n, kind := range kinds {
			for _, value := range bad[kind] {
				wrong := slices.Clone(args)
				wrong[n] = value
				refuses(fmt.Sprintf("argument %d, a %s, is %q", n+1, kind, value), keys, wrong)
			}
		}
		_, err := client.Eval(t.Context(), body, keys, args...).Result()
		require.NoError(t, err, "%s: as its header says", s.name)
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

// A free resource is granted without a look at the form of the arguments. Redis refuses a time that
// is none, so there is no lease that never ends or has ended before. (It takes 2^53.)
func TestAFreeResourceIsNotGrantedForATimeThatIsNone(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	s := quiet[0]
	keys := []string{"{r}:owner", "{r}:fence", "{r}:queue", "{r}:alive"}
	for _, n := range []int{2, 3} { // the TTL and the retention
		for _, value := range bad["number"] {
			if value == "9007199254740992" {
				continue
			}
			args := []any{another, "host-7", "1000", "1000", "wait", "PUBLISH", "me"}
			args[n] = value
			require.Error(t, client.Eval(t.Context(), sources[s.name].Source, keys, args...).Err(), value)
			require.Zero(t, client.Exists(t.Context(), "{r}:owner").Val(), value)
		}
	}
}

// Keys that were mixed up take the resource from nobody, and stand in no queue that nobody reads.
func TestScriptsCheckThatTheirKeysBelongTogether(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	for _, s := range samples {
		if strings.HasPrefix(s.name, "once") { // whose keys are of two kinds
			continue
		}
		_, args := s.rare()
		right := prepare(t, client, s)
		before := dump(t, client)
		refuses := func(keys []string) {
			t.Helper()
			require.ErrorContains(t, client.Eval(t.Context(), sources[s.name].Source, keys, args...).Err(), "of the same resource", "%s %s", s.name, keys)
			require.Equal(t, before, dump(t, client), "%s %s", s.name, keys)
		}
		known := slices.Clone(right)
		if s.name == "eval" {
			known = known[:3] // the others are the caller's
		}
		for n := range known {
			if len(known) == 1 {
				break
			}
			for _, wrong := range []string{right[n] + "x", strings.Replace(right[n], "{r}", "{q}", 1), right[(n+1)%len(known)]} {
				keys := slices.Clone(right)
				keys[n] = wrong
				refuses(keys)
			}
			for m := range n {
				keys := slices.Clone(right)
				keys[n], keys[m] = keys[m], keys[n]
				refuses(keys)
			}
		}
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

// With a token of today, which is the time in microseconds.
func TestTheCommonCasesNeedNoHelpers(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	token := fmt.Sprint(time.Now().UnixMicro())
	for _, s := range quiet {
		text, err := os.ReadFile(s.name + ".lua")
		require.NoError(t, err)
		common, _, _ := strings.Cut(string(text), "-- The helpers come here.\n")
		keys := prepare(t, client, s)
		if s.name != "acquire" {
			require.NoError(t, client.Set(t.Context(), keys[0], holder+":"+token+":host-7", time.Hour).Err())
		}
		if strings.Contains(s.keys, "fence") {
			require.NoError(t, client.Set(t.Context(), keys[1], token, time.Hour).Err())
		}
		s.args = strings.Replace(s.args, "=41", "="+token, 1)
		_, args := s.words()
		words, err := client.Eval(t.Context(), common, keys, args...).StringSlice()
		require.NoError(t, err, s.name)
		require.Contains(t, []string{"granted", "extended", "released"}, words[0])
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

func TestAnExtensionIsOfTheExactLease(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	keys := []string{"{r}:owner", "{r}:fence", "{r}:ended"}
	for _, test := range []struct{ owner, word string }{
		{holder + ":41:host-7", "extended"},
		{holder + ":4:host-7", "taken"},
		{holder + ":411:host-7", "taken"},
		{another + ":41:host-7", "taken"},
		{"", "gone"},
		{holder + ":41", "corrupt"},
	} {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		require.NoError(t, client.Set(t.Context(), "{r}:fence", "41", time.Minute).Err())
		if test.owner != "" {
			require.NoError(t, client.Set(t.Context(), "{r}:owner", test.owner, time.Second).Err())
		}
		before := dump(t, client)
		words, err := client.Eval(t.Context(), sources["extend"].Source, keys, holder, 41, "60000", "3600000").StringSlice()
		require.NoError(t, err)
		require.Equal(t, test.word, words[0], test.owner)
		if test.word != "extended" {
			require.Equal(t, before, dump(t, client), test.owner)
			continue
		}
		require.Equal(t, test.owner, client.Get(t.Context(), "{r}:owner").Val())
		require.InDelta(t, time.Minute, client.PTTL(t.Context(), "{r}:owner").Val(), float64(20*time.Second), test.owner)
		require.InDelta(t, time.Hour, client.PTTL(t.Context(), "{r}:fence").Val(), float64(20*time.Second), test.owner)
	}
}

// A key of another type is told, and nothing was changed; or it does not matter, and the script
// does its work.
func TestScriptsCheckTypes(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	indifferent := map[string]string{ // keys that do not keep a holder from staying or leaving
		"extend":             "fence ended",
		"release":            "fence queue alive ended",
		"withdraw":           "fence queue alive",
		"semaphore_extend":   "fence ended",
		"semaphore_release":  "fence queue alive ended",
		"semaphore_withdraw": "fence queue alive",
		"eval":               "ended data",
		"acquire":            "fence", // it is held by another
	}
	for _, s := range samples {
		body := sources[s.name].Source
		_, args := s.words()
		for _, kind := range strings.Fields(s.keys) {
			keys := prepare(t, client, s)
			key := "{r}:" + kind
			require.NoError(t, client.Del(t.Context(), key).Err())
			require.NoError(t, client.RPush(t.Context(), key, "x").Err())
			before := dump(t, client)
			words, err := client.Eval(t.Context(), body, keys, args...).StringSlice()
			require.NoError(t, err, "%s: %s", s.name, kind)
			after := dump(t, client)
			if slices.Contains(strings.Fields(indifferent[s.name]), kind) {
				require.NotEqual(t, "corrupt", words[0], "%s: %s", s.name, kind)
				if !strings.Contains("acquire eval", s.name) {
					require.NotEqual(t, before["{r}:owner"], after["{r}:owner"], "%s: %s", s.name, kind)
				}
			} else {
				require.Equal(t, []string{"corrupt", key}, words[:2], "%s: %s", s.name, kind)
				require.True(t, maps.Equal(before, after), "%s: %s", s.name, kind)
			}
			require.NoError(t, client.FlushAll(t.Context()).Err())
		}
	}
}

// Each script is in the table, and is loaded.
func TestEveryScriptIsSampled(t *testing.T) {
	files, err := filepath.Glob("*.lua")
	require.NoError(t, err)
	require.Len(t, files, len(samples)+3, "and common.lua, holder.lua, holders.lua")
	require.Len(t, sources, len(samples))
	for _, s := range samples {
		require.Contains(t, sources, s.name)
		require.Contains(t, files, s.name+".lua")
	}
}
