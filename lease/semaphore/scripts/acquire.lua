-- acquire.lua: gives a place to one more holder, if there is one and it is this waiter's turn.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive
-- KEYS[5] limit, if it was changed: how many may hold at once
-- ARGV[1] lease id   ARGV[2] call, new for each acquisition
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, > 0
-- ARGV[5] 'try': leave no trace when refused; 'wait': queue up; 'barge': 'try', past those who wait
-- ARGV[6] PUBLISH or SPUBLISH   ARGV[7] listener, where the waiter hears of its turn   ARGV[8] channel
-- ARGV[9] limit, > 0, unless it was changed
--
-- Returns {'granted', token}  held by this lease id for ttl from now. Asking again with the same lease id gives the same token
--                             and a full ttl, so a lost reply costs nothing.
--         {'held', milliseconds, '1', floor}  all places are taken, or another waits with right of way; worth asking again after
--                             that time. No token was used and no holder's time moved. Whoever gets a place from now on
--                             has a token of floor or more.
--         {'over'}            this call was given up, or its place given back; no place was given
--         {'exhausted'}       tokens have reached 2^53; no place was given
--         {'corrupt', key, problem}

local owner, fence, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, call_id, mode, publish, channel = ARGV[1], ARGV[2], ARGV[5], ARGV[6], ARGV[8]
local waiter = id .. ':' .. call_id .. '@' .. ARGV[7]
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = whole(ARGV[4], 1, 'fence retention')
local now = clock()

local fault = mistyped(owner, 'zset') or queue_fault(queue, alive) or mistyped(KEYS[5], 'string')
if fault then return corrupt(fault) end
local last
last, fault = read_fence(fence)
if fault then return corrupt(fault) end
local limit = redis.call('GET', KEYS[5])
if limit and not string.match(limit, '^[1-9]%d*$') then return corrupt({key = KEYS[5], problem = 'does not hold a limit'}) end
limit = whole(limit or ARGV[9], 1, 'limit')

if is_over(queue, call_id, now) then return {'over'} end

drop_dead(owner, now)
local mine, token, calls = find(owner, id .. ':', '-inf')
if mine then
  local name = id .. ':' .. token .. ':' .. add_call(calls, call_id)
  if name ~= mine then redis.call('ZREM', owner, mine) end
  hold(owner, name, now, ttl)
  redis.call('PEXPIRE', fence, digits(retention))
  return {'granted', token}
end

local taken = redis.call('ZCARD', owner)

-- Milliseconds after which asking again is worthwhile; nil if nothing is in the way.
local function obstacle()
  if taken >= limit then
    -- If the limit was lowered, more than one has to leave.
    local next = redis.call('ZRANGE', owner, taken - limit, taken - limit, 'WITHSCORES')
    return math.ceil((tonumber(next[2]) - now) / 1000)
  end
  if mode == 'barge' then return nil end
  local head, living = first(queue, alive, now)
  if not head or head == waiter then return nil end
  return call(head, living, alive, now, publish, channel) - math.floor(now / 1000) -- its message may have been lost
end

token = next_token(last, now)
if token > MAX_TOKEN then return {'exhausted'} end
local wait = obstacle()
if wait then
  wait = math.min(math.max(wait, 1), PATIENCE)
  if mode == 'wait' then enqueue(queue, alive, waiter, now, wait) end
  return {'held', digits(wait), '1', digits(token)}
end

redis.call('SET', fence, digits(token), 'PX', digits(retention))
hold(owner, id .. ':' .. digits(token) .. ':' .. call_id, now, ttl)
leave(queue, alive, waiter)
if taken + 1 < limit then wake(queue, alive, now, publish, channel) end -- one call for each place
return {'granted', digits(token)}
