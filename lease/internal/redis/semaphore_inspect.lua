-- semaphore_inspect.lua: who holds, for people. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] alive   KEYS[3] limit, if it was changed
-- ARGV[1] limit, > 0, unless it was changed
--
-- Returns {'inspected', limit, waiters, "<lease id>:<token>:<calls>", milliseconds left, ...}  the last two for each
--                     holder, the one whose time ends first in front
--         {'corrupt', key, problem}

expect(3, 1)
local owner, changed = KEYS[1], KEYS[3]
local q = {alive = KEYS[2], now = clock()}
local limit = digits(whole(ARGV[1], 1, 'limit'))
local wrong = mistyped(owner, 'zset') or mistyped(q.alive, 'hash') or mistyped(changed, 'string')
if wrong then return wrong end
local reply = {'inspected', redis.call('GET', changed) or limit, digits(waiters(q))}
for n, word in ipairs(redis.call('ZRANGEBYSCORE', owner, '(' .. digits(q.now), '+inf', 'WITHSCORES')) do
  reply[n + 3] = n % 2 == 1 and word or digits(math.ceil((tonumber(word) - q.now) / 1000))
end
return reply
