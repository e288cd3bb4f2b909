-- queue.lua: those who wait for a resource, and how one of them hears of its turn. It is put behind holder.lua.
--
--   queue  sorted set: the calls that wait, by arrival (microseconds); in front of them, below 0, calls that are over
--   alive  hash: for each call that waits "<until>:<asked>:<request>:<ttl>:<lease id>@<listener>"
--            until    the time until which it is believed alive, milliseconds: it must ask again before
--            asked    when its latest request was answered, milliseconds, rounded up
--            request  the number of that request, which tells the waiter what news is an answer to
--            ttl      what it wants to hold for, milliseconds
--
-- A listener is a process; it hears what is published on "<channel of the resource>:<listener>", and nobody else does:
--   'free <call>'                         ask now, it may be your turn
--   'granted <call> <request> <token> <ms>'  you hold, for ms from the moment at which that request was answered
--   'look <call> <ms>'                    whoever is before you has its turn now; ask in ms, for it may not have heard
-- An empty message says nothing: its use is that PUBLISH counts those who listen.
--
-- A waiter whose process does not listen is passed over and keeps its place: its connection may be about to be made
-- anew, and then it asks. One that has asked a moment ago has its turn all the same: it has been told to wait, and is
-- about to listen.

-- In milliseconds. Part of the protocol: all clients of a resource must agree.
local PATIENCE = 5000     -- a waiter asks again at least this often, whatever it was told
local GRACE = 1000        -- how late it may be with that before it is taken for dead
local ANSWER = 500        -- how long a waiter that was called keeps its right of way
local FRESH = 250         -- how long after its request a waiter may take until it listens
local PROVISIONAL = 1000  -- how long a lease that was handed over lasts until its holder renews it
local REMEMBERED = 60000  -- how long a call that is over is remembered

local LOOK = 500      -- places that one script looks at; beyond them the next one does
local MOST_OVER = 100 -- calls that are remembered; beyond them the oldest are forgotten

local function queue_fault(q)
  return mistyped(q.queue, 'zset') or mistyped(q.alive, 'hash')
end

local function leave(q, ...)
  redis.call('ZREM', q.queue, ...)
  redis.call('HDEL', q.alive, ...)
end

local function note(q, w)
  redis.call('HSET', q.alive, w.call, table.concat({digits(w.till), digits(w.asked), w.request, w.ttl, w.id}, ':') .. '@' .. w.listener)
end

-- Puts the waiter {call, request, ttl, id, listener} at the end, or leaves it where it stands, and believes in it until
-- it has to ask again.
local function enqueue(q, w, wait)
  w.asked = math.ceil(q.now / 1000)
  w.till = math.floor(q.now / 1000) + wait + GRACE
  note(q, w)
  redis.call('ZADD', q.queue, 'NX', digits(q.now), w.call)
  redis.call('PEXPIRE', q.queue, REMEMBERED)
  redis.call('PEXPIRE', q.alive, PATIENCE + GRACE)
end

local function waiter(call, entry)
  if not entry then return nil end
  local till, asked, request, ttl, id, listener = string.match(entry, '^(%d+):(%d+):(%d+):(%d+):([%x%-]+)@(.*)$')
  return till and {call = call, till = tonumber(till), asked = tonumber(asked), request = request, ttl = ttl, id = id, listener = listener}
end

-- How many wait.
local function waiters(q)
  local ms, n = math.floor(q.now / 1000), 0
  for _, entry in ipairs(redis.call('HVALS', q.alive)) do
    if (tonumber(string.match(entry, '^%d+')) or 0) > ms then n = n + 1 end
  end
  return n
end

