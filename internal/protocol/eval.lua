-- eval.lua: runs a script of the caller if the exact lease holds its resource and no newer token was issued. The check
-- and the script are one step. The caller's script is put before this one, as
--     local function script(KEYS, ARGV) ... end
--
-- KEYS[1] owner   KEYS[2] fence   KEYS[3] ended   KEYS[4...] keys of the caller's script
-- ARGV[1] lease id   ARGV[2] token
-- ARGV[3] number of the script's keys   ARGV[4] number of its arguments   ARGV[5...] its arguments
--
-- Returns {'ran', result}  the caller's script has run; its result may be any reply, and is missing if it is nil
--         {'gone'}         nobody holds the resource: the lease expired, or its key was lost. Nothing was changed.
--         {'taken'}        another lease holds the resource. Nothing was changed.
--         {'revoked'}      this lease was revoked. Nothing was changed.
--         {'stale', last}  the lease holds, but a newer token was issued or the last token was raised. Nothing was
--                          changed.
--         {'corrupt', key, problem}  of owner or fence

local keys = whole(ARGV[3] or '0', 0, 'number of keys')
local args = whole(ARGV[4] or '0', 0, 'number of arguments')
expect(3 + keys, 4 + args)
fields(1, 'owner', 'fence', 'ended')
local owner, fence, ended = KEYS[1], KEYS[2], KEYS[3]
local id, token = uuid(ARGV[1], 'lease id'), whole(ARGV[2], 1, 'token')

local held, wrong = read_owner(owner)
if wrong then return wrong end
local last
last, wrong = read_fence(fence)
if wrong then return wrong end

if not held or held.id ~= id or held.token ~= digits(token) then
  if was_revoked(ended, id .. ':' .. digits(token) .. ':') then return {'revoked'} end
  return {held and 'taken' or 'gone'}
end
if last > token then return {'stale', digits(last)} end

local function from(list, first)
  local rest = {}
  for n = first, #list do rest[#rest + 1] = list[n] end
  return rest
end
return {'ran', (script(from(KEYS, 4), from(ARGV, 5)))}
