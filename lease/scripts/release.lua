-- release.lua: gives the exact lease back. If somebody waits and listens, the first of them has it from that moment on and is told its
-- token; so a hand-over needs no request of the one that it goes to.
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] queue   KEYS[4] alive   KEYS[5] ended
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] call   ARGV[4] 'unsure' if a request of that call to acquire it may still be under way, which shall do nothing; 'sure' if not
-- ARGV[5] ttl of a lease that is handed over, milliseconds, > 0   ARGV[6] fence retention, milliseconds, > 0
-- ARGV[7] PUBLISH or SPUBLISH   ARGV[8] channel
--
-- Returns {'released'}  it was held, and is free now or another's
--         {'gone'}      nobody holds the resource: the lease ran out, or its key was lost. Nothing was changed.
--         {'taken'}     another lease holds the resource. Nothing was changed.
--         {'revoked'}   this lease was revoked. Nothing was changed.
--         {'corrupt', key, problem}
--
-- Publishes 'granted <call> <token> <ttl>' to the first waiter; 'free <call>', with right of way, if it does not listen.

local owner, fence, queue, alive, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, token, call_id, publish, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[7], ARGV[8]
local unsure = ARGV[4] == 'unsure'
local ttl = whole(ARGV[5], 1, 'ttl')
local retention = whole(ARGV[6], 1, 'fence retention')
local now = clock()

local held, fault = read_owner(owner)
if fault then return corrupt(fault) end
fault = queue_fault(queue, alive)
if fault then return corrupt(fault) end

if unsure then forget_call(queue, call_id, now) end
if not held or held.id ~= id or held.token ~= token then
  fault = mistyped(ended, 'string')
  if fault then return corrupt(fault) end
  if was_revoked(ended, id, token) then return {'revoked'} end
  if held then return {'taken'} end
  return {'gone'}
end

-- Gives what is free to the waiter, if that hears of it.
local function hand_over(waiter, now)
  local last = read_fence(fence)
  local next = last and next_token(last, now)
  if not next or next > MAX_TOKEN then return false end -- for the next acquisition to report
  if not tell(waiter, publish, channel, 'granted', ' ' .. digits(next) .. ' ' .. digits(ttl)) then return false end
  local waiter_id, waiter_call = string.match(waiter, '^([^:]*):([^@]*)')
  grant(owner, fence, waiter_id, next, waiter_call, ttl, retention)
  leave(queue, alive, waiter)
  return true
end

redis.call('DEL', owner) -- first: a server that refuses writes refuses here; without memory it lets the others pass after this one
local head, living = first(queue, alive, now)
if head and not hand_over(head, now) then call(head, living, alive, now, publish, channel) end
return {'released'}
