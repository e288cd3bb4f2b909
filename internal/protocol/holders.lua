-- holders.lua: what the scripts of semaphores share. It is put behind common.lua.
--
-- The key owner is a sorted set of holders, "<lease id>:<token>:<call>,<call>", by the end of their time in microseconds
-- of Redis's clock. A holder whose end has passed holds nothing; the next script that counts drops it.

-- Writes only if there is something to drop: the first write of a script decides whether a server without memory allows the
-- others.
local function drop_dead(owner, now)
  if redis.call('ZCOUNT', owner, '-inf', digits(now)) > 0 then
    redis.call('ZREMRANGEBYSCORE', owner, '-inf', digits(now))
  end
end

-- The holder with that name, "<lease id>:" or "<lease id>:<token>:", as it stands in the set, its token and its calls;
-- nil if there is none whose score is from the one given on.
local function find(set, name, from)
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', set, from, '+inf')) do
    if string.sub(holder, 1, #name) == name then return holder, string.match(holder, ':(%d+):([%w%-,]+)$') end
  end
end

local function find_living(owner, name, now) return find(owner, name, '(' .. digits(now)) end

-- The limit if it was changed, nil if not. The second result is the reply if the key is corrupt.
local function read_limit(key)
  local value, wrong = read(key)
  if not value then return nil, wrong end
  local limit = string.match(value, '^[1-9]%d*$') and tonumber(value)
  if not limit or limit > MAX_WHOLE then return nil, corrupt(key, 'does not hold a limit') end
  return limit
end

-- Lets the holder hold for ttl milliseconds from now. The key lives as long as the last of its holders.
local function hold(owner, holder, now, ttl)
  redis.call('ZADD', owner, digits(now + ttl * 1000), holder)
  if redis.call('PTTL', owner) < ttl then redis.call('PEXPIRE', owner, digits(ttl)) end
end

-- Holders that were revoked lately are kept in the key ended, by when.
local function lost(ended, name)
  if not mistyped(ended, 'zset') and find(ended, name, '-inf') then return {'revoked'} end
  return {'gone'}
end
