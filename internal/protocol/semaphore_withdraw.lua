-- semaphore_withdraw.lua: ends an acquisition whose caller has given up: it leaves the queue, and loses its permit if
-- the reply to the grant was lost. A permit that another call has asked for too, by the same lease id, stays.
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

q.now = clock()
local all, wrong = living(owner, q.now)
if wrong then return wrong end
local holder, token, calls, till = find(all, id .. ':')
if holder and lists(calls, mine) then
  local left = remove_call(calls, mine)
  if left then redis.call('ZADD', owner, till, id .. ':' .. token .. ':' .. left) end
  redis.call('ZREM', owner, holder)
end
leave(q, mine)
-- The waiter that leaves may have been called already; then its turn passes on. If no permit is free, the next waiter goes on
-- waiting.
wake(q)
return {'withdrawn'}
