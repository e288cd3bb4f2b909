-- holders.lua: what the scripts of semaphores share. It is put behind common.lua.
--
-- The key owner is a sorted set of holders, "<lease id>:<token>:<label>", by the end of their time in microseconds
-- of Redis's clock. A holder whose end has passed holds nothing and is not counted; the next grant drops it.

-- The living holders, each as it stands in the set and the end of its time, the one that ends next in front. The second
-- result is the reply if the key is corrupt.
local function living(owner, now)
  return typed('zset', 'ZRANGEBYSCORE', owner, '(' .. digits(now), '+inf', 'WITHSCORES')
end

-- The one of them with that name, "<lease id>:" or "<lease id>:<token>:", and its token; nil if there is
-- none.
local function find(all, name)
  for n = 1, #all, 2 do
    if string.sub(all[n], 1, #name) == name then
      return all[n], string.match(all[n], ':(%d+):')
    end
  end
end

-- Lets the holder hold for ttl milliseconds from now. The key lives as long as the last of its holders.
local function hold(owner, holder, now, ttl)
  redis.call('ZADD', owner, digits(now + ttl * 1000), holder)
  if redis.call('PTTL', owner) < ttl then redis.call('PEXPIRE', owner, digits(ttl)) end
end
