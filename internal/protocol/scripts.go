// Package protocol is the protocol of leases, semaphores, once and admission: the names of keys,
// the Lua scripts, one request to Redis and its answer.
//
// One set of rules holds for all scripts. A script is sent by its digest, and in full to a server
// that does not know it. The client library never sends a script again by itself. A request returns
// when its answer is there or its context ends. All replies have one form, and each way to fail has
// one error. The callers decide what to do after a failure; only Ask and Insist make several
// attempts.
//
// Package lease exports and documents the errors. They are declared here because once and admission
// need them too.
package protocol

import (
	"embed"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// The scripts are the protocol; the docs and clients in other languages read these same files.
//
//go:embed *.lua
var lua embed.FS

// Holding are the scripts by which a caller gets, keeps and returns a lease or a permit. Those of
// leases and of semaphores take the same KEYS and ARGV and give the same answers, with two
// exceptions: Acquire of a semaphore also takes the limit, and its Inspect reads other keys and
// lists the holders.
type Holding struct {
	Acquire, Extend, Release, Withdraw, Inspect Script
}

// All scripts.
var (
	LeaseHolding = Holding{lease("acquire"), lease("extend"), lease("release"), lease("withdraw"), lease("inspect")}
	Revoke       = lease("revoke")
	Raise        = lease("raise")

	SemaphoreHolding = Holding{semaphore("acquire"), semaphore("extend"), semaphore("release"), semaphore("withdraw"), semaphore("inspect")}
	SemaphoreRevoke  = semaphore("revoke")

	OnceLook   = lease("once_look") // it also reads the lease that claims the key
	OnceRecord = load("once_record")
	OnceForget = load("once_forget")

	AdmissionFixed   = load("admission_fixed")
	AdmissionSliding = load("admission_sliding")
)

var eval = lease("eval")

// Eval is the script that runs a script of the caller under a lease. This process keeps it, as
// Redis does.
func Eval(script string) Script {
	known, ok := evals.Load(script)
	if !ok {
		known, _ = evals.LoadOrStore(script, NewScript(eval.Name, "local function script(KEYS, ARGV)\n"+script+"\nend\n"+eval.Source))
	}
	return known.(Script)
}

var evals sync.Map // of Script, by the text of the caller's script

func lease(name string) Script     { return load(name, "holder") }
func semaphore(name string) Script { return load("semaphore_"+name, "holders") }

// afterCommonCase is the line of a script after its common case.
const afterCommonCase = "-- The helpers come here.\n"

// load puts common.lua and the other helpers that a script uses before it, or after its common
// case, which uses none.
func load(name string, helpers ...string) Script {
	common, rest, found := strings.Cut(text(name), afterCommonCase)
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
		panic(err) // a name above is wrong; no program would start
	}
	return string(text) + "\n"
}

// Script is one Lua script.
type Script struct {
	Name   string
	Source string
	digest any // a string
}

// NewScript makes a script of its complete source.
func NewScript(name, source string) Script {
	return Script{Name: name, Source: source, digest: redis.NewScript(source).Hash()}
}
