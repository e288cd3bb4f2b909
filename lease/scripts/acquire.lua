-- acquire.lua: grants the lease if the resource is free and it is this waiter's turn.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive
-- ARGV[1] lease id, new for each acquisition; also the waiter's name in the queue
-- ARGV[2] ttl, milliseconds, > 0
-- ARGV[3] fence retention, milliseconds, > 0
-- ARGV[4] 'try': leave no trace when refused; 'wait': queue up when refused; 'barge': 'try', past those who wait
-- ARGV[5] PUBLISH or SPUBLISH   ARGV[6] channel
--
-- Returns {'granted', token}      held by this lease id for ttl from now. Asking again with the same lease id gives the same
--                                 token and a full ttl, so a lost reply costs nothing.
--         {'held', milliseconds}  another holds it, or waits with right of way; worth asking again after that time. No token
--                                 was used and no expiry moved; with 'wait' the lease id is now in the queue.
--         {'exhausted'}           tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

local owner, fence, queue, alive = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, mode, publish, channel = ARGV[1], ARGV[4], ARGV[5], ARGV[6]
local ttl = whole(ARGV[2], 1, 'ttl')
local retention = whole(ARGV[3], 1, 'fence retention')

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
local last
last, fault = read_fence(fence)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive)
if fault then return corrupt(fault) end

if held and held.id == id then
  redis.call('PEXPIRE', fence, digits(retention))
  redis.call('PEXPIRE', owner, digits(ttl))
  return {'granted', held.token}
end

local now = clock()
local wait
if held then
  wait = held.left
elseif mode ~= 'barge' then
  local head = first(queue, alive, now)
  if head and head ~= id then
    local _, living = wake(queue, alive, now, publish, channel) -- its message may have been lost
    wait = living - math.floor(now / 1000)
  end
end

if wait then
  wait = math.min(math.max(wait, 1), PATIENCE)
  if mode == 'wait' then enqueue(queue, alive, id, now, wait) end
  return {'held', digits(wait)}
end

local token = next_token(last, now)
if token > MAX_TOKEN then return {'exhausted'} end
grant(owner, fence, id, token, ttl, retention)
leave(queue, alive, id)
return {'granted', digits(token)}
