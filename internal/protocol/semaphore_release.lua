-- semaphore_release.lua: releases the exact holder's permit and calls the first waiter that listens.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] call   ARGV[4] 'unsure' if a request of that call may be under way, which shall do nothing; 'sure' if not
-- ARGV[5] PUBLISH or SPUBLISH   ARGV[6] channel
--
-- Returns {'released'}  it was held and is free now
--         {'gone'}      its time ran out, or Redis lost it; no other holder was touched
--         {'revoked'}   it was revoked; no other holder was touched
--         What a late request of the same call has got since is ended too, if 'unsure', as in release.lua.
--         {'corrupt', key, problem}  of the owner; if another key is wrong, the permit is released all the same

expect(4, 6)
fields(1, 'owner', 'queue', 'alive', 'ended')
local owner, ended = KEYS[1], KEYS[4]
local id = uuid(ARGV[1], 'lease id')
local name = id .. ':' .. digits(whole(ARGV[2], 1, 'token')) .. ':'
local mine = name_of(ARGV[3], 'call')
local unsure = is_unsure(ARGV[4])
local q = queue_of(KEYS[2], KEYS[3], ARGV[5], ARGV[6])

local wrong = mistyped(owner, 'zset')
if wrong then return wrong end
q.now = clock()
local holder = find_living(owner, name, q.now)
local ends = holder
if not holder and unsure then
  local late, _, calls = find_living(owner, id .. ':', q.now)
  if calls == mine then ends = late end
end
if ends then redis.call('ZREM', owner, ends) end
if unsure then forget_call(q, mine) end
if ends then wake(q) end
if not holder then return lost(ended, name) end
return {'released'}
