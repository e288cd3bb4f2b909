-- semaphore_acquire.lua: grants a permit to one more holder, if one is free and it is this call's turn.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive
-- KEYS[5] limit, if it was changed: how many may hold at once
-- ARGV[1] lease id   ARGV[2] call, new for each acquisition
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, >= ttl
-- ARGV[5] 'try': leave no trace when refused; 'wait': queue up; 'barge': 'try', past the queue
-- ARGV[6] PUBLISH or SPUBLISH   ARGV[7] listener, where the waiter hears of its turn
-- ARGV[8] limit, > 0, unless it was changed
--
-- Returns {'granted', token}  held by this lease id for ttl from now. Asking again with the same lease id gives the same token
--                             and a full ttl, so a lost reply costs nothing.
--         {'held', milliseconds, '1', calls}  all permits are taken, and calls are those of the holder whose time ends
--                             next; or another waits with right of way, and calls is ''. Retry after that time. No token
--                             was used and no holder's time moved.
--         {'exhausted'}       tokens have reached 2^53; no permit was granted
--         {'corrupt', key, problem}

expect(5, 8)
fields(1, 'owner', 'fence', 'queue', 'alive', 'limit')
local owner, fence = KEYS[1], KEYS[2]
local id, mine = uuid(ARGV[1], 'lease id'), name_of(ARGV[2], 'call')
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = retention_of(ARGV[4], ttl)
local mode = one_of(ARGV[5], 'mode', 'try', 'wait', 'barge')
local q = queue_of(KEYS[3], KEYS[4], ARGV[6])
local listener = name_of(ARGV[7], 'listener')
local limit = whole(ARGV[8], 1, 'limit')
local now = clock()
q.now = now

local wrong = mistyped(owner, 'zset')
if wrong then return wrong end
local last, changed
last, wrong = read_fence(fence)
if wrong then return wrong end
local head = redis.pcall('ZRANGE', q.queue, 0, 0) -- saves the command TYPE
if head.err then return mistyped(q.queue, 'zset') or error(head) end
head = head[1]
wrong = head and mistyped(q.alive, 'hash')
if wrong then return wrong end
changed, wrong = read_limit(KEYS[5])
if wrong then return wrong end
limit = changed or limit

drop_dead(owner, now)
local holder, token, calls = find(owner, id .. ':', now)
if holder then
  local name = id .. ':' .. token .. ':' .. add_call(calls, mine)
  if name ~= holder then redis.call('ZREM', owner, holder) end
  hold(owner, name, now, ttl)
  redis.call('PEXPIRE', fence, digits(retention))
  if head then leave(q, mine) end
  return {'granted', token}
end

local taken = redis.call('ZCARD', owner)

-- Milliseconds after which to retry, and the calls of a holder in the way; nil if nothing is.
local function obstacle()
  if taken >= limit then
    -- If the limit was lowered, more than one has to leave.
    local next = redis.call('ZRANGE', owner, taken - limit, taken - limit, 'WITHSCORES')
    return math.ceil((tonumber(next[2]) - now) / 1000), string.match(next[1], '[^:]*$')
  end
  if head and mode ~= 'barge' then return before(q, mine) end
end

token = next_token(last, now)
if token > MAX_WHOLE then return {'exhausted'} end
local wait, others = obstacle()
if wait then
  wait = math.min(math.max(wait, 1), PATIENCE)
  if mode == 'wait' then
    wrong = not head and mistyped(q.alive, 'hash')
    if wrong then return wrong end
    enqueue(q, mine, listener, wait)
  end
  return {'held', digits(wait), '1', others or ''}
end

redis.call('SET', fence, digits(token), 'PX', digits(retention))
hold(owner, id .. ':' .. digits(token) .. ':' .. mine, now, ttl)
if head then
  leave(q, mine)
  if taken + 1 < limit then wake(q) end -- one call for each permit
end
return {'granted', digits(token)}
