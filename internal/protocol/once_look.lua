-- once_look.lua: the state of a key. Changes nothing.
--
-- KEYS[1] owner, of the lease on the key   KEYS[2] record
--
-- Returns {'done', fingerprint, result, milliseconds}   a result is recorded and replayed for so long, '-1': for ever;
--                                                       fingerprint is '' if the first caller gave no request
--         {'running', lease id, token, milliseconds, label}   claimed, for so long unless it is renewed; the label says
--                                                       who runs it
--         {'absent'}
--         {'corrupt', key, problem}

expect(2, 0)
local owner, record = KEYS[1], KEYS[2]

local wrong = mistyped(record, 'hash')
if wrong then return wrong end
local done = redis.call('HMGET', record, 'by', 'fingerprint', 'result')
if done[1] then
  if not (done[2] and done[3]) then return corrupt(record, 'lacks a field') end
  return {'done', done[2], done[3], digits(redis.call('PTTL', record))}
end

local held
held, wrong = read_owner_and_left(owner)
if wrong then return wrong end
if not held then return {'absent'} end
return {'running', held.id, held.token, digits(held.left), held.label}
