-- semaphore_inspect.lua: returns the holders of a resource. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] alive
--
-- Returns {'inspected', waiters, "<lease id>:<token>:<label>", milliseconds left, ...}  the last two for each holder,
--                     the next to expire first
--         {'corrupt', key, problem}

expect(2, 0)
fields(1, 'owner', 'alive')
local owner = KEYS[1]
local q = {alive = KEYS[2], now = clock()}
local all, wrong = living(owner, q.now)
wrong = wrong or mistyped(q.alive, 'hash')
if wrong then return wrong end
local reply = {'inspected', digits(waiters(q))}
for n, word in ipairs(all) do
  if n % 2 == 1 then
    local id, token = string.match(word, '^([%x%-]+):([1-9]%d*):[%w%-]+$')
    if not id or #id ~= 36 or #token > 16 then return corrupt(owner, 'does not hold a lease id, a token and a label') end
  end
  reply[n + 2] = n % 2 == 1 and word or digits(math.ceil((tonumber(word) - q.now) / 1000))
end
return reply
