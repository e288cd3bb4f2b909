-- semaphore_withdraw.lua: ends an acquisition whose caller has given up. The acquisition leaves the queue, and gives
-- back its permit if it was granted one and the reply was lost.
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

q.now = clock()
local all, wrong = living(owner, q.now)
if wrong then return wrong end
local holder = find(all, id .. ':')
if holder then redis.call('ZREM', owner, holder) end
leave(q, id)
-- The waiter that leaves may have been called already; its turn passes to the next waiter. If no permit is free, that
-- waiter goes on waiting.
wake(q)
return {'withdrawn'}
