-- semaphore_release.lua: releases the exact holder's permit and calls the first waiter that listens.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] PUBLISH or SPUBLISH
--
-- Returns {'released'}  the permit was held, and is free now
--         {'gone'}      the permit expired, or Redis lost it; nothing was changed
--         {'revoked'}   the permit was revoked; nothing was changed
--         {'corrupt', key, problem}  of the owner; if another key is corrupt, the permit is released all the same

expect(4, 3)
fields(1, 'owner', 'queue', 'alive', 'ended')
local owner, ended = KEYS[1], KEYS[4]
local name = uuid(ARGV[1], 'lease id') .. ':' .. digits(whole(ARGV[2], 1, 'token')) .. ':'
local q = queue_of(KEYS[2], KEYS[3], ARGV[3])

q.now = clock()
local all, wrong = living(owner, q.now)
if wrong then return wrong end
local holder = find(all, name)
if not holder then return {was_revoked(ended, name) and 'revoked' or 'gone'} end
redis.call('ZREM', owner, holder)
wake(q)
return {'released'}
