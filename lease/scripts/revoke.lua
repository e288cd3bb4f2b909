-- revoke.lua: ends whoever holds the resource and moves the fence on, so that the former holder is stale from now on. For operators,
-- and for supervisors that take over from a holder they believe dead.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] revocation id, new for each revocation
-- ARGV[2] the token to take over from, or 0 for whatever stands
-- ARGV[3] fence retention, milliseconds, > 0
-- ARGV[4] PUBLISH or SPUBLISH   ARGV[5] channel
--
-- Returns {'revoked', new token, lease id, token}  the fence is at the new token; the lease named has ended, by this revocation or
--                                                  by the one before; or nobody held the resource lately (lease id
--                                                  of zeros, token 0). Asking again with the same
--                                                  revocation id gives the same answer for a minute.
--         {'passed', last}  the token to take over from is not the newest any more: someone was faster. Nothing was changed.
--         {'exhausted'}     tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

local owner, fence, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local revocation, publish, channel = ARGV[1], ARGV[4], ARGV[5]
local from = whole(ARGV[2], 0, 'token')
local retention = whole(ARGV[3], 1, 'fence retention')
local MINUTE = 60000

local held, fault = read_owner_and_left(owner)
if fault then return corrupt(fault) end
local last
last, fault = read_fence(fence)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive) or mistyped(ended, 'string')
if fault then return corrupt(fault) end

local id, token, by, new = string.match(redis.call('GET', ended) or '', '^([%x%-]+):(%d+):([%x%-]+):(%d+)$')
if by == revocation then return {'revoked', new, id, token} end

if from > 0 and math.max(last, held and tonumber(held.token) or 0) > from then
  return {'passed', digits(last)}
end
local now = clock()
new = next_token(math.max(last, from), now)
if new > MAX_TOKEN then return {'exhausted'} end
-- With nobody holding, the holder that the revocation before this one has ended may still have to hear of it.
held = held or {id = id or '00000000-0000-0000-0000-000000000000', token = token or '0', left = 0}

redis.call('SET', fence, digits(new), 'PX', digits(retention))
redis.call('SET', ended, held.id .. ':' .. held.token .. ':' .. revocation .. ':' .. digits(new), 'PX', digits(math.max(held.left, MINUTE)))
redis.call('DEL', owner)
wake(queue, alive, now, publish, channel)
return {'revoked', digits(new), held.id, held.token}
