-- revoke.lua: ends the lease on the resource and issues a new last token, so the former holder is stale from now on. It
-- calls the first waiter that listens, as a release does. For operators, and for supervisors that take over from a
-- holder that seems dead.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] revocation id, new for each revocation
-- ARGV[2] the token to take over from: refused if a later one was issued; 0: no condition
-- ARGV[3] fence retention, milliseconds, > 0
-- ARGV[4] PUBLISH or SPUBLISH
--
-- Returns {'revoked', new token, lease id, token}  the new token is the last token. This revocation ended the lease
--                     with that id and token; if nobody held the resource, the id has only zeros, and the token is 0.
--                     The same request again, within a minute, gives the same answer and changes nothing.
--         {'passed', last}  the token to take over from is no longer the last: another was faster. Nothing was changed.
--         {'exhausted'}     tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

expect(5, 4)
fields(1, 'owner', 'fence', 'queue', 'alive', 'ended')
local owner, fence, ended = KEYS[1], KEYS[2], KEYS[5]
local revocation = uuid(ARGV[1], 'revocation id')
local from = whole(ARGV[2], 0, 'token')
local retention = whole(ARGV[3], 1, 'fence retention')
local q = queue_of(KEYS[3], KEYS[4], ARGV[4])

local held, wrong = read_owner_and_left(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
wrong = wrong or queue_fault(q) or mistyped(ended, 'zset')
if wrong then return wrong end

for _, entry in ipairs(redis.call('ZRANGE', ended, 0, -1)) do
  local id, token, by, new = string.match(entry, '^([%x%-]+):(%d+):([%x%-]+):(%d+)$')
  if by == revocation then return {'revoked', new, id, token} end
end
held = held or {id = '00000000-0000-0000-0000-000000000000', token = '0', left = 0}
if from > 0 and math.max(last, tonumber(held.token)) > from then return {'passed', digits(last)} end
q.now = clock()
local new = next_token(math.max(last, from, tonumber(held.token)), q.now) -- fence may be evicted
if new > MAX_WHOLE then return {'exhausted'} end

redis.call('SET', fence, digits(new), 'PX', digits(retention))
note_revoked(ended, table.concat({held.id, held.token, revocation, digits(new)}, ':'), new, held.left)
redis.call('DEL', owner)
wake(q)
return {'revoked', digits(new), held.id, held.token}
