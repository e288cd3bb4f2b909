-- raise.lua: lifts the last token to at least a floor, when the data store has seen a higher one. A holder keeps its
-- lease, but is stale if the last token has risen above its own.
--
-- KEYS[1] fence
-- ARGV[1] floor, a token   ARGV[2] fence retention, milliseconds, > 0
--
-- Returns {'raised', last}  the last token, at or above the floor; the next token is greater
--         {'corrupt', key, problem}

expect(1, 2)
local fence = KEYS[1]
local floor = whole(ARGV[1], 1, 'floor')
local retention = whole(ARGV[2], 1, 'fence retention')

local last, wrong = read_fence(fence)
if wrong then return wrong end
last = math.max(last, floor)
redis.call('SET', fence, digits(last), 'PX', digits(retention))
return {'raised', digits(last)}
