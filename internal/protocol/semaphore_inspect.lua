-- semaphore_inspect.lua: who holds, for people. Changes nothing.
--
-- KEYS[1] owner   KEYS[2] alive   KEYS[3] limit, if it was changed
-- ARGV[1] limit, > 0, unless it was changed
--
-- Returns {'inspected', limit, waiters, "<lease id>:<token>:<calls>", milliseconds left, ...}  the last two for each
--                     holder, the one whose time ends first in front
--         {'corrupt', key, problem}

expect(3, 1)
fields(1, 'owner', 'alive', 'limit')
local owner = KEYS[1]
local q = {alive = KEYS[2], now = clock()}
local limit = whole(ARGV[1], 1, 'limit')
local all, wrong = living(owner, q.now)
wrong = wrong or mistyped(q.alive, 'hash')
if wrong then return wrong end
local changed
changed, wrong = read_limit(KEYS[3])
if wrong then return wrong end
local reply = {'inspected', digits(changed or limit), digits(waiters(q))}
for n, word in ipairs(all) do
  if n % 2 == 1 then
    local id, token = string.match(word, '^([%x%-]+):([1-9]%d*):[%w%-,]+$')
    if not id or #id ~= 36 or #token > 16 then return corrupt(owner, 'does not hold a lease id, a token and a call') end
  end
  reply[n + 3] = n % 2 == 1 and word or digits(math.ceil((tonumber(word) - q.now) / 1000))
end
return reply
