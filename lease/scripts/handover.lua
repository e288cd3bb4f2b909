-- handover.lua: what is free goes to the first waiter that listens, without a request of its own. It is put behind
-- owner.lua and queue.lua.
--
-- The lease is provisional, for PROVISIONAL milliseconds at most; its holder makes it full by the renewal that it sends
-- next. So one that was stopped, or cut off while its connection seems to stand, costs no more than that. How long it
-- lasts is counted, for the holder, from its latest request, the last moment at which its clock and Redis's met.

-- Whether anybody waits. What stands last in the queue waits, or nobody does.
local function is_waited_for(q)
  local last = redis.pcall('ZRANGE', q.queue, -1, -1)[1]
  return last and string.sub(last, 1, 1) ~= '!' and not mistyped(q.alive, 'hash')
end

local function hand_over(q, owner, fence, retention)
  local last = read_fence(fence)
  local token = last and next_token(last, q.now)
  if not token or token > MAX_WHOLE then return wake(q, call) end -- for the next acquisition to report
  wake(q, function(_, w)
    -- First whether it listens: a message that Redis counts as heard by nobody may be heard all the same, through a
    -- replica, and must not grant.
    if not tell(q, w, '') then return fresh(q, w) end
    local ttl = math.min(tonumber(w.ttl), PROVISIONAL)
    grant(owner, fence, w.id, token, w.call, ttl, retention)
    w.gone = true
    local since = math.max(math.floor(q.now / 1000) - w.asked, 0)
    tell(q, w, 'granted ' .. w.call .. ' ' .. w.request .. ' ' .. digits(token) .. ' ' .. digits(since + ttl))
    return ttl
  end)
end
