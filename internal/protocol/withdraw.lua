-- withdraw.lua: ends an acquisition whose caller has given up: it leaves the queue, and loses the lease if the
-- reply to the grant was lost. Lease id and call identify it; the caller does not know the token. A lease that another
-- call has asked for too, by the same id, stays. What is free then goes to the first waiter that listens, as in a
-- release, because the waiter that leaves may have been called already.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive
-- ARGV[1] lease id   ARGV[2] call
-- ARGV[3] 'unsure' if a request of that call may still be under way, which shall do nothing; 'sure' if not
-- ARGV[4] fence retention, milliseconds, > 0
-- ARGV[5] PUBLISH or SPUBLISH   ARGV[6] channel
--
-- Returns {'withdrawn'}  this call neither holds nor waits
--         {'corrupt', key, problem}  of the owner; if another key is wrong, the acquisition is ended all the same

expect(4, 6)
local owner, fence = KEYS[1], KEYS[2]
local id, mine = uuid(ARGV[1], 'lease id'), name_of(ARGV[2], 'call')
local unsure = is_unsure(ARGV[3])
local retention = whole(ARGV[4], 1, 'fence retention')
local q = queue_of(KEYS[3], KEYS[4], ARGV[5], ARGV[6])

local held, wrong = read_owner(owner)
if wrong then return wrong end
q.now = clock()
if held and held.id == id and lists(held.calls, mine) then
  local calls = remove_call(held.calls, mine)
  if calls then
    redis.call('SET', owner, id .. ':' .. held.token .. ':' .. calls, 'KEEPTTL')
  else
    redis.call('DEL', owner)
    held = nil
  end
end
if unsure then
  forget_call(q, mine)
elseif not queue_fault(q) then
  leave(q, mine)
end
if not held then hand_over(q, owner, fence, retention) end
return {'withdrawn'}
