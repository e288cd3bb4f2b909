-- withdraw.lua: ends an acquisition whose caller has given up: out of the queue, and out of the lease if the grant's reply was lost.
-- The lease id alone identifies it: it belongs to this one acquisition, and the token is not known to the caller.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH   ARGV[3] channel   ARGV[4] listener
--
-- Returns {'withdrawn'}  this lease id neither holds nor waits
--         {'corrupt', key, problem}

local owner, queue, alive = KEYS[1], KEYS[2], KEYS[3]
local id, publish, channel, listener = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive)
if fault then return corrupt(fault) end

leave(queue, alive, id .. '@' .. listener)
if held and held.id == id then
  redis.call('DEL', owner)
  held = nil
end
-- The one that leaves may have been woken already; its turn passes on.
if not held then wake(queue, alive, clock(), publish, channel) end
return {'withdrawn'}
