-- semaphore_limit.lua: changes how many may hold at once, for all programs from now on. Holders keep their permits: above a
-- lower limit, permits come free as they are released.
--
-- KEYS[1] limit   KEYS[2] queue   KEYS[3] alive
-- ARGV[1] the new limit, or 0 for what each program was configured with
-- ARGV[2] PUBLISH or SPUBLISH
--
-- Returns {'set'}
--         {'corrupt', key, problem}

expect(3, 2)
fields(1, 'limit', 'queue', 'alive')
local changed = KEYS[1]
local limit = whole(ARGV[1], 0, 'limit')
local q = queue_of(KEYS[2], KEYS[3], ARGV[2])

local wrong = mistyped(changed, 'string') or queue_fault(q)
if wrong then return wrong end
if limit == 0 then
  redis.call('DEL', changed)
else
  redis.call('SET', changed, digits(limit))
end
q.now = clock()
wake(q) -- there may be room now
return {'set'}
