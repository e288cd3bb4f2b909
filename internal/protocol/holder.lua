-- holder.lua: the one holder of a lease. It is put behind common.lua. The key owner is "<lease id>:<token>:<call>,<call>".

-- In milliseconds: how long a lease that was handed over lasts until its holder renews it. Part of the protocol.
local PROVISIONAL = 1000

-- The holder as {id, token (string), calls}, or nil if the resource is free. The second result is the reply if the key
-- is corrupt.
local function read_owner(key)
  local value, wrong = read(key)
  if not value then return nil, wrong end
  local id, token, calls = string.match(value, '^([%x%-]+):([1-9]%d*):([%w%-,]+)$')
  if not id or #id ~= 36 or #token > 16 then return nil, corrupt(key, 'does not hold a lease id, a token and a call') end
  return {id = id, token = token, calls = calls}
end

-- The holder as above with left, the milliseconds until its lease expires.
local function read_owner_and_left(key)
  local held, wrong = read_owner(key)
  if not held then return nil, wrong end
  held.left = redis.call('PTTL', key)
  if held.left < 0 then return nil, corrupt(key, 'has no expiry') end
  return held
end

-- Writes the token before the owner, so that there is no owner without its token.
local function grant(owner, fence, id, token, calls, ttl, retention)
  redis.call('SET', fence, digits(token), 'PX', digits(retention))
  redis.call('SET', owner, id .. ':' .. digits(token) .. ':' .. calls, 'PX', digits(ttl))
end

-- The key ended holds the latest revocation, "<lease id>:<token>:<revocation id>:<new token>:<1 if that ended it>", for
-- the former holder to find.
local function was_revoked(ended, id, token)
  local me = id .. ':' .. token .. ':'
  local latest = redis.pcall('GET', ended)
  return type(latest) == 'string' and string.sub(latest, 1, #me) == me
end

-- Grants what is free to the first waiter that listens, without a request of that waiter.
--
-- The lease is provisional: it lasts for PROVISIONAL milliseconds at most, and the next renewal of its holder makes it
-- full. So a holder that was stopped, or cut off while its connection seems to stand, costs no more than that. The
-- holder counts the time from its latest request, the last moment at which its clock and Redis's met.
local function hand_over(q, owner, fence, retention)
  wake(q, function(_, w)
    -- Ask first whether it listens. PUBLISH may count no listener although one hears the message through a replica,
    -- and such a message must not grant.
    if not tell(q, w, '') then return fresh(q, w) end
    local last = read_fence(fence)
    local token = last and next_token(last, q.now)
    if not token or token > MAX_WHOLE then return call(q, w) end -- the next acquisition reports the problem
    local ttl = math.min(tonumber(w.ttl), PROVISIONAL)
    grant(owner, fence, w.id, token, w.call, ttl, retention)
    w.gone = true
    local since = math.max(math.floor(q.now / 1000) - w.asked, 0)
    tell(q, w, 'granted ' .. w.call .. ' ' .. w.request .. ' ' .. digits(token) .. ' ' .. digits(since + ttl))
    return ttl
  end)
end
