-- release.lua: releases the exact lease and calls the first waiter that listens.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] call   ARGV[4] 'unsure' if a request of that call may be under way, which shall do nothing; 'sure' if not
-- ARGV[5] PUBLISH or SPUBLISH   ARGV[6] channel
--
-- Returns {'released'}  it was held, and is free now
--         {'gone'}      it expired, or its key was lost. No other holder was touched.
--         {'taken'}     another lease holds the resource. Nothing was changed.
--         {'revoked'}   this lease was revoked. No other holder was touched.
--         A late request of the same call may have got a new lease since, under which nobody works. If 'unsure', that is
--         ended too; the answer is 'gone' or 'revoked'.
--         {'corrupt', key, problem}  of the owner; if another key is wrong, the lease is released all the same

-- The common case, before the helpers as in acquire.lua: this call alone holds it, and nobody waits.
if #KEYS == 4 and #ARGV == 6 and ARGV[4] == 'sure' and redis.call('EXISTS', KEYS[2]) == 0
  and redis.pcall('GET', KEYS[1]) == ARGV[1] .. ':' .. ARGV[2] .. ':' .. ARGV[3] then
  redis.call('DEL', KEYS[1])
  return {'released'}
end

-- The helpers come here.

expect(4, 6)
fields(1, 'owner', 'queue', 'alive', 'ended')
local owner, ended = KEYS[1], KEYS[4]
local id, token = uuid(ARGV[1], 'lease id'), digits(whole(ARGV[2], 1, 'token'))
local mine = name_of(ARGV[3], 'call')
local unsure = is_unsure(ARGV[4])
local q = queue_of(KEYS[2], KEYS[3], ARGV[5], ARGV[6])

local held, wrong = read_owner(owner)
if wrong then return wrong end
local exact = held and held.id == id and held.token == token
local late = not exact and unsure and held and held.id == id and held.calls == mine
if exact or late then
  redis.call('DEL', owner) -- first: a server that refuses writes refuses here; without memory it allows the others after this one
end
if unsure then
  q.now = clock()
  forget_call(q, mine)
end
if exact or late then wake(q) end
if exact then return {'released'} end
if was_revoked(ended, id, token) then return {'revoked'} end
return {held and not late and 'taken' or 'gone'}
