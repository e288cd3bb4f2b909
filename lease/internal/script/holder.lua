-- holder.lua: tokens and calls, for the scripts by which somebody holds. It is put behind common.lua.

-- The string at the key, nil if there is none; and the reply, if that is wrong.
local function read(key)
  local value = redis.pcall('GET', key) -- spares the question for the type
  if type(value) == 'string' then return value end
  if not value then return nil end
  return nil, mistyped(key, 'string') or error(value)
end

-- The last token issued, 0 when none is known; and the reply, if that is wrong.
local function read_fence(key)
  local value, wrong = read(key)
  if wrong then return nil, wrong end
  if not value then return 0 end
  local last = string.match(value, '^%d+$') and tonumber(value)
  if not last or last > MAX_WHOLE then return nil, corrupt(key, 'does not hold a token') end
  return last
end

-- The token after last: the clock is the floor, so that a counter that was lost does not start again from 1. Above
-- MAX_WHOLE there is none.
local function next_token(last, now)
  return math.max(last + 1, now)
end

-- A call is one acquisition by a program, with a name of its own that all its requests and its withdrawal carry. A
-- holder is named by its lease id; calls that asked for one lease id share the lease, and are listed with it,
-- "<call>,<call>", the newest last. So the withdrawal of a call ends what nobody else has asked for, and nothing more.
local MOST_CALLS = 8 -- listed; the withdrawal of one that was before those finds nothing

-- Whether the call is one of those listed.
local function lists(calls, call)
  return string.find(',' .. calls .. ',', ',' .. call .. ',', 1, true)
end

local function add_call(calls, call)
  if lists(calls, call) then return calls end
  local _, commas = string.gsub(calls, ',', ',')
  if commas + 1 >= MOST_CALLS then calls = string.gsub(calls, '^[^,]*,', '') end
  return calls .. ',' .. call
end

-- The calls that are left; nil if there is none.
local function remove_call(calls, call)
  local left = {}
  for each in string.gmatch(calls, '[^,]+') do
    if each ~= call then left[#left + 1] = each end
  end
  if #left > 0 then return table.concat(left, ',') end
end
