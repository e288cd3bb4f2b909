-- semaphore_withdraw.lua: ends an acquisition whose caller has given up: it leaves the queue, and loses its permit if
-- the reply to the grant was lost.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH
--
-- Returns {'withdrawn'}  this lease id neither holds nor waits
--         {'corrupt', key, problem}  of the owner; if another key is wrong, the acquisition is ended all the same

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
-- The waiter that leaves may have been called already; then its turn passes on. If no permit is free, the next waiter goes on
-- waiting.
wake(q)
return {'withdrawn'}
