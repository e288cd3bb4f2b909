-- common.lua: what every script of the protocol starts with. It is put in front of each of them before they are
-- loaded, and does nothing by itself.
--
-- Rules that all scripts keep:
--   * Types and arguments are checked before the first write: Redis does not roll a script back.
--   * Time comes from Redis only. Clients send durations, never points in time.
--   * Only the KEYS given are touched, and all of them share one hash tag, so one Cluster slot.
--   * Every reply is an array of strings whose first element says what happened. Any script may answer
--       {'corrupt', key, problem}   a key of the protocol holds something else; nothing was changed
--   * Lua numbers are doubles: exact up to 2^53, printed by tostring as 1.79e+15. Tokens and times stay below
--     2^53 and are printed by the function digits.

local MAX_TOKEN = 9007199254740991 -- 2^53 - 1

-- How waiting is paced, in milliseconds. Part of the protocol: all clients of a resource must agree.
local PATIENCE = 5000 -- a waiter asks again at least this often, whatever it was told
local GRACE = 1000    -- how late it may be with that before it is taken for dead
local ANSWER = 500    -- how long a waiter that was woken keeps its right of way

local function digits(n)
  return string.format('%.0f', n)
end

local function corrupt(fault)
  return {'corrupt', fault.key, fault.problem}
end

-- The argument as a whole number between least and MAX_TOKEN. Anything else is a client's error and ends the script.
local function whole(arg, least, name)
  local n = tonumber(arg)
  if not n or n ~= math.floor(n) or n < least or n > MAX_TOKEN then
    error('lease: ' .. name .. ' must be a whole number from ' .. least .. ' to 2^53-1, got ' .. tostring(arg))
  end
  return n
end

