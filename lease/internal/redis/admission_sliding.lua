-- admission_sliding.lua: admits a request if fewer than limit were admitted in the window that ends now, wherever that begins.
--
-- KEYS[1] log, a sorted set: admitted requests by the time of their admission in microseconds
-- ARGV[1] limit, > 0
-- ARGV[2] window, milliseconds, > 0
-- ARGV[3] id of the request, a UUID of which there is no second
--
-- Returns {'admitted', count, milliseconds}  requests in the window with this one, and after how long there will be none
--         {'refused', count, milliseconds, milliseconds}  a place comes free after the first time, all of them after
--                                            the second; nothing was counted
--         {'corrupt', key, problem}
--
-- An expiry that is missing is set right with the next request. Entries from the future, since Redis's clock was set back, are
-- taken to be from now: they count, and no longer than one window.

expect(1, 3)
local key = KEYS[1]
local limit = whole(ARGV[1], 1, 'limit')
local window = whole(ARGV[2], 1, 'window')
local id = uuid(ARGV[3], 'id of the request')

local wrong = mistyped(key, 'zset')
if wrong then return wrong end
local now = clock()

-- Only if there is something to remove: a server without memory lets a script write on that has begun with what needs none.
local past = digits(now - window * 1000)
if redis.call('ZCOUNT', key, '-inf', past) > 0 then redis.call('ZREMRANGEBYSCORE', key, '-inf', past) end
for _, early in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. digits(now), '+inf')) do
  redis.call('ZADD', key, digits(now), early)
end

local count = redis.call('ZCARD', key)
if count < limit then
  redis.call('ZADD', key, digits(now), id)
  redis.call('PEXPIRE', key, digits(window))
  return {'admitted', digits(count + 1), digits(window)}
end
if redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, digits(window)) end

-- Milliseconds until the entry of that rank leaves the window.
local function leaves(rank)
  local at = tonumber(redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')[2])
  return digits(math.max(math.ceil((at - now) / 1000) + window, 1))
end

-- If the limit was lowered, more than the oldest has to leave before there is a place.
return {'refused', digits(count), leaves(count - limit), leaves(-1)}
