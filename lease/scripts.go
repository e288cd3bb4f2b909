package lease

import (
	_ "embed"

	"github.com/fencedb/fencedb/lease/internal/script"
)

// The scripts are the protocol; docs and clients in other languages read the same files.
var (
	//go:embed scripts/common.lua
	commonLua string
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

var (
	acquireScript  = newScript("acquire", acquireLua)
	extendScript   = newScript("extend", extendLua)
	releaseScript  = newScript("release", releaseLua)
	withdrawScript = newScript("withdraw", withdrawLua)
	verifyScript   = newScript("verify", verifyLua)
	revokeScript   = newScript("revoke", revokeLua)
	raiseScript    = newScript("raise", raiseLua)
	regrantScript  = newScript("regrant", regrantLua)
	confirmScript  = newScript("confirm", confirmLua)
	inspectScript  = newScript("inspect", inspectLua)
)

func newScript(name, source string) script.Script { return script.New(name, commonLua, source) }