-- Redis time in microseconds.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- A fault if the key holds another type than the one wanted; nil if it does not exist or fits.
local function mistyped(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then
    return {key = key, problem = 'is a ' .. kind .. ', not a ' .. wanted}
  end
end

-- The string at the key, nil if there is none; and a fault, if any.
local function read(key)
  local value = redis.pcall('GET', key)
  if type(value) == 'string' then return value end
  if not value then return nil end
  return nil, mistyped(key, 'string') or error(value)
end

-- The holder as {id, token (string), calls (string)}, or nil when the resource is free; and a fault, if any.
local function read_owner(key)
  local value, fault = read(key)
  if not value then return nil, fault end
  local id, token, calls = string.match(value, '^([%x%-]+):([1-9]%d*):([%x,]+)$')
  if not id or #id ~= 36 or #token > 16 then
    return nil, {key = key, problem = 'does not hold a lease id, a token and a call'}
  end
  return {id = id, token = token, calls = calls}
end

-- The holder as above with left, the milliseconds until its lease ends.
local function read_owner_and_left(key)
  local held, fault = read_owner(key)
  if not held then return nil, fault end
  held.left = redis.call('PTTL', key)
  if held.left < 0 then return nil, {key = key, problem = 'has no expiry'} end
  return held
end

-- The last token issued, 0 when none is known; and a fault, if any.
local function read_fence(key)
  local value, fault = read(key)
  if fault then return nil, fault end
  if not value then return 0 end
  local last = string.match(value, '^%d+$') and tonumber(value)
  if not last or last > MAX_TOKEN then
    return nil, {key = key, problem = 'does not hold a token'}
  end
  return last
end

-- The token after last: the clock is the floor, so that a counter that was lost does not start again from 1.
local function next_token(last, now)
  return math.max(last + 1, now)
end

-- Writes the token before the owner, so that no owner ever stands without its token.
local function grant(owner, fence, id, token, call, ttl, retention)
  redis.call('SET', fence, digits(token), 'PX', digits(retention))
  redis.call('SET', owner, id .. ':' .. digits(token) .. ':' .. call, 'PX', digits(ttl))
end

-- Calls. A call is one acquisition by a program: a name of its own, of which all its requests and its withdrawal have the same. A holder
-- is named by its lease id; calls that asked for one lease id share the lease, and are listed with it, "<call>,<call>", the newest last. So
-- the withdrawal of a call ends what nobody else has asked for, and nothing more.
local MOST_CALLS = 8 -- listed; the withdrawal of one that was before those finds nothing

local function add_call(calls, call)
  if string.find(calls, call, 1, true) then return calls end
  local _, n = string.gsub(calls, ',', ',')
  if n + 1 >= MOST_CALLS then calls = string.gsub(calls, '^%x+,', '') end
  return calls .. ',' .. call
end

-- The calls that are left; nil if there is none.
local function remove_call(calls, call)
  local left = {}
  for each in string.gmatch(calls, '%x+') do
    if each ~= call then left[#left + 1] = each end
  end
  if #left > 0 then return table.concat(left, ',') end
end

-- A call that is over although a request of it may still be under way is remembered for a while, so that the request does nothing when it
-- comes. It stands in the queue, "!<call>" by minus the time until which it is remembered (milliseconds), in front of those who wait;
-- so whoever finds the queue empty knows that there is none.
local REMEMBERED = 60000 -- milliseconds
local MOST_OVER = 100    -- calls; beyond them the oldest are forgotten

-- Best effort: a server without memory refuses it.
local function forget_call(queue, call, now)
  local ms = math.floor(now / 1000)
  if type(redis.pcall('ZADD', queue, digits(-(ms + REMEMBERED)), '!' .. call)) ~= 'number' then return end
  redis.call('ZREMRANGEBYSCORE', queue, digits(-ms), '(0')
  local n = redis.call('ZCOUNT', queue, '-inf', '(0')
  if n > MOST_OVER then redis.call('ZREMRANGEBYRANK', queue, MOST_OVER, n - 1) end
  redis.call('PEXPIRE', queue, REMEMBERED)
end

local function is_over(queue, call, now)
  local till = redis.call('ZSCORE', queue, '!' .. call)
  return till and -tonumber(till) > math.floor(now / 1000)
end

-- The latest revocation, "<lease id>:<token>:<revocation id>:<new token>", is left for the holder to find.
local function was_revoked(ended, id, token)
  local me = id .. ':' .. token .. ':'
  return string.sub(redis.call('GET', ended) or '', 1, #me) == me
end

-- The queue: one sorted set of waiters by arrival (microseconds), one of the same waiters by the time until which they
-- are believed alive (milliseconds). A waiter is "<lease id>:<call>@<listener>". The listener is its process's; it hears what is published on
-- "<channel of the resource>:<listener>", and nobody else does.

local function queue_fault(queue, alive)
  return mistyped(queue, 'zset') or mistyped(alive, 'zset')
end

local function leave(queue, alive, waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', alive, waiter)
end

-- Puts the waiter at the end, or leaves it where it stands, and believes in it until it has to ask again.
local function enqueue(queue, alive, waiter, now, wait)
  redis.call('ZADD', queue, 'NX', digits(now), waiter)
  redis.call('ZADD', alive, digits(math.floor(now / 1000) + wait + GRACE), waiter)
  redis.call('PEXPIRE', queue, REMEMBERED)
  redis.call('PEXPIRE', alive, PATIENCE + GRACE)
end

-- The first living waiter and the time until which it is believed alive. Those before it are dropped: the dead, those that claim to
-- live longer than anyone may (Redis's clock was set back since), and half an entry (the other set was evicted).
local function first(queue, alive, now)
  local ms = math.floor(now / 1000)
  while true do
    local head = redis.call('ZRANGEBYSCORE', queue, 0, '+inf', 'LIMIT', 0, 1)[1]
    if not head then return nil end
    local living = tonumber(redis.call('ZSCORE', alive, head) or 0)
    if living > ms and living <= ms + PATIENCE + GRACE then return head, living end
    leave(queue, alive, head)
  end
end

-- Tells the waiter. Answers whether its process was listening; a connection that broke unnoticed counts, an ACL that forbids it does not.
local function tell(waiter, publish, channel, what, news)
  local call, listener = string.match(waiter, '^[^:@]*:?([^@]*)@?(.*)$')
  local heard = redis.pcall(publish, channel .. ':' .. listener, what .. ' ' .. call .. (news or ''))
  return type(heard) == 'number' and heard > 0
end

-- Wakes the waiter and gives it ANSWER milliseconds to come. Returns when its right of way ends.
local function call(waiter, living, alive, now, publish, channel)
  living = math.min(living, math.floor(now / 1000) + ANSWER)
  redis.call('ZADD', alive, digits(living), waiter)
  tell(waiter, publish, channel, 'free')
  return living
end

-- Wakes the first waiter, if there is one. Returns it, and when its right of way ends.
local function wake(queue, alive, now, publish, channel)
  local head, living = first(queue, alive, now)
  if head then return head, call(head, living, alive, now, publish, channel) end
end
