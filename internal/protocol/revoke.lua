-- revoke.lua: ends the holder of the resource and issues a new last token, so the former holder is stale from now on.
-- For operators, and for supervisors that take over from a holder that they take for dead. The first waiter that
-- listens is called, as by a release.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] revocation id, new for each revocation
-- ARGV[2] the token to take over from, or 0 for whatever stands
-- ARGV[3] fence retention, milliseconds, > 0
-- ARGV[4] PUBLISH or SPUBLISH   ARGV[5] channel
--
-- Returns {'revoked', new token, lease id, token}  the new token is the last token; this revocation ended the
--                     lease named, or nobody held the resource (lease id of zeros, token 0). Asking again with the
--                     same revocation id gives the same answer for a minute.
--         {'passed', last}  the token to take over from is not the last any more: another was faster. Nothing was changed.
--         {'exhausted'}     tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

expect(5, 5)
fields(1, 'owner', 'fence', 'queue', 'alive', 'ended')
local owner, fence, ended = KEYS[1], KEYS[2], KEYS[5]
local revocation = uuid(ARGV[1], 'revocation id')
local from = whole(ARGV[2], 0, 'token')
local retention = whole(ARGV[3], 1, 'fence retention')
local q = queue_of(KEYS[3], KEYS[4], ARGV[4], ARGV[5])
local MINUTE = 60000
local NOBODY = '00000000-0000-0000-0000-000000000000'

local held, wrong = read_owner_and_left(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
wrong = wrong or queue_fault(q) or mistyped(ended, 'string')
if wrong then return wrong end

local id, token, by, new, ends = string.match(redis.call('GET', ended) or '', '^([%x%-]+):(%d+):([%x%-]+):(%d+):(%d)$')
if by == revocation then
  if ends == '0' then return {'revoked', new, NOBODY, '0'} end
  return {'revoked', new, id, token}
end
q.now = clock()
if is_over(q, revocation) or from > 0 and math.max(last, held and tonumber(held.token) or 0) > from then
  return {'passed', digits(last)}
end
new = next_token(math.max(last, from), q.now)
if new > MAX_WHOLE then return {'exhausted'} end

redis.call('SET', fence, digits(new), 'PX', digits(retention))
-- If nobody holds, the holder that the previous revocation has ended may still have to learn of it.
redis.call('SET', ended, table.concat({held and held.id or id or NOBODY, held and held.token or token or '0', revocation, digits(new), held and 1 or 0}, ':'),
  'PX', digits(math.max(held and held.left or 0, redis.call('PTTL', ended), MINUTE)))
redis.call('DEL', owner)
forget_call(q, revocation)
wake(q)
return {'revoked', digits(new), held and held.id or NOBODY, held and held.token or '0'}
