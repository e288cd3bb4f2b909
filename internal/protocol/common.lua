-- common.lua: the helpers of all scripts of the protocol: leases, semaphores, once and admission. The loader puts it
-- before each script, or after the script's common case. It does nothing by itself.
--
-- Rules for all scripts:
--   * A script first checks its arguments: the number of KEYS and ARGV, and the form of each. A wrong argument is a
--     mistake of the client: the script ends with an error reply and changes nothing. (The common cases of acquire,
--     extend and release check only the number.)
--   * A script reports a key of the wrong type before its first write, because Redis does not roll a script back. There
--     are two exceptions. It may have removed dead waiters by then. And if a queue has the wrong type, a script that
--     only has to remove a waiter from it skips that without an error.
--   * Time comes from Redis only. Clients send durations, never points in time.
--   * A script touches only the KEYS that it was given, and publishes only to the channel of these keys. All of them
--     share one hash tag, so one Cluster slot.
--   * Every reply is an array of strings, except for the result that eval.lua returns. The first element names the
--     outcome. Any script may answer
--       {'corrupt', key, problem}   the key holds something that the protocol did not write; nothing was changed
--   * Lua numbers are doubles: they are exact up to 2^53, and tostring prints large ones as 1.79e+15. Tokens and times
--     stay below 2^53, and the function digits prints them.

-- Arguments and replies ------------------------------------------------------------------------------------------------

local MAX_WHOLE = 9007199254740991 -- 2^53 - 1

local function digits(n)
  return string.format('%.0f', n)
end

local function refuse(problem)
  error('fencedb: ' .. problem .. '; nothing was changed')
end

