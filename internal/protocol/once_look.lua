-- once_look.lua: returns the state of a key. Changes nothing.
--
-- KEYS[1] owner, of the lease that claims the key   KEYS[2] record
--
-- Returns {'done', fingerprint, result, milliseconds}   the result is recorded, and replayed for that time, '-1': for
--                                                       ever; fingerprint is '' if the run had no request
--         {'running', lease id, token, milliseconds, label}   the key is claimed, for that time unless the claim is
--                                                       renewed; label is that of the runner
--         {'absent'}                                    there is neither a result nor a claim
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
