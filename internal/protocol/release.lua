-- release.lua: releases the exact lease and calls the first waiter that listens.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] PUBLISH or SPUBLISH
--
-- Returns {'released'}  the lease held its resource, which is free now
--         {'gone'}      nobody holds the resource: the lease expired, or its key was lost. Nothing was changed.
--         {'taken'}     another lease holds the resource. Nothing was changed.
--         {'revoked'}   this lease was revoked. Nothing was changed.
--         {'corrupt', key, problem}  of the owner; if another key is corrupt, the lease is released all the same

-- The common case, before the helpers as in acquire.lua: the lease holds, and there are no waiters. It reads as many
-- places as front_of, so that the rest of the script need not read them again.
local front = #KEYS == 4 and #ARGV == 3 and redis.pcall('ZRANGE', KEYS[2], 0, 8)
if front and not front.err and #front == 0 then
  local held, mine = redis.pcall('GET', KEYS[1]), ARGV[1] .. ':' .. ARGV[2] .. ':'
  if type(held) == 'string' and string.sub(held, 1, #mine) == mine then
    redis.call('DEL', KEYS[1])
    return {'released'}
  end
end

-- The helpers come here.

expect(4, 3)
fields(1, 'owner', 'queue', 'alive', 'ended')
local owner, ended = KEYS[1], KEYS[4]
local id, token = uuid(ARGV[1], 'lease id'), digits(whole(ARGV[2], 1, 'token'))
local q = queue_of(KEYS[2], KEYS[3], ARGV[3])

local held, wrong = read_owner(owner)
if wrong then return wrong end
if held and held.id == id and held.token == token then
  -- The first write. A server that refuses writes refuses it, so nothing was changed. A server without memory allows
  -- it, and after it the other writes of this script.
  redis.call('DEL', owner)
  if not front.err then q.front = front end
  wake(q)
  return {'released'}
end
if was_revoked(ended, id .. ':' .. token .. ':') then return {'revoked'} end
return {held and 'taken' or 'gone'}
