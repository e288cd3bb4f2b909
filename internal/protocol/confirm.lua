-- confirm.lua: the second half of a grant by a majority. Each member has issued a token of its own. The greatest of them
-- becomes the token of the lease on all members, and no member issues a smaller or equal token afterwards.
--
-- KEYS[1] owner   KEYS[2] fence
-- ARGV[1] lease id   ARGV[2] the greatest token
-- ARGV[3] ttl, milliseconds, > 0   ARGV[4] fence retention, milliseconds, > 0
--
-- Returns {'confirmed'}  held by this lease id with this token for ttl from now
--         {'gone'}       nobody holds the resource here. Nothing was changed.
--         {'taken'}      another lease holds the resource here. Nothing was changed.
--         {'corrupt', key, problem}

expect(2, 4)
local owner, fence = KEYS[1], KEYS[2]
local id, token = uuid(ARGV[1], 'lease id'), whole(ARGV[2], 1, 'token')
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = whole(ARGV[4], 1, 'fence retention')

local held, wrong = read_owner(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
if wrong then return wrong end

if not held then return {'gone'} end
if held.id ~= id then return {'taken'} end
redis.call('SET', fence, digits(math.max(last, token)), 'PX', digits(retention))
redis.call('SET', owner, id .. ':' .. digits(token) .. ':' .. held.calls, 'PX', digits(ttl))
return {'confirmed'}
