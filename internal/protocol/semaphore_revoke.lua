-- semaphore_revoke.lua: ends one permit and calls the first waiter that listens. For operators, and for supervisors of
-- a holder that seems dead.
--
-- KEYS[1] owner   KEYS[2] ended   KEYS[3] queue   KEYS[4] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH
--
-- Returns {'revoked'}  the permit with this lease id is over: by this request, or by one before it
--         {'gone'}     no permit has this lease id. Nothing was changed.
--         {'corrupt', key, problem}

expect(4, 2)
fields(1, 'owner', 'ended', 'queue', 'alive')
local owner, ended = KEYS[1], KEYS[2]
local name = uuid(ARGV[1], 'lease id') .. ':'
local q = queue_of(KEYS[3], KEYS[4], ARGV[2])

q.now = clock()
local all, wrong = living(owner, q.now)
wrong = wrong or mistyped(ended, 'zset') or queue_fault(q)
if wrong then return wrong end
local holder = find(all, name)
if not holder then return {was_revoked(ended, name) and 'revoked' or 'gone'} end
local left = redis.call('PTTL', owner)
redis.call('ZREM', owner, holder) -- first, as in release.lua
note_revoked(ended, holder, q.now, left)
wake(q)
return {'revoked'}
