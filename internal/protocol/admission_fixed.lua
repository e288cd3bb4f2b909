-- admission_fixed.lua: admits up to limit requests in a window, which begins with its first request.
--
-- KEYS[1] count of the window; expires when the window ends
-- ARGV[1] limit, > 0
-- ARGV[2] window, milliseconds, > 0
--
-- Returns {'admitted', count, milliseconds}  count of the window with this request, and how long the window still lasts
--         {'refused', count, milliseconds, milliseconds}  the window is full, and ends after that time (both are the
--                                            same); nothing was counted
--         {'corrupt', key, problem}
--
-- Count and expiry are set in one step. An expiry that is missing all the same (after PERSIST) or too late (the window
-- was made shorter since) is repaired: the count stays, and the window ends one window from now.

expect(1, 2)
local key = KEYS[1]
local limit = whole(ARGV[1], 1, 'limit')
local window = whole(ARGV[2], 1, 'window')

local value = redis.pcall('GET', key) -- no TYPE is needed before it
if type(value) == 'table' then return mistyped(key, 'string') or error(value) end
if not value then
  redis.call('SET', key, '1', 'PX', digits(window))
  return {'admitted', '1', digits(window + 1)}
end
if #value > 15 or not string.match(value, '^[1-9]%d*$') then return corrupt(key, 'does not hold a count') end

local count = tonumber(value)
local left = redis.call('PTTL', key)
if left < 0 or left > window then
  left = window
  redis.call('SET', key, value, 'PX', digits(window))
end
-- Redis removes a key only when the millisecond of its expiry is over.
left = digits(left + 1)
if count >= limit then return {'refused', value, left, left} end
return {'admitted', digits(redis.call('INCR', key)), left}
