-- holder.lua: the helpers of the scripts of leases. The loader puts it after common.lua. The key owner holds "<lease
-- id>:<token>:<label>".

-- The holder as {id, token (string), label}, or nil if the resource is free. The second result is the reply if the key
-- is corrupt.
local function read_owner(key)
  local value, wrong = read(key)
  if not value then return nil, wrong end
  local id, token, label = string.match(value, '^([%x%-]+):([1-9]%d*):([%w%-]+)$')
  if not id or #id ~= 36 or #token > 16 then return nil, corrupt(key, 'does not hold a lease id, a token and a label') end
  return {id = id, token = token, label = label}
end

-- The same, with left: the milliseconds until the lease expires.
local function read_owner_and_left(key)
  local held, wrong = read_owner(key)
  if not held then return nil, wrong end
  held.left = redis.call('PTTL', key)
  if held.left < 0 then return nil, corrupt(key, 'has no expiry') end
  return held
end
