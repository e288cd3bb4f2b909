// Package protocol is the protocol of leases and of the blocks beside them: the names of keys, the
// Lua scripts, one request to Redis and its answer.
//
// Scripts run by one set of rules: they are sent by digest, and in full to a server that does not
// know them; the client library never sends one again by itself; a request returns when its answer
// is there or its context ends; all replies have one form; and each way to fail has one error. What
// to do after a failure is not decided here, except by Ask and Insist, which make attempts.
//
// The errors are those of package lease, which exports and documents them. They are declared here
// because once and admission need them too.
package protocol

import (
	"embed"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// The scripts are the protocol; docs and clients in other languages read the same files.
//
//go:embed *.lua
var lua embed.FS

// Holding are the scripts by which a caller gets, keeps and returns a lease or a permit. Both kinds
// take the same KEYS and ARGV and give the same answers, except that Acquire of a semaphore also
// takes the limit, and Inspect lists its holders.
type Holding struct {
	Acquire, Extend, Release, Withdraw, Inspect Script
}

// All scripts, by what they serve.
var (
	LeaseHolding = Holding{lease("acquire"), lease("extend"), lease("release"), lease("withdraw"), lease("inspect")}
	Revoke       = lease("revoke")
	Raise        = lease("raise")

	SemaphoreHolding = Holding{semaphore("acquire"), semaphore("extend"), semaphore("release"), semaphore("withdraw"), semaphore("inspect")}
	SemaphoreRevoke  = semaphore("revoke")

	OnceLook   = lease("once_look") // at the lease on its key
	OnceRecord = load("once_record")
	OnceForget = load("once_forget")

	AdmissionFixed   = load("admission_fixed")
	AdmissionSliding = load("admission_sliding")
)

var eval = lease("eval")

// Eval is the script that runs another one under a lease. It is kept, as Redis keeps it.
func Eval(script string) Script {
	known, ok := evals.Load(script)
	if !ok {
		known, _ = evals.LoadOrStore(script, NewScript(eval.Name, "local function script(KEYS, ARGV)\n"+script+"\nend\n"+eval.Source))
	}
	return known.(Script)
}

var evals sync.Map // of Script, by the text of the inner one

func lease(name string) Script     { return load(name, "holder") }
func semaphore(name string) Script { return load("semaphore_"+name, "holders") }

// behindCommonCase is the line of a script before which its common case ends.
const behindCommonCase = "-- The helpers come here.\n"

// load puts common.lua and the other helpers that a script uses in front of it, or behind its
// common case, which needs none.
func load(name string, helpers ...string) Script {
	common, rest, found := strings.Cut(text(name), behindCommonCase)
	if !found {
		common, rest = "", common
	}
	source := common + text("common")
	for _, file := range helpers {
		source += text(file)
	}
	return NewScript(name, source+rest)
}

func text(file string) string {
	text, err := lua.ReadFile(file + ".lua")
	if err != nil {
		panic(err) // a name above is wrong; no program starts with that
	}
	return string(text) + "\n"
}

// Script is one Lua script.
type Script struct {
	Name   string
	Source string
	digest any // a string
}

// NewScript makes a script of a whole source.
func NewScript(name, source string) Script {
	return Script{Name: name, Source: source, digest: redis.NewScript(source).Hash()}
}
