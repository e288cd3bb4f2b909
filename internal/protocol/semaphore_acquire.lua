-- semaphore_acquire.lua: grants a permit, if one is free and it is this caller's turn.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive
-- ARGV[1] lease id, new for each acquisition   ARGV[2] label of the holder, for people
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, >= ttl
-- ARGV[5] 'try': leave no trace when refused; 'wait': join the queue
-- ARGV[6] PUBLISH or SPUBLISH   ARGV[7] listener: the name under which the waiter's process is woken
-- ARGV[8] limit, > 0: how many may hold at once. Programs may have different limits.
--
-- Returns {'granted', token}  this lease id holds a permit for ttl from now. The same request again gives the same
--                             token and a full ttl, so a lost reply does no harm.
--         {'held', milliseconds, '1', label}  all permits are taken, and label is that of the holder for whose permit
--                             the caller has to wait; or a waiter has the right of way, and label is ''. Retry after
--                             that time. No token was used and no permit's expiry moved.
--         {'exhausted'}       tokens have reached 2^53; no permit was granted
--         {'corrupt', key, problem}

expect(4, 8)
fields(1, 'owner', 'fence', 'queue', 'alive')
local owner, fence = KEYS[1], KEYS[2]
local id, label = uuid(ARGV[1], 'lease id'), name_of(ARGV[2], 'label')
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = retention_of(ARGV[4], ttl)
local mode = one_of(ARGV[5], 'mode', 'try', 'wait')
local q = queue_of(KEYS[3], KEYS[4], ARGV[6])
local listener = name_of(ARGV[7], 'listener')
local limit = whole(ARGV[8], 1, 'limit')
local now = clock()
q.now = now

local all, wrong = living(owner, now)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
if wrong then return wrong end
q.front, wrong = front_of(q.queue)
if wrong then return wrong end
local waited = q.front[1]

local holder, token = find(all, id .. ':')
if holder then
  hold(owner, holder, now, ttl)
  redis.call('PEXPIRE', fence, digits(retention))
  if waited then leave(q, id) end
  return {'granted', token}
end

local taken = #all / 2
token = next_token(last, now)
if token > MAX_WHOLE then return {'exhausted'} end

local wait, others = nil, ''
if taken >= limit then
  local next = 2 * (taken - limit) + 1 -- if others have a higher limit, several permits have to expire first
  wait, others = math.ceil((tonumber(all[next + 1]) - now) / 1000), string.match(all[next], '[^:]*$')
elseif waited then
  wait, wrong = before(q, id)
  if wrong then return wrong end
end
if wait then
  wait = math.min(math.max(wait, 1), PATIENCE)
  return mode == 'wait' and enqueue(q, id, listener, wait) or {'held', digits(wait), '1', others}
end

redis.call('SET', fence, digits(token), 'PX', digits(retention))
redis.call('ZREMRANGEBYSCORE', owner, '-inf', digits(now)) -- the expired permits
hold(owner, id .. ':' .. digits(token) .. ':' .. label, now, ttl)
if waited then
  leave(q, id)
  if taken + 1 < limit then wake(q) end -- call a waiter for the next free permit
end
return {'granted', digits(token)}
