-- acquire.lua: grants the lease on one or more resources: all of them, if each is free and it is this waiter's turn, or none.
--
-- KEYS, four for each resource: owner, fence, queue, alive
-- ARGV[1] lease id   ARGV[2] call, new for each acquisition
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, > 0
-- ARGV[5] 'try': leave no trace when refused; 'wait': queue up for what is not free; 'barge': 'try', past those who wait
-- ARGV[6] PUBLISH or SPUBLISH   ARGV[7] listener, where the waiter hears of its turn
-- ARGV[8...] channel, one for each resource
--
-- Returns {'granted', token...}   held by this lease id for ttl from now, one token for each resource in order. Asking again
--                                 with the same lease id gives the same tokens and a full ttl, so a lost reply costs nothing.
--         {'held', milliseconds, n, floor}  the nth resource is held by another, or another waits for it with right of way; worth
--                                 asking again after that time. No token was used and no lease's expiry moved. Every lease on it
--                                 that is granted from now on has a token of floor or more.
--         {'over'}                this call was given up, or its lease given back; nothing was changed
--         {'exhausted'}           tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

local id, call_id, mode, publish = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
local waiter = id .. ':' .. call_id .. '@' .. ARGV[7]
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = whole(ARGV[4], 1, 'fence retention')
local now = clock()

-- First look at everything, then write.
local resources = {}
for i = 1, #KEYS / 4 do
  local r = {owner = KEYS[4 * i - 3], fence = KEYS[4 * i - 2], queue = KEYS[4 * i - 1], alive = KEYS[4 * i], channel = ARGV[7 + i]}
  local fault
  r.held, fault = read_owner_and_left(r.owner)
  if fault then return corrupt(fault) end
  r.last, fault = read_fence(r.fence)
  if fault then return corrupt(fault) end
  fault = queue_fault(r.queue, r.alive)
  if fault then return corrupt(fault) end
  if is_over(r.queue, call_id, now) then return {'over'} end
  r.token = next_token(r.last, now)
  if r.token > MAX_TOKEN then return {'exhausted'} end
  resources[i] = r
end

-- Milliseconds after which asking again is worthwhile; nil if nothing is in the way.
local function obstacle(r)
  if r.held and r.held.id ~= id then return r.held.left end
  if r.held or mode == 'barge' then return nil end
  local head, living = first(r.queue, r.alive, now)
  if not head or head == waiter then return nil end
  return call(head, living, r.alive, now, publish, r.channel) - math.floor(now / 1000) -- its message may have been lost
end

for n, r in ipairs(resources) do
  local wait = obstacle(r)
  if wait then
    wait = math.min(math.max(wait, 1), PATIENCE)
    if mode == 'wait' then enqueue(r.queue, r.alive, waiter, now, wait) end
    return {'held', digits(wait), digits(n), digits(r.token)}
  end
end

local reply = {'granted'}
for n, r in ipairs(resources) do
  if r.held then
    redis.call('PEXPIRE', r.fence, digits(retention))
    redis.call('SET', r.owner, id .. ':' .. r.held.token .. ':' .. add_call(r.held.calls, call_id), 'PX', digits(ttl))
    reply[n + 1] = r.held.token
  else
    grant(r.owner, r.fence, id, r.token, call_id, ttl, retention)
    leave(r.queue, r.alive, waiter)
    reply[n + 1] = digits(r.token)
  end
end
return reply
