-- revoke.lua: ends one holder and wakes the next waiter. For operators, and for supervisors that believe a holder dead.
--
-- KEYS[1] owner   KEYS[2] ended   KEYS[3] queue
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH   ARGV[3] channel
--
-- Returns {'revoked'}  it held, or this was asked before; it holds no more
--         {'gone'}     it does not hold. Nothing was changed.
--         {'corrupt', key, problem}

local owner, ended, queue = KEYS[1], KEYS[2], KEYS[3]
local MINUTE = 60000

for _, key in ipairs(KEYS) do
  local problem = mistyped(key, 'zset')
  if problem then return corrupt(key, problem) end
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])

local holder = find_living(owner, ARGV[1] .. ':', now)
if not holder then
  if find(ended, ARGV[1] .. ':', '-inf') then return {'revoked'} end
  return {'gone'}
end
local left = redis.call('PTTL', owner)
redis.call('ZREM', owner, holder)
-- For the holder to find. It looks before its time would have been over.
redis.call('ZADD', ended, digits(now), holder)
redis.call('ZREMRANGEBYSCORE', ended, '-inf', digits(now - 1000 * math.max(left, MINUTE)))
redis.call('PEXPIRE', ended, digits(math.max(left, MINUTE)))
tell_first(queue, ARGV[2], ARGV[3])
return {'revoked'}
