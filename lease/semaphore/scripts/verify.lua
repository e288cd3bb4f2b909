-- verify.lua: whether the exact holder still holds. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence, of leases only: a newer token is no news where several hold
-- ARGV[1] lease id   ARGV[2] token
--
-- Returns {'current'} or {'lost'}
--         {'corrupt', key, problem}

local fault = mistyped(KEYS[1], 'zset')
if fault then return corrupt(fault) end
if find_living(KEYS[1], ARGV[1] .. ':' .. ARGV[2] .. ':', clock()) then return {'current'} end
return {'lost'}
