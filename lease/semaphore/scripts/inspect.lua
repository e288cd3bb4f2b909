-- inspect.lua: who holds, for people. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] alive   KEYS[3] limit, if it was changed
-- ARGV[1] limit, unless it was changed
--
-- Returns {'inspected', limit, waiters, "<lease id>:<token>:<calls>", milliseconds left, ...}  the last two for each holder, the one
--                                                                                 whose time ends first in front
--         {'corrupt', key, problem}

local owner, alive, changed = KEYS[1], KEYS[2], KEYS[3]
for key, kind in pairs({[owner] = 'zset', [alive] = 'zset', [changed] = 'string'}) do
  local problem = mistyped(key, kind)
  if problem then return corrupt(key, problem) end
end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local reply = {'inspected', redis.call('GET', changed) or ARGV[1],
  digits(redis.call('ZCOUNT', alive, '(' .. digits(math.floor(now / 1000)), '+inf'))}
for n, word in ipairs(redis.call('ZRANGEBYSCORE', owner, '(' .. digits(now), '+inf', 'WITHSCORES')) do
  reply[n + 3] = n % 2 == 1 and word or digits(math.ceil((tonumber(word) - now) / 1000))
end
return reply
