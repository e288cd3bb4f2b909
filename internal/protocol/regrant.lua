-- regrant.lua: gives the holder of a lease a new lease with a token above a floor; no other holder can get in between. For a lease that
-- lives in Redis but is refused by the data store, because Redis has lost its counter and its clock is behind.
--
-- KEYS[1] owner   KEYS[2] fence
-- ARGV[1] lease id   ARGV[2] token: the lease to be replaced
-- ARGV[3] new lease id   ARGV[4] call   ARGV[5] floor, a token
-- ARGV[6] ttl, milliseconds, > 0   ARGV[7] fence retention, milliseconds, > 0
--
-- Returns {'granted', token}  held by the new lease id for ttl from now; the old lease is gone. Asking again with the same new lease id
--                             gives the same token and a full ttl.
--         {'gone'}            nobody holds the resource. Nothing was changed.
--         {'taken'}           another lease holds the resource. Nothing was changed.
--         {'exhausted'}       tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

expect(2, 7)
local owner, fence = KEYS[1], KEYS[2]
local id, token = uuid(ARGV[1], 'lease id'), digits(whole(ARGV[2], 1, 'token'))
local new_id, mine = uuid(ARGV[3], 'new lease id'), name_of(ARGV[4], 'call')
local floor = whole(ARGV[5], 1, 'floor')
local ttl = whole(ARGV[6], 1, 'ttl')
local retention = whole(ARGV[7], 1, 'fence retention')

local held, wrong = read_owner(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
if wrong then return wrong end

if not held then return {'gone'} end
if held.id == new_id then
  redis.call('PEXPIRE', owner, digits(ttl))
  return {'granted', held.token}
end
if held.id ~= id or held.token ~= token then return {'taken'} end

local new = next_token(math.max(last, floor), clock())
if new > MAX_WHOLE then return {'exhausted'} end
grant(owner, fence, new_id, new, mine, ttl, retention)
return {'granted', digits(new)}
