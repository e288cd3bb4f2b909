-- forget.lua: removes a recorded result. A claim in flight is left alone.
--
-- KEYS[1] record
--
-- Returns {'forgotten'}  there is no recorded result now
--         {'corrupt', key, problem}

local record = KEYS[1]
local problem = mistyped(record, 'hash')
if problem then return corrupt(record, problem) end
redis.call('DEL', record)
return {'forgotten'}
