-- once_record.lua: records the result of the run that holds the claim. A run that has lost its claim records nothing.
--
-- KEYS[1] owner, of the lease that claims the key   KEYS[2] record
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] how long to replay the result, milliseconds, > 0
-- ARGV[4] fingerprint of the request, its SHA-256 in 32 bytes, '' if there is none   ARGV[5] result, any bytes
--
-- Returns {'recorded'}  the result of this run is recorded, and replayed for that time from now. The same request again
--                       gives the same answer, so a lost reply does no harm.
--         {'lost'}      this run does not hold the claim; nothing was changed
--         {'corrupt', key, problem}

expect(2, 5)
local owner, record = KEYS[1], KEYS[2]
local me = uuid(ARGV[1], 'lease id') .. ':' .. digits(whole(ARGV[2], 1, 'token'))
local keep = whole(ARGV[3], 1, 'time to replay')
if #ARGV[4] ~= 0 and #ARGV[4] ~= 32 then refuse('fingerprint must have 32 bytes, or none') end

local wrong = mistyped(record, 'hash') or mistyped(owner, 'string')
if wrong then return wrong end

if redis.call('HGET', record, 'by') ~= me then
  local held = redis.call('GET', owner) or ''
  if string.sub(held, 1, #me + 1) ~= me .. ':' then return {'lost'} end
  redis.call('HSET', record, 'by', me, 'fingerprint', ARGV[4], 'result', ARGV[5]) -- replaces all of an older result
end
redis.call('PEXPIRE', record, digits(keep))
return {'recorded'}
