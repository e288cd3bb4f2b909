-- withdraw.lua: ends an acquisition whose caller has given up. The acquisition leaves the queue, and gives back its
-- lease if it was granted one and the reply was lost. The lease id identifies it, because the caller does not know the
-- token. If the resource is free then, the first waiter that listens is called: the waiter that leaves may have had the
-- turn.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH
--
-- Returns {'withdrawn'}  this lease id neither holds nor waits
--         {'corrupt', key, problem}  of the owner; if another key is corrupt, the acquisition is ended all the same

expect(3, 2)
fields(1, 'owner', 'queue', 'alive')
local owner = KEYS[1]
local id = uuid(ARGV[1], 'lease id')
local q = queue_of(KEYS[2], KEYS[3], ARGV[2])

local held, wrong = read_owner(owner)
if wrong then return wrong end
if held and held.id == id then
  redis.call('DEL', owner)
  held = nil
end
leave(q, id)
if not held then wake(q) end
return {'withdrawn'}
