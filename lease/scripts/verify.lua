-- verify.lua: does this lease still stand? The lease is compared first, then the fence. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence
-- ARGV[1] lease id   ARGV[2] token
--
-- Returns {'current'}      it holds the resource and no newer token was issued
--         {'lost'}         it does not hold the resource
--         {'stale', last}  it holds the resource, but a newer token was issued or the fence was raised
--         {'corrupt', key, problem}

local owner, fence = KEYS[1], KEYS[2]
local id, token = ARGV[1], whole(ARGV[2], 1, 'token')

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
local last
last, fault = read_fence(fence)
if fault then return corrupt(fault) end

if not held or held.id ~= id or held.token ~= digits(token) then return {'lost'} end
if last > token then return {'stale', digits(last)} end
return {'current'}
