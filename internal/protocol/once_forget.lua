-- once_forget.lua: removes a recorded result. It does not touch a claim.
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
