-- limit.lua: changes how many may hold at once, for all programs from now on. Holders are left alone: above a lower limit, places
-- come free as they leave.
--
-- KEYS[1] limit   KEYS[2] queue
-- ARGV[1] the new limit, or 0 for what each program was configured with
-- ARGV[2] PUBLISH or SPUBLISH   ARGV[3] channel
--
-- Returns {'set'}
--         {'corrupt', key, problem}

local changed, queue = KEYS[1], KEYS[2]
local limit = whole(ARGV[1], 0, 'limit')

local problem = mistyped(changed, 'string')
if problem then return corrupt(changed, problem) end
problem = mistyped(queue, 'zset')
if problem then return corrupt(queue, problem) end
if limit == 0 then
  redis.call('DEL', changed)
else
  redis.call('SET', changed, digits(limit))
end
tell_first(queue, ARGV[2], ARGV[3]) -- there may be room now
return {'set'}
