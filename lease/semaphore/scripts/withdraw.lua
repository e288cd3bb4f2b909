-- withdraw.lua: ends an acquisition whose caller has given up: out of the queue, and out of its place if the grant's reply was lost.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id   ARGV[2] call
-- ARGV[3] 'unsure' if a request of that call may still be under way, which shall do nothing; 'sure' if not
-- ARGV[4] PUBLISH or SPUBLISH   ARGV[5] channel   ARGV[6] listener
--
-- Returns {'withdrawn'}  this call neither holds nor waits
--         {'corrupt', key, problem}

local owner, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local id, call_id = ARGV[1], ARGV[2]
local now = clock()

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive)
if fault then return corrupt(fault) end
leave(queue, alive, id .. ':' .. call_id .. '@' .. ARGV[6])
local holder, token, calls = find(owner, id .. ':', '-inf')
if holder and string.find(calls, call_id, 1, true) then
  local left = remove_call(calls, call_id)
  if left then redis.call('ZADD', owner, redis.call('ZSCORE', owner, holder), id .. ':' .. token .. ':' .. left) end
  redis.call('ZREM', owner, holder)
end
if ARGV[3] == 'unsure' then forget_call(queue, call_id, now) end
-- The one that leaves may have been woken already; its turn passes on. If there is no place, the next one goes on waiting.
wake(queue, alive, now, ARGV[4], ARGV[5])
return {'withdrawn'}