local function expect(keys, args)
  if #KEYS ~= keys or #ARGV ~= args then
    refuse('takes ' .. keys .. ' keys and ' .. args .. ' arguments, got ' .. #KEYS .. ' and ' .. #ARGV)
  end
end

-- Refuses the keys from KEYS[first] on unless they are these fields of one resource. A client that mixed them up could
-- take a resource that another holds, or wait in a queue that nobody reads.
local function fields(first, ...)
  local head
  for n, field in ipairs({...}) do
    local key = KEYS[first + n - 1]
    head = head or string.match(key, '^(.*:)' .. field .. '$')
    if not head or key ~= head .. field then
      refuse('KEYS[' .. (first + n - 1) .. '] must be the ' .. field .. ' of the same resource, got ' .. key)
    end
  end
end

-- The argument as a whole number between least and MAX_WHOLE.
local function whole(arg, least, name)
  local n = string.match(arg, '^%d+$') and tonumber(arg)
  if not n or n < least or n > MAX_WHOLE then
    refuse(name .. ' must be a whole number from ' .. least .. ' to 2^53-1, got ' .. arg)
  end
  return n
end

-- The argument, which must be one of these words.
local function one_of(given, name, ...) -- not named arg, which a vararg function of Lua 5.1 defines itself
  for _, word in ipairs({...}) do
    if given == word then return given end
  end
  refuse(name .. ' is unknown: ' .. given)
end

-- The argument as a UUID. It must be in lower case, because scripts compare ids as text.
local function uuid(arg, name)
  if not string.find(arg, '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$') or string.find(arg, '%u') then
    refuse(name .. ' must be a UUID in lower case, got ' .. arg)
  end
  return arg
end

-- The label of a holder, or the name of a listener.
local function name_of(arg, name)
  if #arg > 64 or not string.match(arg, '^[%w%-]+$') then refuse(name .. ' must be of letters, digits and dashes, got ' .. arg) end
  return arg
end

-- How long Redis remembers the last token. That must be at least the TTL: the last token must outlive the lease.
local function retention_of(arg, ttl)
  local retention = whole(arg, 1, 'fence retention')
  if retention < ttl then refuse('fence retention must be at least the ttl, got ' .. arg) end
  return retention
end

-- Makes the q of the functions below: the queue of one resource, and how to send news to its waiters.
local function queue_of(queue, alive, publish)
  one_of(publish, 'publish command', 'PUBLISH', 'SPUBLISH')
  return {queue = queue, alive = alive, publish = publish, channel = (string.gsub(queue, 'queue$', 'wake'))}
end

local function corrupt(key, problem)
  return {'corrupt', key, problem}
end

-- The 'corrupt' reply if the key is of another type; nil if the type fits or the key does not exist.
local function mistyped(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then return corrupt(key, 'is a ' .. kind .. ', not a ' .. wanted) end
end

-- Runs a command for keys of that type, and returns its answer. If the key is of another type, Redis refuses the
-- command, and the second result is the 'corrupt' reply. So no TYPE is needed before it.
local function typed(kind, command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  return nil, mistyped(key, kind) or error(answer)
end

-- The string at the key, or false if there is none. The second result is the reply if the key is corrupt.
local function read(key)
  return typed('string', 'GET', key)
end

-- Redis time in microseconds.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- Tokens ---------------------------------------------------------------------------------------------------------------

-- The last token issued; 0 if Redis remembers none. The second result is the reply if the key is corrupt.
local function read_fence(key)
  local value, wrong = read(key)
  if wrong then return nil, wrong end
  if not value then return 0 end
  local last = string.match(value, '^%d+$') and tonumber(value)
  if not last or last > MAX_WHOLE then return nil, corrupt(key, 'does not hold a token') end
  return last
end

-- The token after last. It is at least Redis's clock, so tokens rise even after Redis has lost the last one. A result
-- above MAX_WHOLE means that the tokens are exhausted.
local function next_token(last, now)
  return math.max(last + 1, now)
end

-- Revocations ----------------------------------------------------------------------------------------------------------

-- The key ended is a sorted set of recent revocations, "<lease id>:<token>:...". The former holder finds its entry
-- there when it next renews or releases. A newer revocation has a higher score.
local MOST_REVOKED = 100 -- entries kept for a resource
local MINUTE = 60000

local function was_revoked(ended, name)
  for _, entry in ipairs(typed('zset', 'ZRANGE', ended, 0, -1) or {}) do
    if string.sub(entry, 1, #name) == name then return true end
  end
  return false
end

-- Adds a revocation. left is the time that the lease had left, in milliseconds: the entry is kept at least for so long.
local function note_revoked(ended, entry, score, left)
  redis.call('ZADD', ended, digits(score), entry)
  redis.call('ZREMRANGEBYRANK', ended, 0, -1 - MOST_REVOKED)
  redis.call('PEXPIRE', ended, digits(math.max(left, redis.call('PTTL', ended), MINUTE)))
end

-- Waiters --------------------------------------------------------------------------------------------------------------
--
-- A waiter is an acquisition that waits; its lease id identifies it. A request that arrives after the withdrawal of its
-- acquisition is granted or queued like any other, which may block the resource for one TTL.
--
--   queue  sorted set: the lease ids of the waiters, by arrival (microseconds)
--   alive  hash: for each of them "<until>:<asked>:<turn>:<look>@<listener>", in milliseconds
--            until  when the waiter counts as dead, unless it has asked again by then
--            asked  when its latest request was answered, rounded up
--            turn   until when it has the right of way, if it was called since it asked; 0: it was not called;
--                   1: it has let a turn in this queue lapse
--            look   when it will ask by itself, as Redis has told it
--
-- A listener is a process. Only this process subscribes to "<channel>:<listener>". The channel has the name of the
-- queue with "wake" instead of "queue". The messages are
--   'free <id>'       it is your turn: ask now
--   'look <id> <ms>'  the waiter before you was called: ask in ms milliseconds, because it may not have heard
-- An empty message has no meaning.
--
-- A waiter that asks only after its turn has lapsed loses the right of way for good: it may be so far away that the
-- resource would stand idle at each of its turns. It is still called, and gets the lease if the resource is free when
-- its request arrives.
--
-- A waiter whose process does not listen is skipped and keeps its place: the process may be reconnecting, and will ask
-- then. A waiter that asked a moment ago is not skipped, because it is just about to listen. A waiter whose turn has
-- lapsed keeps its place too, without right of way, until it asks. The later waiters of its listener are skipped as
-- well if they have not asked since: their process was stopped, or is cut off.

-- In milliseconds. Part of the protocol: all clients of a resource must agree.
local PATIENCE = 5000     -- a waiter asks again at least this often, whatever it was told
local GRACE = 1000        -- a waiter that is later than this counts as dead
local ANSWER = 500        -- how long a waiter that was called has the right of way
local FRESH = 250         -- how long a waiter may take from its request until it listens

local LATE = 1 -- the turn of a waiter that has let a turn lapse

local MOST_TOLD = 9 -- waiters that one wake tells: it calls one, and the others look; also the places read at first
local LOOK = 500 -- places that one script visits at most; the next script gets further

local function queue_fault(q)
  return mistyped(q.queue, 'zset') or mistyped(q.alive, 'hash')
end

-- The first lease ids in the queue. The second result is the reply if the queue is corrupt.
local function front_of(queue)
  return typed('zset', 'ZRANGE', queue, 0, MOST_TOLD - 1)
end

-- Removes waiters. A corrupt key stays as it is.
local function leave(q, ...)
  if select('#', ...) == 0 then return end
  q.front = nil
  typed('zset', 'ZREM', q.queue, ...)
  typed('hash', 'HDEL', q.alive, ...)
end

local function entry_of(w)
  return table.concat({digits(w.till), digits(w.asked), digits(w.turn), digits(w.look) .. '@' .. w.listener}, ':')
end

local function waiter(id, entry)
  local till, asked, turn, look, listener = string.match(entry or '', '^(%d+):(%d+):(%d+):(%d+)@(.*)$')
  return till and {id = id, till = tonumber(till), asked = tonumber(asked), turn = tonumber(turn), look = tonumber(look),
    listener = listener}
end

-- Puts the waiter at the end of the queue; one that is in the queue keeps its place. It is to ask again after wait
-- milliseconds. Returns the reply if a key is corrupt; then nothing was changed.
local function enqueue(q, mine, listener, wait)
  local ms = math.floor(q.now / 1000)
  local new, wrong = typed('zset', 'ZADD', q.queue, 'NX', digits(q.now), mine)
  if wrong then return wrong end
  local late = false
  if new == 0 then
    local old = waiter(mine, (typed('hash', 'HMGET', q.alive, mine) or {})[1])
    late = old and old.turn > 0 and old.turn <= ms
  end
  local w = {till = ms + wait + GRACE, asked = math.ceil(q.now / 1000), turn = late and LATE or 0, look = ms + wait,
    listener = listener}
  wrong = select(2, typed('hash', 'HSET', q.alive, mine, entry_of(w)))
  if wrong then
    if new == 1 then redis.call('ZREM', q.queue, mine) end
    return wrong
  end
  redis.call('PEXPIRE', q.queue, PATIENCE + GRACE)
  redis.call('PEXPIRE', q.alive, PATIENCE + GRACE)
end

-- The number of living waiters.
local function waiters(q)
  local ms, n = math.floor(q.now / 1000), 0
  for _, entry in ipairs(redis.call('HVALS', q.alive)) do
    if (tonumber(string.match(entry, '^%d+')) or 0) > ms then n = n + 1 end
  end
  return n
end

-- Visits the living waiters in order, until visit returns true or the walk reaches the waiter mine. It skips waiters
-- whose turn has lapsed. It removes dead waiters, waiters that claim to live longer than is possible (Redis's clock was
-- set back since), and waiters without an entry in alive (that key was evicted). It writes the waiters that visit marks
-- as changed.
--
-- If LOOK places were not enough, it returns their waiters that are left, perhaps none; the caller removes them, so
-- that the next script gets further. The second result is the reply if a key is corrupt. A script that has read the
-- front of the queue before puts it into q.front, which saves reading it again.
local function walk(q, mine, visit)
  local ms = math.floor(q.now / 1000)
  local dropped, kept, lapsed, changed = {}, {}, {}, {}
  local from, size, stopped = 0, MOST_TOLD, false
  repeat
    local ids, entries, wrong = from == 0 and q.front, {}, nil
    if not ids then ids, wrong = typed('zset', 'ZRANGE', q.queue, from, from + size - 1) end
    if not wrong and #ids > 0 and ids[1] ~= mine then entries, wrong = typed('hash', 'HMGET', q.alive, unpack(ids)) end
    if wrong then return nil, wrong end
    for n, id in ipairs(ids) do
      local w = waiter(id, entries[n])
      if id == mine then
        stopped = true
      elseif not w or w.till <= ms or w.till > ms + PATIENCE + GRACE then
        dropped[#dropped + 1] = id
      else
        kept[#kept + 1] = id
        if w.turn > LATE and w.turn <= ms then
          lapsed[w.listener] = math.max(w.turn, lapsed[w.listener] or 0)
        elseif w.asked > (lapsed[w.listener] or 0) then
          stopped = visit(w)
          if w.changed then
            changed[#changed + 1] = id
            changed[#changed + 1] = entry_of(w)
          end
        end
      end
      if stopped then break end
    end
    from = from + #ids
    local more = #ids == size
    size = math.min(4 * size, 128, LOOK - from)
  until stopped or not more or size <= 0
  leave(q, unpack(dropped))
  if #changed > 0 then redis.call('HSET', q.alive, unpack(changed)) end
  if not stopped and from >= LOOK then return kept end
end

-- Sends news to the waiter, and returns whether its process listens. A process whose connection broke unnoticed counts
-- as listening. If the ACL of this script's caller forbids publishing, nobody counts as listening.
local function tell(q, w, news)
  local heard = redis.pcall(q.publish, q.channel .. ':' .. w.listener, news)
  return type(heard) == 'number' and heard > 0
end

-- Calls the waiter. Returns for how many milliseconds it has the right of way; nil if it has none.
local function call(q, w)
  local ms = math.floor(q.now / 1000)
  if w.turn == LATE then
    tell(q, w, 'free ' .. w.id)
    return nil
  end
  if not tell(q, w, 'free ' .. w.id) then
    local left = w.asked + FRESH - ms
    if left > 0 and left <= FRESH + 1 then return left end -- asked was rounded up
    return nil
  end
  if w.turn == 0 or w.turn > ms + ANSWER then -- the latter if Redis's clock was set back
    w.turn, w.changed = ms + ANSWER, true
  end
  return w.turn - ms
end

-- Calls the first waiter that listens. It tells the next eight waiters when to ask, one of each listener, and goes on
-- to more if none of them listens. A waiter that will ask by then anyway is not told again: so where many wait for
-- short work, a hand-over costs one message.
local function wake(q)
  q.now = q.now or clock()
  local wait
  local told, few, looks = {}, MOST_TOLD - 1, false
  local deaf = walk(q, nil, function(w)
    if not wait then
      wait = call(q, w)
      told[w.listener] = wait
      return false
    end
    few = few - 1
    if not told[w.listener] then
      told[w.listener] = true
      local ms = math.floor(q.now / 1000)
      local look = math.max(math.min(ms + wait, w.till - GRACE / 4), ms + 1) -- while it counts as alive
      if w.look > ms and w.look <= look then
        looks = true
      elseif tell(q, w, 'look ' .. w.id .. ' ' .. digits(look - ms)) then
        w.look, w.changed, looks = look, true, true
      end
    end
    return few <= 0 and looks
  end)
  if deaf and not wait then leave(q, unpack(deaf)) end
end

-- Milliseconds after which to ask again for a free resource, because a waiter before this one has the right of way; nil
-- if it is this one's turn. The second result is the reply if a key is corrupt.
local function before(q, mine)
  local wait
  local deaf, wrong = walk(q, mine, function(w)
    wait = call(q, w) -- an earlier message may have been lost
    return wait ~= nil
  end)
  if not deaf then return wait, wrong end
  leave(q, unpack(deaf))
  return 1
end
