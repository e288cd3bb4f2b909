-- release.lua: gives the exact holder's place back and wakes the next waiter.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] call   ARGV[4] 'unsure' if a request of that call to acquire it may still be under way, which shall do nothing; 'sure' if not
-- ARGV[5] ttl   ARGV[6] fence retention, for leases that are handed over
-- ARGV[7] PUBLISH or SPUBLISH   ARGV[8] channel
--
-- Returns {'released'}  it was held and is free now
--         {'gone'}      its time ran out, or Redis lost it; no other holder was touched
--         {'revoked'}   it was revoked; no other holder was touched
--         {'corrupt', key, problem}

local owner, queue, alive, ended = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local name = ARGV[1] .. ':' .. ARGV[2] .. ':'
local now = clock()

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive) or mistyped(ended, 'zset')
if fault then return corrupt(fault) end
if ARGV[4] == 'unsure' then forget_call(queue, ARGV[3], now) end
local holder = find_living(owner, name, now)
if not holder then return lost(ended, name) end
redis.call('ZREM', owner, holder)
wake(queue, alive, now, ARGV[7], ARGV[8])
return {'released'}
