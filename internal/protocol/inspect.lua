-- inspect.lua: returns what Redis knows about a resource. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
--
-- Returns {'inspected', lease id, token, milliseconds left, last token, milliseconds it is remembered, waiters,
--          revoked, label}
--           If nobody holds, lease id and label are '', token and milliseconds left '0'. The last token is '0' if Redis
--           remembers none; it is remembered for '-1' if it never expires, '-2' if there is none. revoked is the latest
--           revocation, "<lease id>:<token>:<revocation id>:<new token>", or ''.
--         {'corrupt', key, problem}

expect(5, 0)
fields(1, 'owner', 'fence', 'queue', 'alive', 'ended')
local owner, fence, ended = KEYS[1], KEYS[2], KEYS[5]
local q = {queue = KEYS[3], alive = KEYS[4]}

local held, wrong = read_owner_and_left(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
wrong = wrong or queue_fault(q) or mistyped(ended, 'zset')
if wrong then return wrong end

local revoked = redis.call('ZRANGE', ended, -1, -1)[1] or ''
if revoked ~= '' and not string.find(revoked, '^[%x%-]+:%d+:[%x%-]+:[1-9]%d*$') then return corrupt(ended, 'does not hold a revocation') end
held = held or {id = '', token = '0', left = 0, label = ''}
q.now = clock()
return {'inspected', held.id, held.token, digits(held.left), digits(last), digits(redis.call('PTTL', fence)), digits(waiters(q)),
  revoked, held.label}
