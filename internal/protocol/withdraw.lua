-- withdraw.lua: ends an acquisition whose caller has given up: it leaves the queue, and loses the lease if the
-- reply to the grant was lost. Lease id and call identify it; the caller does not know the token. A lease that another
-- call has asked for too, by the same id, stays. If the resource is free then, the first waiter that listens is
-- called, because the waiter that leaves may have been called already.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id   ARGV[2] call
-- ARGV[3] PUBLISH or SPUBLISH
--
-- Returns {'withdrawn'}  this call neither holds nor waits
--         {'corrupt', key, problem}  of the owner; if another key is wrong, the acquisition is ended all the same

expect(3, 3)
fields(1, 'owner', 'queue', 'alive')
local owner = KEYS[1]
local id, mine = uuid(ARGV[1], 'lease id'), name_of(ARGV[2], 'call')
local q = queue_of(KEYS[2], KEYS[3], ARGV[3])

local held, wrong = read_owner(owner)
if wrong then return wrong end
if held and held.id == id and lists(held.calls, mine) then
  local calls = remove_call(held.calls, mine)
  if calls then
    redis.call('SET', owner, id .. ':' .. held.token .. ':' .. calls, 'KEEPTTL')
  else
    redis.call('DEL', owner)
    held = nil
  end
end
leave(q, mine)
if not held then wake(q) end
return {'withdrawn'}
