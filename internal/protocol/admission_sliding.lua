-- admission_sliding.lua: admits a request if fewer than limit requests were admitted in the window that ends now.
--
-- KEYS[1] log, a sorted set: admitted requests by the time of their admission in microseconds
-- ARGV[1] limit, > 0
-- ARGV[2] window, milliseconds, > 0
-- ARGV[3] id of the request, a unique UUID
--
-- Returns {'admitted', count, milliseconds}  requests in the window with this one, and when the last of them leaves it
--         {'refused', count, milliseconds, milliseconds}  one more is admitted after the first time, the whole
--                                            limit after the second; nothing was counted
--         {'corrupt', key, problem}
--
-- The next request repairs a missing expiry. If Redis's clock was set back, entries have a time in the future; each is
-- set to the time now, so it counts for one window at most.

expect(1, 3)
local key = KEYS[1]
local limit = whole(ARGV[1], 1, 'limit')
local window = whole(ARGV[2], 1, 'window')
local id = uuid(ARGV[3], 'id of the request')

local wrong = mistyped(key, 'zset')
if wrong then return wrong end
local now = clock()

-- The log expires when its newest entry leaves the window. The expiry is reckoned from now, by which entries are dated:
-- PEXPIRE would reckon from when Redis began the script, which on a slow machine may be much earlier.
local function expire()
  redis.call('PEXPIREAT', key, digits(math.ceil(now / 1000) + window))
end

-- Removes only if there is something to remove: after its first write, Redis no longer refuses a script for lack of
-- memory, and a removal is allowed without memory.
local past = digits(now - window * 1000)
if redis.call('ZCOUNT', key, '-inf', past) > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', past) end
for _, early in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. digits(now), '+inf')) do
  redis.call('ZADD', key, digits(now), early)
end

local count = redis.call('ZCARD', key)
if count < limit then
  redis.call('ZADD', key, digits(now), id)
  expire()
  return {'admitted', digits(count + 1), digits(window)}
end
if redis.call('PTTL', key) < 0 then expire() end

-- Milliseconds until the entry of that rank leaves the window.
local function leaves(rank)
  local at = tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
  return digits(math.max(math.ceil((at - now) / 1000) + window, 1))
end

-- If the limit was lowered, several entries have to leave before a request is admitted.
return {'refused', digits(count), leaves(count - limit), leaves(-1)}
