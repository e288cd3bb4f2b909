package script_test

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

	"github.com/fencedb/fencedb/internal/testenv"
	"github.com/fencedb/fencedb/lease/internal/script"
)

const (
	holder  = "0b0a2a4e-7f5b-4d4c-9b57-0d1f4f2c8a11"
	another = "6a3f9a52-52f6-4f0c-8d2e-0a4c3b1d7e22"
)

// sample is a script with a call of it that works, on the keys and in the state of a resource that is held and waited
// for.
type sample struct {
	path string
	keys string // their kinds, in order
	args string // in order, each as kind=value
}

const everywhere = "publish=PUBLISH channel=wake"

var samples = []sample{
	{"lease/scripts/acquire.lua", "owner fence queue alive", "uuid=" + another + " name=ca11 number=1 number=1000 number=1000 mode=wait publish=PUBLISH name=me channel=wake"},
	{"lease/scripts/extend.lua", "owner fence ended", "uuid=" + holder + " number=41 number=1000 number=1000"},
	{"lease/scripts/release.lua", "owner fence queue alive ended", "uuid=" + holder + " number=41 name=ca11 sure=unsure number=1000 " + everywhere},
	{"lease/scripts/withdraw.lua", "owner fence queue alive", "uuid=" + holder + " name=ca11 sure=unsure number=1000 " + everywhere},
	{"lease/scripts/verify.lua", "owner fence", "uuid=" + holder + " number=41"},
	{"lease/scripts/revoke.lua", "owner fence queue alive ended", "uuid=" + another + " from=0 number=1000 " + everywhere},
	{"lease/scripts/raise.lua", "fence", "number=99 number=1000"},
	{"lease/scripts/regrant.lua", "owner fence", "uuid=" + holder + " number=41 uuid=" + another + " name=ca11 number=99 number=1000 number=1000"},
	{"lease/scripts/confirm.lua", "owner fence", "uuid=" + holder + " number=99 number=1000 number=1000"},
	{"lease/scripts/inspect.lua", "owner fence queue alive ended", ""},

	{"lease/semaphore/scripts/acquire.lua", "owner fence queue alive limit", "uuid=" + another + " name=ca11 number=1 number=1000 number=1000 mode=wait publish=PUBLISH name=me channel=wake number=1"},
	{"lease/semaphore/scripts/extend.lua", "owner fence ended", "uuid=" + holder + " number=41 number=1000 number=1000"},
	{"lease/semaphore/scripts/release.lua", "owner fence queue alive ended", "uuid=" + holder + " number=41 name=ca11 sure=unsure number=1000 " + everywhere},
	{"lease/semaphore/scripts/withdraw.lua", "owner fence queue alive", "uuid=" + holder + " name=ca11 sure=unsure number=1000 " + everywhere},
	{"lease/semaphore/scripts/verify.lua", "owner fence", "uuid=" + holder + " number=41"},
	{"lease/semaphore/scripts/revoke.lua", "owner ended queue alive", "uuid=" + holder + " " + everywhere},
	{"lease/semaphore/scripts/limit.lua", "limit queue alive", "from=2 " + everywhere},
	{"lease/semaphore/scripts/inspect.lua", "owner alive limit", "number=1"},

	{"lease/once/scripts/look.lua", "owner record", ""},
	{"lease/once/scripts/record.lua", "owner record", "uuid=" + holder + " number=41 number=1000 print= any=paid"},
	{"lease/once/scripts/forget.lua", "record", ""},

	{"lease/admission/scripts/fixed.lua", "count", "number=3 number=1000"},
	{"lease/admission/scripts/sliding.lua", "log", "number=3 number=1000 uuid=" + another},
}

// What an argument of each kind cannot be. "any" takes everything.
var bad = map[string][]string{
	"uuid":    {"", "x", strings.ToUpper(holder), holder + "0", holder[1:], strings.ReplaceAll(holder, "-", "a"), "0b0a2a4e7-f5b-4d4c-9b57-0d1f4f2c8a11"},
	"name":    {"", "a b", "a@b", "a:b", "!a", "a,b", strings.Repeat("a", 65)},
	"number":  {"", "x", "0", "-1", "1.5", "1e3", "0x10", "9007199254740992", " 1"},
	"from":    {"", "x", "-1", "1.5", "9007199254740992"},
	"mode":    {"", "Wait", "queue"},
	"publish": {"", "publish", "GET", "FLUSHALL"},
	"sure":    {"", "yes", "1"},
	"channel": {""},
	"print":   {"x", strings.Repeat("x", 33)},
}

// state prepares the keys as a resource that is held by holder with token 41, waited for by one, and whose last holder
// was revoked.
func prepare(t *testing.T, client *redis.Client, s sample) (names []string) {
	t.Helper()
	ctx := t.Context()
	places := strings.Contains(s.path, "semaphore")
	for _, kind := range strings.Fields(s.keys) {
		key := "{r}:" + kind
		names = append(names, key)
		var err error
		switch kind {
		case "owner":
			if places {
				err = client.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: holder + ":41:ca11"}).Err()
			} else {
				err = client.Set(ctx, key, holder+":41:ca11", time.Hour).Err()
			}
		case "fence":
			err = client.Set(ctx, key, "41", time.Hour).Err()
		case "queue":
			err = client.ZAdd(ctx, key, redis.Z{Score: float64(time.Now().UnixMicro()), Member: "waits"}).Err()
		case "alive":
			err = client.HSet(ctx, key, "waits", fmt.Sprintf("%d:%d:1:1000:%s@you", time.Now().Add(5*time.Second).UnixMilli(), time.Now().UnixMilli(), another)).Err()
		case "ended":
			if places {
				err = client.ZAdd(ctx, key, redis.Z{Score: 1, Member: another + ":40:ca12"}).Err()
			} else {
				err = client.Set(ctx, key, another+":40:"+another+":41:1", time.Hour).Err()
			}
		}
		require.NoError(t, err)
	}
	return names
}

