-- withdraw.lua: ends an acquisition whose caller has given up: out of the queue, and out of its place if the grant's reply was lost.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH   ARGV[3] channel   ARGV[4] listener
--
-- Returns {'withdrawn'}  this lease id neither holds nor waits
--         {'corrupt', key, problem}

local owner, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive)
if fault then return corrupt(fault) end
leave(queue, alive, id .. '@' .. ARGV[4])
local holder = find(owner, id)
if holder then redis.call('ZREM', owner, holder) end
-- The one that leaves may have been woken already; its turn passes on. If there is no place, the next one goes on waiting.
wake(queue, alive, clock(), ARGV[2], ARGV[3])
return {'withdrawn'}
