-- holders.lua: the helpers of the scripts of semaphores. The loader puts it after common.lua.
--
-- The key owner is a sorted set of holders, "<lease id>:<token>:<label>", by the expiry of their permits in
-- microseconds of Redis's clock. A holder whose permit has expired is not counted; the next grant removes it.

-- The holders whose permits have not expired, the next to expire first: each holder is followed by its expiry. The
-- second result is the reply if the key is corrupt.
local function living(owner, now)
  return typed('zset', 'ZRANGEBYSCORE', owner, '(' .. digits(now), '+inf', 'WITHSCORES')
end

-- The holder in all that begins with name, "<lease id>:" or "<lease id>:<token>:", and its token; nil if there is none.
local function find(all, name)
  for n = 1, #all, 2 do
    if string.sub(all[n], 1, #name) == name then
      return all[n], string.match(all[n], ':(%d+):')
    end
  end
end

-- Grants or renews the holder's permit for ttl milliseconds from now. The key expires with its last permit.
local function hold(owner, holder, now, ttl)
  redis.call('ZADD', owner, digits(now + ttl * 1000), holder)
  if redis.call('PTTL', owner) < ttl then redis.call('PEXPIRE', owner, digits(ttl)) end
end