-- Visits one living waiter after the other until visit answers true. Those that are not are taken out: the dead, those
-- that claim to live longer than anyone may (Redis's clock was set back since), and half an entry (the other key was
-- evicted); and those that visit calls gone. Returns those that were visited if LOOK places were not enough, for the
-- caller to take out, so that the next script gets further.
local function walk(q, visit)
  local ms = math.floor(q.now / 1000)
  local dropped, visited = {}, {}
  local from, size, stopped = 0, 2, false
  repeat
    local calls = redis.call('ZRANGEBYSCORE', q.queue, 0, '+inf', 'LIMIT', from, size)
    local entries = #calls > 0 and redis.call('HMGET', q.alive, unpack(calls))
    for n, call in ipairs(calls) do
      local w = waiter(call, entries[n])
      if not w or w.till <= ms or w.till > ms + PATIENCE + GRACE then
        dropped[#dropped + 1] = call
      else
        stopped = visit(w)
        local list = w.gone and dropped or visited
        list[#list + 1] = call
        if stopped then break end
      end
    end
    from = from + #calls
    local more = #calls == size
    size = math.min(4 * size, 128, LOOK - from)
  until stopped or not more or size <= 0
  if #dropped > 0 then leave(q, unpack(dropped)) end
  if not stopped and from >= LOOK and #visited > 0 then return visited end
end

-- Answers whether the waiter's process listens. One whose connection broke unnoticed does; one that an ACL forbids to
-- be told does not.
local function tell(q, w, news)
  local heard = redis.pcall(q.publish, q.channel .. ':' .. w.listener, news)
  return type(heard) == 'number' and heard > 0
end

-- For how many milliseconds a waiter that does not listen has right of way; nil if it has none.
local function fresh(q, w)
  local left = w.asked + FRESH - math.floor(q.now / 1000)
  if left > 0 and left <= FRESH then return left end
end

-- Calls the waiter. Returns for how many milliseconds it has right of way; nil if it has none.
local function call(q, w)
  if not tell(q, w, 'free ' .. w.call) then return fresh(q, w) end
  local ms = math.floor(q.now / 1000)
  if w.till > ms + ANSWER then
    w.till = ms + ANSWER
    note(q, w)
  end
  return w.till - ms
end

-- Gives the first waiter that listens its turn, by give, which answers for how many milliseconds nobody else needs to
-- ask, or nil if it is passed over; call is one. Whoever listens behind it, of a few, is told when to look.
local function wake(q, give)
  local wait
  local few = 8
  local deaf = walk(q, function(w)
    if not wait then
      wait = give(q, w)
      return false
    end
    few = few - 1
    return tell(q, w, 'look ' .. w.call .. ' ' .. digits(wait)) or few == 0
  end)
  if deaf and not wait then leave(q, unpack(deaf)) end
end

-- Milliseconds after which it is worthwhile to ask again for what is free, because somebody who listens stands before
-- the call; nil if it is the turn of the call.
local function before(q, mine)
  local wait
  local deaf = walk(q, function(w)
    if w.call == mine then return true end
    wait = call(q, w) -- an earlier message may have been lost
    return wait ~= nil
  end)
  if not deaf then return wait end
  leave(q, unpack(deaf))
  return 1
end

-- A call that is over, although a request of it may still be under way, is remembered for a while, so that the request
-- does nothing when it comes. It stands in the queue as "!<call>" by minus the time until which it is remembered
-- (milliseconds); so whoever finds the queue empty knows that there is none. Best effort: a server without memory
-- refuses it.
local function forget_call(q, call)
  local ms = math.floor(q.now / 1000)
  if type(redis.pcall('ZADD', q.queue, digits(-(ms + REMEMBERED)), '!' .. call)) ~= 'number' then return end
  local over = redis.call('ZRANGEBYSCORE', q.queue, '-inf', '(0') -- the newest first
  local last = #over
  while last > MOST_OVER or last > 0 and -tonumber(redis.call('ZSCORE', q.queue, over[last])) <= ms do
    redis.call('ZREM', q.queue, over[last])
    last = last - 1
  end
  redis.call('PEXPIRE', q.queue, REMEMBERED)
end

local function is_over(q, call)
  local till = redis.call('ZSCORE', q.queue, '!' .. call)
  return till and -tonumber(till) > math.floor(q.now / 1000)
end