func source(t *testing.T, s sample) string {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		return string(text)
	}
	parts := []string{script.Common}
	switch {
	case strings.HasPrefix(s.path, "lease/scripts"):
		parts = append(parts, script.Holder, script.Queue, read("lease/scripts/owner.lua"), read("lease/scripts/handover.lua"))
	case strings.HasPrefix(s.path, "lease/semaphore"):
		parts = append(parts, script.Holder, script.Queue, read("lease/semaphore/scripts/holders.lua"))
	}
	return strings.Join(append(parts, read(s.path)), "\n")
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

// Every script, called as its header says but for one thing, refuses and changes nothing: a wrong argument, one too
// many or too few, and the same for keys.
func TestScriptsCheckTheirArguments(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	for _, s := range samples {
		var kinds []string
		var args []any
		for _, arg := range strings.Fields(s.args) {
			kind, value, _ := strings.Cut(arg, "=")
			kinds, args = append(kinds, kind), append(args, value)
		}
		body := source(t, s)
		keys := prepare(t, client, s)
		before := dump(t, client)
		refuses := func(what string, keys []string, args []any) {
			t.Helper()
			err := client.Eval(t.Context(), body, keys, args...).Err()
			require.Error(t, err, "%s: %s", s.path, what)
			require.ErrorContains(t, err, "nothing was changed", "%s: %s", s.path, what)
			require.Equal(t, before, dump(t, client), "%s: %s", s.path, what)
		}
		refuses("a key too few", keys[1:], args)
		refuses("a key too many", append(slices.Clone(keys), "{r}:another"), args)
		refuses("no keys", nil, args)
		refuses("an argument too many", keys, append(slices.Clone(args), "x"))
		if len(args) > 0 {
			refuses("an argument too few", keys, args[:len(args)-1])
		}
		for n, kind := range kinds {
			for _, value := range bad[kind] {
				wrong := slices.Clone(args)
				wrong[n] = value
				refuses(fmt.Sprintf("argument %d, a %s, is %q", n+1, kind, value), keys, wrong)
			}
		}
		_, err := client.Eval(t.Context(), body, keys, args...).Result()
		require.NoError(t, err, "%s: as its header says", s.path)
		require.NoError(t, client.FlushAll(t.Context()).Err())
	}
}

// A key of another type is told, and nothing was changed; or it does not matter, and the script does its work.
func TestScriptsCheckTypes(t *testing.T) {
	t.Parallel()
	client := testenv.OwnRedis(t).Client()
	indifferent := map[string]string{ // keys that do not keep a holder from staying or leaving
		"lease/scripts/extend.lua":             "fence ended",
		"lease/scripts/release.lua":            "fence queue alive ended",
		"lease/scripts/withdraw.lua":           "fence queue alive",
		"lease/semaphore/scripts/extend.lua":   "fence ended",
		"lease/semaphore/scripts/release.lua":  "fence queue alive ended",
		"lease/semaphore/scripts/withdraw.lua": "fence queue alive",
		"lease/semaphore/scripts/verify.lua":   "fence",
		"lease/scripts/acquire.lua":            "fence", // it is held by another
	}
	for _, s := range samples {
		body := source(t, s)
		var args []any
		for _, arg := range strings.Fields(s.args) {
			_, value, _ := strings.Cut(arg, "=")
			args = append(args, value)
		}
		for _, kind := range strings.Fields(s.keys) {
			keys := prepare(t, client, s)
			key := "{r}:" + kind
			require.NoError(t, client.Del(t.Context(), key).Err())
			require.NoError(t, client.RPush(t.Context(), key, "x").Err())
			before := dump(t, client)
			words, err := client.Eval(t.Context(), body, keys, args...).StringSlice()
			require.NoError(t, err, "%s: %s", s.path, kind)
			after := dump(t, client)
			if slices.Contains(strings.Fields(indifferent[s.path]), kind) {
				require.NotEqual(t, "corrupt", words[0], "%s: %s", s.path, kind)
				if !strings.Contains(s.path, "verify") && !strings.Contains(s.path, "acquire") {
					require.NotEqual(t, before["{r}:owner"], after["{r}:owner"], "%s: %s", s.path, kind)
				}
			} else {
				require.Equal(t, []string{"corrupt", key}, words[:2], "%s: %s", s.path, kind)
				require.True(t, maps.Equal(before, after), "%s: %s", s.path, kind)
			}
			require.NoError(t, client.FlushAll(t.Context()).Err())
		}
	}
}

// Each script is in the table.
func TestEveryScriptIsSampled(t *testing.T) {
	parts := []string{"owner.lua", "handover.lua", "holders.lua"}
	for _, dir := range []string{"lease/scripts", "lease/semaphore/scripts", "lease/once/scripts", "lease/admission/scripts"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", dir, "*.lua"))
		require.NoError(t, err)
		for _, file := range files {
			path := dir + "/" + filepath.Base(file)
			known := slices.ContainsFunc(samples, func(s sample) bool { return s.path == path })
			require.True(t, known || slices.Contains(parts, filepath.Base(file)), path)
		}
	}
}
