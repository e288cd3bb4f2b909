-- once_forget.lua: removes a recorded result. A claim in flight is left alone.
--
-- KEYS[1] record
--
-- Returns {'forgotten'}  there is no recorded result now
--         {'corrupt', key, problem}

expect(1, 0)
local record = KEYS[1]
local wrong = mistyped(record, 'hash')
if wrong then return wrong end
redis.call('DEL', record)
return {'forgotten'}
