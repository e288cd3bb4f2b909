-- withdraw.lua: ends an acquisition whose caller has given up: out of the queue, and out of the lease if the grant's reply was lost.
-- Lease id and call identify it; the token is not known to the caller. A lease that another call has asked for as well, by the same id,
-- stays.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id   ARGV[2] call
-- ARGV[3] 'unsure' if a request of that call may still be under way, which shall do nothing; 'sure' if not
-- ARGV[4] PUBLISH or SPUBLISH   ARGV[5] channel   ARGV[6] listener
--
-- Returns {'withdrawn'}  this call neither holds nor waits
--         {'corrupt', key, problem}

local owner, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local id, call_id, publish, channel = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
local now = clock()

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive)
if fault then return corrupt(fault) end

leave(queue, alive, id .. ':' .. call_id .. '@' .. ARGV[6])
if held and held.id == id and string.find(held.calls, call_id, 1, true) then
  local calls = remove_call(held.calls, call_id)
  if calls then
    redis.call('SET', owner, id .. ':' .. held.token .. ':' .. calls, 'KEEPTTL')
  else
    redis.call('DEL', owner)
    held = nil
  end
end
if ARGV[3] == 'unsure' then forget_call(queue, call_id, now) end
-- The one that leaves may have been woken already; its turn passes on.
if not held then wake(queue, alive, now, publish, channel) end
return {'withdrawn'}
