-- common.lua: what every script of the blocks beside the lease starts with. It is put in front of each of them before they are
-- loaded, and does nothing by itself. The rules are those of the lease's scripts:
--   * Types and arguments are checked before the first write: Redis does not roll a script back.
--   * Time comes from Redis only. Clients send durations, never points in time.
--   * Only the KEYS given are touched, and all of them share one hash tag, so one Cluster slot.
--   * Every reply is an array of strings whose first element says what happened. Any script may answer
--       {'corrupt', key, problem}   a key of the protocol holds something else; nothing was changed

local MAX_WHOLE = 9007199254740991 -- 2^53 - 1, what a Lua number holds exactly

-- tostring would print 1.79e+15.
local function digits(n)
  return string.format('%.0f', n)
end

local function corrupt(key, problem)
  return {'corrupt', key, problem}
end

-- The argument as a whole number of at least least. Anything else is a client's error and ends the script.
local function whole(arg, least, name)
  local n = tonumber(arg)
  if not n or n ~= math.floor(n) or n < least or n > MAX_WHOLE then
    error(name .. ' must be a whole number from ' .. least .. ' to 2^53-1, got ' .. tostring(arg))
  end
  return n
end

-- What is wrong if the key holds another type than the one wanted; nil if it does not exist or fits.
local function mistyped(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then return 'is a ' .. kind .. ', not a ' .. wanted end
end
