-- acquire.lua: grants the lease on one or more resources. It grants all of them if each is free and it is this caller's
-- turn; otherwise none.
--
-- KEYS, four for each resource: owner, fence, queue, alive
-- ARGV[1] lease id, new for each acquisition   ARGV[2] label of the holder, for people
-- ARGV[3] ttl, milliseconds, > 0
-- ARGV[4] fence retention, milliseconds, >= ttl
-- ARGV[5] 'try': leave no trace when refused; 'wait': join the queue of the first resource that is not free
-- ARGV[6] PUBLISH or SPUBLISH   ARGV[7] listener: the name under which the waiter's process is woken
--
-- Returns {'granted', token...}   this lease id holds for ttl from now; one token for each resource, in order. The same
--                                 request again gives the same tokens and a full ttl, so a lost reply does no harm.
--         {'held', milliseconds, n, label}  another lease, with that label, holds the nth resource; or a waiter has the
--                                 right of way to it, and label is ''. Retry after that time. No token was used and no
--                                 lease's expiry moved.
--         {'exhausted'}           tokens have reached 2^53; nothing was changed
--         {'corrupt', key, problem}

-- The common case: one resource that is free and has no waiters. It comes before the helpers, because defining them
-- takes longer than granting the lease. Every other case is left to the full script below. The common case does not
-- check the form of the arguments; a client that sends wrong ones gets an error as soon as a resource is held or has
-- waiters.
--
-- The queue counts twice, so state is 0: free; 1: held; 2: free, with waiters; 3: held, with waiters. It is false if
-- there are several resources.
local state = #KEYS == 4 and #ARGV == 7 and redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[3])
if state == 0 then
  local last, time = redis.pcall('GET', KEYS[2]) or '0', redis.call('TIME')
  local token = time[1] .. string.sub('00000' .. time[2], -6) -- below 2^53 until the year 2255
  -- Tokens are compared as text, because conversion takes longer. If the clock is not ahead of the last token, the full
  -- script counts on from it.
  if type(last) == 'string' and (#last < #token or #last == #token and last < token) and string.find(last, '^%d+$') then
    redis.call('SET', KEYS[2], token, 'PX', ARGV[4]) -- before the owner, so that no lease is without its last token
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. token .. ':' .. ARGV[2], 'PX', ARGV[3])
    return {'granted', token}
  end
end

-- The helpers come here.

local count = math.max(math.floor(#KEYS / 4), 1)
expect(4 * count, 7)
for n = 1, count do fields(4 * n - 3, 'owner', 'fence', 'queue', 'alive') end
local id, label = uuid(ARGV[1], 'lease id'), name_of(ARGV[2], 'label')
local ttl = whole(ARGV[3], 1, 'ttl')
local retention = retention_of(ARGV[4], ttl)
local mode = one_of(ARGV[5], 'mode', 'try', 'wait')
local listener = name_of(ARGV[7], 'listener')
local queues = {}
for n = 1, count do queues[n] = queue_of(KEYS[4 * n - 1], KEYS[4 * n], ARGV[6]) end
local now = clock()

local function refused(r, n, wait, holder)
  wait = math.min(math.max(wait, 1), PATIENCE)
  return mode == 'wait' and enqueue(r, id, listener, wait) or {'held', digits(wait), digits(n), holder}
end

-- Read everything before the grant is written: Redis does not roll a script back.
for n, r in ipairs(queues) do
  r.owner, r.fence, r.now = KEYS[4 * n - 3], KEYS[4 * n - 2], now
  local wrong
  if state ~= 2 then r.held, wrong = read_owner_and_left(r.owner) end
  if wrong then return wrong end
  if r.held and r.held.id ~= id then return refused(r, n, r.held.left, r.held.label) end
  if state ~= 1 then r.front, wrong = front_of(r.queue) end
  if wrong then return wrong end
  r.waited = r.front and r.front[1]
  r.last, wrong = read_fence(r.fence)
  if wrong then return wrong end
  r.token = next_token(r.last, now)
  if r.token > MAX_WHOLE then return {'exhausted'} end
end
for n, r in ipairs(queues) do
  if r.waited and not r.held then
    local wait, wrong = before(r, id)
    if wrong then return wrong end
    if wait then return refused(r, n, wait, '') end
  end
end

local reply = {'granted'}
for n, r in ipairs(queues) do
  local token = digits(r.token)
  if r.held then
    token = r.held.token
    redis.call('SET', r.fence, digits(math.max(r.last, tonumber(token))), 'PX', digits(retention)) -- it may be evicted
  else
    redis.call('SET', r.fence, token, 'PX', digits(retention))
  end
  redis.call('SET', r.owner, id .. ':' .. token .. ':' .. label, 'PX', digits(ttl))
  reply[n + 1] = token
  if r.waited then leave(r, id) end
end
return reply
