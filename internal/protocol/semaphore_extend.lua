-- semaphore_extend.lua: gives the exact permit a new TTL. Never creates a permit.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, >= ttl
--
-- Returns {'extended'}  held for ttl from now
--         {'gone'}      the permit expired, or Redis lost it
--         {'revoked'}   the permit was revoked
--         {'corrupt', key, problem}  of the owner; a corrupt key of another field does not keep a holder from renewing

expect(3, 4)
fields(1, 'owner', 'fence', 'ended')
local owner, fence, ended = KEYS[1], KEYS[2], KEYS[3]
local name = uuid(ARGV[1], 'lease id') .. ':' .. digits(whole(ARGV[2], 1, 'token')) .. ':'
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = retention_of(ARGV[4], ttl)

local now = clock()
local all, wrong = living(owner, now)
if wrong then return wrong end
local holder = find(all, name)
if not holder then return {was_revoked(ended, name) and 'revoked' or 'gone'} end
redis.call('PEXPIRE', fence, digits(retention))
hold(owner, holder, now, ttl)
return {'extended'}
