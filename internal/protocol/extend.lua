-- extend.lua: gives the exact lease a new TTL. Never creates a key.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, >= ttl: the last token must outlive the lease
--
-- Returns {'extended'}  held for ttl from now
--         {'gone'}      nobody holds the resource: the lease expired, or its key was lost
--         {'taken'}     another lease holds the resource
--         {'revoked'}   this lease was revoked
--         {'corrupt', key, problem}  of the owner; a corrupt key of another field does not keep a holder from renewing

-- The common case, before the helpers as in acquire.lua: the lease holds. If it does not, the full script finds out
-- why.
if #KEYS == 3 and #ARGV == 4 then
  local held, mine = redis.pcall('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2] .. ':'
  if type(held) == 'string' and string.sub(held, 1, #mine) == mine then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    if redis.call('PEXPIRE', KEYS[2], ARGV[4]) == 0 then -- evicted; without memory, only the lease is extended
      redis.pcall('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
    end
    return {'extended'}
  end
end

-- The helpers come here.

expect(3, 4)
fields(1, 'owner', 'fence', 'ended')
local owner, ended = KEYS[1], KEYS[3]
local id, token = uuid(ARGV[1], 'lease id'), digits(whole(ARGV[2], 1, 'token'))
retention_of(ARGV[4], whole(ARGV[3], 1, 'ttl'))

local held, wrong = read_owner(owner)
if wrong then return wrong end
if was_revoked(ended, id .. ':' .. token .. ':') then return {'revoked'} end
return {held and 'taken' or 'gone'}
