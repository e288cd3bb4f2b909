-- release.lua: gives the exact holder's place back and wakes the next waiter.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended, of leases only
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] PUBLISH or SPUBLISH   ARGV[4] channel
--
-- Returns {'released'}  it was held and is free now
--         {'gone'}      its time ran out, or Redis lost it; no other holder was touched
--         {'corrupt', key, problem}

local owner, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local holder = ARGV[1] .. ':' .. ARGV[2]
local now = clock()

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive)
if fault then return corrupt(fault) end
if not holds(owner, holder, now) then return {'gone'} end
redis.call('ZREM', owner, holder)
wake(queue, alive, now, ARGV[3], ARGV[4])
return {'released'}
