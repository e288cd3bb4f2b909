-- release.lua: gives the exact lease back and wakes the next waiter.
--
-- KEYS[1] owner   KEYS[2] queue   KEYS[3] alive   KEYS[4] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] PUBLISH or SPUBLISH   ARGV[4] channel
--
-- Returns {'released'}  it was held and is free now
--         {'gone'}      nobody holds the resource: the lease ran out, or its key was lost. Nothing was changed.
--         {'taken'}     another lease holds the resource. Nothing was changed.
--         {'revoked'}   this lease was revoked. Nothing was changed.
--         {'corrupt', key, problem}

local owner, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, token, publish, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive) or mistyped(ended, 'string')
if fault then return corrupt(fault) end

if held and held.id == id and held.token == token then
  redis.call('DEL', owner)
  wake(queue, alive, clock(), publish, channel)
  return {'released'}
end
if was_revoked(ended, id, token) then return {'revoked'} end
if held then return {'taken'} end
return {'gone'}
