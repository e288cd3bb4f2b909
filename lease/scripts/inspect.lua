-- inspect.lua: what Redis knows about a resource, for people. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
--
-- Returns {'inspected', lease id, token, milliseconds left, last token, milliseconds it is remembered, waiters, revoked}
--           lease id '', token '0', left '0' if nobody holds; last token '0' if none is known; milliseconds '-1': for ever;
--           revoked: "<lease id>:<token>:<revocation id>:<new token>" of a recent revocation, or ''
--         {'corrupt', key, problem}

local owner, fence, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local held, fault = read_owner_and_left(owner)
if fault then return corrupt(fault) end
local last
last, fault = read_fence(fence)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive) or mistyped(ended, 'string')
if fault then return corrupt(fault) end

held = held or {id = '', token = '0', left = 0}
local waiters = redis.call('ZCOUNT', alive, '(' .. digits(math.floor(clock() / 1000)), '+inf')
return {'inspected', held.id, held.token, digits(held.left), digits(last), digits(redis.call('PTTL', fence)), digits(waiters),
  redis.call('GET', ended) or ''}
