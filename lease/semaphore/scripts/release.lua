-- release.lua: gives the exact holder's place back and wakes the next waiter.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] lease id   ARGV[2] token   ARGV[3] ttl   ARGV[4] fence retention, for leases that are handed over
-- ARGV[5] PUBLISH or SPUBLISH   ARGV[6] channel
--
-- Returns {'released'}  it was held and is free now
--         {'gone'}      its time ran out, or Redis lost it; no other holder was touched
--         {'revoked'}   it was revoked; no other holder was touched
--         {'corrupt', key, problem}

local owner, queue, alive, ended = KEYS[1], KEYS[3], KEYS[4], KEYS[5]
local holder = ARGV[1] .. ':' .. ARGV[2]
local now = clock()

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive) or mistyped(ended, 'zset')
if fault then return corrupt(fault) end
if not holds(owner, holder, now) then return lost(ended, holder) end
redis.call('ZREM', owner, holder)
wake(queue, alive, now, ARGV[5], ARGV[6])
return {'released'}
