-- semaphore_revoke.lua: ends one holder and calls the first waiter that listens. For operators, and for supervisors that take
-- a holder for dead.
--
-- KEYS[1] owner   KEYS[2] ended   KEYS[3] queue   KEYS[4] alive
-- ARGV[1] lease id
-- ARGV[2] PUBLISH or SPUBLISH   ARGV[3] channel
--
-- Returns {'revoked'}  it held, or this was asked before; it holds no more
--         {'gone'}     it does not hold. Nothing was changed.
--         {'corrupt', key, problem}

expect(4, 3)
fields(1, 'owner', 'ended', 'queue', 'alive')
local owner, ended = KEYS[1], KEYS[2]
local name = uuid(ARGV[1], 'lease id') .. ':'
local q = queue_of(KEYS[3], KEYS[4], ARGV[2], ARGV[3])
local MINUTE = 60000

local wrong = mistyped(owner, 'zset') or mistyped(ended, 'zset') or queue_fault(q)
if wrong then return wrong end
q.now = clock()
local holder = find_living(owner, name, q.now)
if not holder then
  if find(ended, name, '-inf') then return {'revoked'} end
  return {'gone'}
end
local left = redis.call('PTTL', owner)
redis.call('ZREM', owner, holder)
-- For the holder to find. It looks before its time would have been over.
redis.call('ZADD', ended, digits(q.now), holder)
redis.call('ZREMRANGEBYSCORE', ended, '-inf', digits(q.now - 1000 * math.max(left, MINUTE)))
redis.call('PEXPIRE', ended, digits(math.max(left, MINUTE)))
wake(q)
return {'revoked'}
