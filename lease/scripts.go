package lease

import (
	_ "embed"

	"github.com/fencedb/fencedb/lease/internal/script"
)

// The scripts are the protocol; docs and clients in other languages read the same files.
var (
	//go:embed scripts/owner.lua
	ownerLua string
	//go:embed scripts/handover.lua
	handoverLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/extend.lua
	extendLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/withdraw.lua
	withdrawLua string
	//go:embed scripts/verify.lua
	verifyLua string
	//go:embed scripts/revoke.lua
	revokeLua string
	//go:embed scripts/raise.lua
	raiseLua string
	//go:embed scripts/regrant.lua
	regrantLua string
	//go:embed scripts/confirm.lua
	confirmLua string
	//go:embed scripts/inspect.lua
	inspectLua string
)

// Each has in front of it what it uses.
var (
	acquireScript  = script.New("acquire", script.Common, script.Holder, script.Queue, ownerLua, acquireLua)
	extendScript   = script.New("extend", script.Common, script.Holder, ownerLua, extendLua)
	releaseScript  = script.New("release", script.Common, script.Holder, script.Queue, ownerLua, handoverLua, releaseLua)
	withdrawScript = script.New("withdraw", script.Common, script.Holder, script.Queue, ownerLua, handoverLua, withdrawLua)
	verifyScript   = script.New("verify", script.Common, script.Holder, ownerLua, verifyLua)
	revokeScript   = script.New("revoke", script.Common, script.Holder, script.Queue, ownerLua, handoverLua, revokeLua)
	raiseScript    = script.New("raise", script.Common, script.Holder, raiseLua)
	regrantScript  = script.New("regrant", script.Common, script.Holder, ownerLua, regrantLua)
	confirmScript  = script.New("confirm", script.Common, script.Holder, ownerLua, confirmLua)
	inspectScript  = script.New("inspect", script.Common, script.Holder, script.Queue, ownerLua, inspectLua)
)
