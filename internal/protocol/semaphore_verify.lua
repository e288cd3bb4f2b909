-- semaphore_verify.lua: whether the exact holder still holds. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence, of leases only: a newer token is no news where several hold
-- ARGV[1] lease id   ARGV[2] token
--
-- Returns {'current'} or {'lost'}
--         {'corrupt', key, problem}

expect(2, 2)
fields(1, 'owner', 'fence')
local name = uuid(ARGV[1], 'lease id') .. ':' .. digits(whole(ARGV[2], 1, 'token')) .. ':'
local all, wrong = living(KEYS[1], clock())
if wrong then return wrong end
return {find(all, name) and 'current' or 'lost'}
