-- common.lua: what every script of the protocol starts with, those of leases and of the blocks beside them. It is put
-- in front of each of them before they are loaded, and does nothing by itself.
--
-- Rules that all scripts keep:
--   * Arguments are checked before anything else: how many KEYS and ARGV there are, what each must be. A wrong one is
--     a client's error and ends the script with an error reply; nothing was changed.
--   * Types are checked before the first write: Redis does not roll a script back.
--   * Time comes from Redis only. Clients send durations, never points in time.
--   * Only the KEYS given are touched, and all of them share one hash tag, so one Cluster slot.
--   * Every reply is an array of strings whose first element says what happened. Any script may answer
--       {'corrupt', key, problem}   a key of the protocol holds something else; nothing was changed
--   * Lua numbers are doubles: exact up to 2^53, printed by tostring as 1.79e+15. Tokens and times stay below
--     2^53 and are printed by the function digits.

local MAX_WHOLE = 9007199254740991 -- 2^53 - 1

local function digits(n)
  return string.format('%.0f', n)
end

local function refuse(problem)
  error('fencedb: ' .. problem .. '; nothing was changed')
end

local function expect(keys, args)
  if #KEYS ~= keys or #ARGV ~= args then
    refuse('takes ' .. keys .. ' keys and ' .. args .. ' arguments, got ' .. #KEYS .. ' and ' .. #ARGV)
  end
end

-- The argument as a whole number between least and MAX_WHOLE.
local function whole(arg, least, name)
  local n = string.match(arg, '^%d+$') and tonumber(arg)
  if not n or n < least or n > MAX_WHOLE then
    refuse(name .. ' must be a whole number from ' .. least .. ' to 2^53-1, got ' .. arg)
  end
  return n
end

local function one_of(arg, first, second, third, name)
  if arg ~= first and arg ~= second and arg ~= third then refuse(name .. ' is unknown: ' .. arg) end
  return arg
end

-- A UUID in lower case, as all clients must write it: scripts compare ids as text.
local function uuid(arg, name)
  if #arg ~= 36 or not string.match(arg, '^[%da-f]+%-[%da-f]+%-[%da-f]+%-[%da-f]+%-[%da-f]+$')
    or string.sub(arg, 9, 9) .. string.sub(arg, 14, 14) .. string.sub(arg, 19, 19) .. string.sub(arg, 24, 24) ~= '----' then
    refuse(name .. ' must be a UUID in lower case, got ' .. arg)
  end
  return arg
end

-- The name of a call, or of a listener.
local function name_of(arg, name)
  if #arg > 64 or not string.match(arg, '^[%w%-]+$') then refuse(name .. ' must be of letters, digits and dashes, got ' .. arg) end
  return arg
end

local function channel_of(arg)
  if arg == '' then refuse('channel is empty') end
  return arg
end

local function corrupt(key, problem)
  return {'corrupt', key, problem}
end

-- The reply if the key holds another type than the one wanted; nil if it does not exist or fits.
local function mistyped(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'none' and kind ~= wanted then return corrupt(key, 'is a ' .. kind .. ', not a ' .. wanted) end
end

-- Redis time in microseconds.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end
