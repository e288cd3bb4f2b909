-- verify.lua: whether the lease still holds its resource. The lease is compared first, then the last token. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence
-- ARGV[1] lease id   ARGV[2] token
--
-- Returns {'current'}      it holds the resource and no newer token was issued
--         {'lost'}         it does not hold the resource
--         {'stale', last}  it holds the resource, but a newer token was issued or the last token was raised
--         {'corrupt', key, problem}

expect(2, 2)
fields(1, 'owner', 'fence')
local owner, fence = KEYS[1], KEYS[2]
local id, token = uuid(ARGV[1], 'lease id'), whole(ARGV[2], 1, 'token')

local held, wrong = read_owner(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
if wrong then return wrong end

if not held or held.id ~= id or held.token ~= digits(token) then return {'lost'} end
if last > token then return {'stale', digits(last)} end
return {'current'}
